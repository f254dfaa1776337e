"""The HTTP interface, with a model that knows three colours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from prometheus_client.parser import text_string_to_metric_families

from focoop.serve import Engine, KeyFile, Limits, add_key
from tests.serve.calling import Caller, calling
from tests.serve.fake_model import FakeModel, picture

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
    same = caller.predict(picture(GREEN), client="south").json()["predictions"][0]
    assert same["verdict"] == "own"
    known = caller.predict(picture(GREEN), client="global", top=1).json()["predictions"][0]
    assert known["verdict"] == "known" and len(known["top"]) == 1


def test_the_dial_changes_the_answer_without_training(caller: Caller) -> None:
    mixed = picture((150, 200, 20))
    shares = [caller.predict(mixed, client="north", open_share=x).json() for x in (0.0, 1.0)]
    assert [one["predictions"][0]["label"] for one in shares] == ["red", "green"]
