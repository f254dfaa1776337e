"""The OpenAPI description is true: requests that it allows, and others, get what it says."""

from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from focoop.serve import Engine, Limits
from tests.serve.calling import calling
from tests.serve.fake_model import FakeModel
from tests.serve.live import live

LIMITS = Limits(images=3, image_bytes=2**18, request_bytes=2**20, seconds=10.0)


def test_every_route_is_described_with_its_refusals() -> None:
    with calling(Engine({"colours": FakeModel()}, LIMITS)) as caller:
        found = caller.get("/openapi.json").json()
    assert set(found["paths"]) == {
        "/health", "/ready", "/metrics", "/v1/models", "/v1/predict", "/v1/explain",
    }  # fmt: skip
    predict = found["paths"]["/v1/predict"]["post"]
    assert {"200", "400", "404", "408", "411", "413", "415", "422", "503"} == set(
        predict["responses"]
    )
    form = predict["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["images"]["maxItems"] == 3
    examples = found["components"]["schemas"]
    assert examples["PredictAnswer"]["examples"][0]["predictions"][0]["verdict"] == "own"
    assert examples["ErrorAnswer"]["examples"][0]["error"]["images"]


def test_every_answer_and_field_has_an_example_that_is_true() -> None:
    from focoop.serve import schemas

    with calling(Engine({"colours": FakeModel()}, LIMITS)) as caller:
        found = caller.get("/openapi.json").json()
    answers = {
        content["schema"]["$ref"].rpartition("/")[2]
        for route in found["paths"].values()
        for operation in route.values()
        for answer in operation["responses"].values()
        for content in answer.get("content", {}).values()
        if "$ref" in content.get("schema", {})
    } - {"HTTPValidationError"}
    assert len(answers) == 5
    for name in answers:
        for example in found["components"]["schemas"][name]["examples"]:
            assert getattr(schemas, name).model_validate(example, strict=True)
    for path in ("/v1/predict", "/v1/explain"):
        operation = found["paths"][path]["post"]
        assert "curl -F images=@a.jpg -F" in operation["description"]
        form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
        assert all(
            form["properties"][name]["examples"] for name in set(form["properties"]) - {"images"}
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of schemathesis and its packages
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_schemathesis_finds_nothing(mode: str) -> None:
    """Statuses, content types and documents are those of the description; no status of 5xx."""
    names = (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
    schemathesis.checks.load_all_checks()
    checks = schemathesis.checks.CHECKS.get_by_names(names)
    tried: list[int] = []
    with live(Engine({"colours": FakeModel()}, LIMITS)) as address:
        schema: Any = schemathesis.openapi.from_url(f"{address}/openapi.json")
        for found in schema.get_all_operations():
            operation = found.ok()

            @settings(max_examples=80, suppress_health_check=list(HealthCheck), database=None)
            @given(case=operation.as_strategy(schemathesis.GenerationMode[mode]))
            def check(case: Any) -> None:
                tried.append(case.call_and_validate(checks=checks, timeout=20).status_code)

            with suppress(Unsatisfiable):  # nothing can be wrong about a route without arguments
                check()
    assert len(tried) > 80 and max(tried) < 500
