"""The HTTP interface, with a model that knows three colours."""

import gc
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import httpx
from prometheus_client.parser import text_string_to_metric_families

from focoop.serve import Engine, KeyFile, Limits, add_key
from tests.serve.calling import Caller, calling, form
from tests.serve.fake_model import FakeModel, picture
from tests.serve.live import live

RED, GREEN, GREY = (230, 10, 20), (10, 230, 20), (120, 120, 120)


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    engine = Engine({"colours": FakeModel(), "second": FakeModel()}, Limits(images=4, queue=8))
    with calling(engine) as caller:
        yield caller


def test_three_answers(caller: Caller) -> None:
    answer = caller.predict(picture(RED), picture(GREEN), picture(GREY), client="north")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [one["verdict"] for one in found["predictions"]] == ["own", "other", "unknown"]
    assert [one["label"] for one in found["predictions"]] == ["red", "green", None]
    assert [one["source"] for one in found["predictions"]] == ["0.png", "1.png", "2.png"]
    assert (found["model"], found["client"]) == ("colours", "north")
    assert found["predictions"][1]["top"][0]["holders"] == ["south"]
    same = caller.predict(picture(GREEN), client="1", model="second").json()
    assert (same["model"], same["predictions"][0]["verdict"]) == ("second", "own")
    known = caller.predict(picture(GREEN), top=1).json()["predictions"][0]
    assert known["verdict"] == "known" and len(known["top"]) == 1


def test_the_dial_changes_the_answer_without_training(caller: Caller) -> None:
    mixed = picture((150, 200, 20))
    shares = [caller.predict(mixed, client="north", open_share=x).json() for x in (0.0, 1.0)]
    assert [one["predictions"][0]["label"] for one in shares] == ["red", "green"]


def test_a_heat_map_has_the_shape_of_the_patches(caller: Caller) -> None:
    asked = form(picture(RED), label="red", client="north")
    found = caller.post("/v1/explain", **asked).json()
    assert (found["rows"], found["columns"], found["label"]) == (5, 7, "red")
    assert found["values"][0][0] == pytest.approx(230 / 255, abs=1e-3)
    refused = caller.post("/v1/explain", **form(picture(RED, (7, 7)), label="red"))
    assert refused.status_code == 422 and "no heat map" in refused.text


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"model": "colour"}, 404, "nearest is 'colours'"),
        ({"client": "nort"}, 404, "nearest is 'north'"),
        ({"client": "7"}, 404, "does not answer for '7'"),
        ({"open_share": "2"}, 422, "from 0 to 1"),
        ({"open_share": "nan"}, 422, "from 0 to 1"),
        ({"open_share": "much"}, 422, "from 0 to 1"),
        ({"top": "0"}, 422, "top is a number"),
        ({"top": "99999999999999999999"}, 422, "top is a number"),
        ({"colour": "red"}, 422, "the fields are"),
    ],
)
def test_a_wrong_field_is_named(
    caller: Caller, fields: dict[str, str], status: int, says: str
) -> None:
    answer = caller.predict(picture(), **fields)
    assert answer.status_code == status and says in answer.json()["error"]["message"]


def test_bad_images_are_named_and_nothing_is_answered(caller: Caller) -> None:
    answer = caller.predict(picture(), b"no image", picture()[:60])
    assert answer.status_code == 422
    problem = answer.json()["error"]
    assert [(one["index"], one["source"]) for one in problem["images"]] == [
        (1, "1.png"),
        (2, "2.png"),
    ]
    assert "2 of 3 images" in problem["message"]
    assert caller.predict().status_code in (400, 415, 422)
    assert caller.predict(*[picture()] * 5).status_code == 413


def test_models_tell_classes_calibration_and_limits(caller: Caller) -> None:
    found = caller.get("/v1/models").json()
    assert [model["name"] for model in found["models"]] == ["colours", "second"]
    model = found["models"][0]
    assert model["classes"] == ["red", "green", "blue"] and model["keep"] == 0.95
    sides = {client["name"]: client for client in model["clients"]}
    assert sides["north"]["own_classes"] == ["red"] and sides["global"]["is_global"]
    assert sum(sides["north"]["histogram"]["counts"]) == 200 == sides["north"]["calibrated_on"]
    assert found["limits"]["images"] == 4


def test_numbers_count_what_happened() -> None:
    with calling(Engine({"colours": FakeModel()})) as caller:
        caller.predict(picture(RED), picture(GREY), client="north")
        caller.predict(b"", client="north")
        text = caller.get("/metrics").text
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    base = (("client", "north"), ("model", "colours"))
    assert found["focoop_images_total", *base, ("verdict", "own")] == 1
    assert found["focoop_images_total", *base, ("verdict", "unknown")] == 1
    assert found["focoop_drift_images", *base] == 2 and found["focoop_drift_flagged", *base] == 1
    assert found["focoop_requests_total", ("route", "/v1/predict"), ("status", "200")] == 1
    assert found["focoop_refusals_total", ("kind", "image")] == 1
    assert found["focoop_batch_images_sum",] == 2


def test_drift_is_told(caller: Caller) -> None:
    with calling(Engine({"colours": FakeModel()})) as caller:
        for _ in range(2):
            caller.predict(*[picture(GREY)] * 30, client="north")
        clients = caller.get("/v1/models").json()["models"][0]["clients"]
    states = {client["name"]: client["drift"]["state"] for client in clients}
    assert states == {"global": "too few", "north": "more foreign", "south": "too few"}


def test_requests_of_many_connections_share_a_batch() -> None:
    model = FakeModel()
    engine = Engine({"colours": model}, Limits(batch=8, wait=0.3))
    with calling(engine) as caller:
        sent = [form(picture((40 * k, 10, 20)), client="north") for k in range(1, 7)]
        answers = caller.at_once(
            [lambda one=one: caller.client.post("/v1/predict", **one) for one in sent]
        )
    assert [answer.status_code for answer in answers] == [200] * 6
    scores = [answer.json()["predictions"][0]["score"] for answer in answers]
    assert scores == sorted(scores, reverse=True)  # everybody has their own answer
    assert len(model.batches) < 6 and sum(model.batches) == 6


class Slow(FakeModel):
    """Encodes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def encode(self, prepared: Any) -> Any:
        assert self.go.wait(20)
        return super().encode(prepared)


def test_a_full_server_says_when_to_come_back() -> None:
    model = Slow()
    engine = Engine({"colours": model}, Limits(images=1, queue=2, batch=1, wait=0))
    with calling(engine) as caller:

        async def one(number: int) -> Any:
            if number == 4:
                model.go.set()
            return await caller.client.post("/v1/predict", **form(picture()))

        async def staggered(number: int) -> Any:
            import asyncio

            await asyncio.sleep(0.1 * number)
            return await one(number)

        answers = caller.at_once([lambda k=k: staggered(k) for k in range(5)])
    statuses = [answer.status_code for answer in answers]
    assert statuses[:4] == [200, 200, 503, 503]
    assert answers[2].headers["retry-after"] == "2" and "queue is full" in answers[2].text
    assert engine.inside == 0


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    model = Slow()
    engine = Engine({"colours": model}, Limits(seconds=0.2))
    with calling(engine) as caller:
        answer = caller.predict(picture())
        model.go.set()
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert caller.predict(picture()).status_code == 200


def test_what_nobody_waits_for_is_not_computed_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three connections end before their turn; the tower sees the first image and the last."""
    model = Slow()
    engine = Engine({"colours": model}, Limits(batch=1, wait=0))
    with live(engine) as address:
        place = address.removeprefix("http://").split(":")
        first = threading.Thread(
            target=lambda: httpx.post(address + "/v1/predict", **form(picture()))
        )
        first.start()
        until = time.monotonic() + 10
        while engine.inside < 1 and time.monotonic() < until:
            time.sleep(0.01)
        request = httpx.Request("POST", address + "/v1/predict", **form(picture()))
        head = b"POST /v1/predict HTTP/1.1\r\n" + b"".join(
            name + b": " + value + b"\r\n" for name, value in request.headers.raw
        )
        gone = [socket.create_connection((place[0], int(place[1])), 5) for _ in range(3)]
        for one in gone:
            one.sendall(head + b"\r\n" + request.read())
        while engine.inside < 4 and time.monotonic() < until:
            time.sleep(0.01)
        for one in gone:
            one.close()
        while engine.inside > 1 and time.monotonic() < until:
            time.sleep(0.01)
        model.go.set()
        first.join(10)
    gc.collect()  # asyncio logs an error that nobody asked for when its future is thrown away
    assert engine.inside == 0 and model.batches == [1]
    assert not caplog.records


def test_what_was_taken_is_answered_before_the_end() -> None:
    model = Slow()
    engine = Engine({"colours": model}, Limits(batch=1, wait=0))
    prepared = [model.prepare(picture_of) for picture_of in _pictures(3)]
    from focoop.serve import Question

    answers = engine.ask(prepared, Question("colours"))
    threading.Timer(0.1, model.go.set).start()
    assert engine.stop() and all(one.done() for one in answers) and not engine.ready
    with calling(engine) as caller:
        assert caller.get("/health").status_code == 200
        assert caller.get("/ready").status_code == 503
        assert caller.predict(picture()).status_code == 503


def _pictures(count: int) -> list[Any]:
    from PIL import Image

    return [Image.new("RGB", (4, 4), RED)] * count


def test_a_stop_has_an_end() -> None:
    model = Slow()
    engine = Engine({"colours": model}, Limits(batch=1, wait=0, stop_seconds=0.1))
    from focoop.serve import Question

    answers = engine.ask([model.prepare(one) for one in _pictures(3)], Question("colours"))
    began = time.monotonic()
    assert not engine.stop() and time.monotonic() - began < 5
    assert answers[2].cancelled()
    model.go.set()


def test_a_request_that_the_stop_overtakes_is_told_so() -> None:
    model = Slow()
    engine = Engine({"colours": model}, Limits(batch=1, wait=0, stop_seconds=0.2))
    with calling(engine) as caller:
        threading.Timer(0.2, engine.stop).start()
        answers = caller.at_once(
            [lambda: caller.client.post("/v1/predict", **form(picture())) for _ in range(3)]
            + [lambda: _later(0.7, model.go.set)]
        )
    statuses = sorted(answer.status_code for answer in answers[:3])
    assert statuses == [200, 503, 503]  # the one in the tower, and those that waited
    assert "stopping" in "".join(answer.text for answer in answers[:3])


async def _later(seconds: float, act: Any) -> None:
    import asyncio

    await asyncio.sleep(seconds)
    act()


def test_keys_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    key = add_key(path, "ward-7")
    with calling(Engine({"colours": FakeModel()}), keys=KeyFile(path)) as caller:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": key[:-1]}):
            answer = caller.get("/v1/models", headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        for headers in ({"Authorization": f"bearer {key}"}, {"X-API-Key": key}):
            assert caller.get("/v1/models", headers=headers).status_code == 200
        assert {caller.get(path).status_code for path in ("/", "/health", "/ready")} == {200}
        assert caller.get("/metrics").status_code == caller.get("/v1/nothing").status_code == 401
        numbers = caller.get("/metrics", headers={"X-API-Key": key}).text
        assert 'focoop_refusals_total{kind="key"} 5.0' in numbers
        described = caller.get("/openapi.json", headers={"X-API-Key": key}).json()
        assert described["security"] == [{"key": []}]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),  # DNS rebinding
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:8080"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_pages_of_others_get_nothing(caller: Caller, headers: dict[str, str], status: int) -> None:
    answer = caller.post("/v1/predict", headers=headers, **form(picture()))
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


def test_every_answer_forbids_what_comes_from_elsewhere(caller: Caller) -> None:
    for path in ("/", "/page/main.js", "/v1/models", "/page/../app.py", "/favicon.ico"):
        answer = caller.get(path)
        rules = answer.headers["content-security-policy"]
        assert "default-src 'none'" in rules and "unsafe" not in rules and "http" not in rules
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert caller.get("/docs").status_code == 404
    assert caller.get("/page/main.js").headers["content-type"].startswith("text/javascript")


def test_numbers_of_json_are_numbers(caller: Caller) -> None:
    found = caller.predict(picture(GREY)).json()

    def check(value: Any) -> None:
        if isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                check(part)
        assert not isinstance(value, float) or math.isfinite(value)

    check(found)
    assert json.dumps(found)
