"""Hostile files and requests: each is refused by its kind, none costs memory, time or disk."""

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.data import RefusedImage, rgb_from_bytes
from focoop.serve import Engine, Limits
from tests.serve.calling import Caller, calling, form
from tests.serve.fake_model import FakeModel, picture
from tests.serve.hostile_files import HOSTILE

FIELD = b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\nb\r\n--x--"
LIMITS = Limits(images=4, image_bytes=2**20, request_bytes=2**21, seconds=5.0)


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with calling(Engine({"colours": FakeModel()}, LIMITS)) as caller:
        yield caller


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_its_kind(caller: Caller, name: str) -> None:
    content, status = HOSTILE[name]
    began = time.monotonic()
    answer = caller.predict(content)
    assert answer.status_code == status, answer.text
    assert time.monotonic() - began < 4
    if status != 200:
        assert answer.json()["error"]["images"][0]["reason"]


def test_bombs_cost_no_memory_and_leave_nothing(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = len(os.listdir("/proc/self/fd"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content, _ in HOSTILE.values():
        assert caller.predict(content).status_code < 500
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 * 1024  # kibibytes; one of the bombs alone would take 7 GB
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= opened


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Type": "image/png"}, picture(), 415),
        ({"Content-Type": "application/json"}, b"{}", 415),
        ({"Content-Type": "multipart/form-data"}, b"", 400),  # no boundary
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"nonsense", 400),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x\r\n\r\n\r\n--x--", 400),
        ({"Content-Type": "multipart/form-data; boundary=x; charset=no-such"}, FIELD, 422),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x--\r\n", 422),
        ({"Content-Type": "multipart/form-data; boundary=x"}, bytes(2**21 + 1), 413),
        ({}, b"", 415),
    ],
)  # fmt: skip
def test_a_hostile_body_is_refused(
    caller: Caller, headers: dict[str, str], body: bytes, status: int
) -> None:
    assert caller.post("/v1/predict", headers=headers, content=body).status_code == status


def test_many_parts_and_long_fields_are_refused(caller: Caller) -> None:
    assert caller.predict(*[b"x"] * 1000).status_code == 413
    assert caller.predict(picture(), model="m" * 5000).status_code == 400
    many = "".join(
        f'--x\r\nContent-Disposition: form-data; name="f{k}"\r\n\r\n1\r\n' for k in range(9000)
    )
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = caller.post("/v1/predict", headers=headers, content=(many + "--x--").encode())
    assert answer.status_code == 400
    assert caller.predict(bytes(2**20 + 1)).status_code == 413


def test_a_name_comes_back_harmless(caller: Caller) -> None:
    name = "../../etc/\x1b[31m<img src=x onerror=alert(1)>\u202e.png"
    answer = caller.post("/v1/predict", files=[("images", (name, picture(), "image/png"))])
    source = answer.json()["predictions"][0]["source"]
    assert "/" not in source and "\x1b" not in source and "\u202e" not in source


def test_a_body_without_a_length_is_refused(caller: Caller) -> None:
    async def parts() -> Any:
        yield b"--x"

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert caller.post("/v1/predict", headers=headers, content=parts()).status_code == 411


def test_a_body_that_does_not_come_is_given_up() -> None:
    limits = Limits(seconds=0.2)
    with calling(Engine({"colours": FakeModel()}, limits)) as caller:

        async def slow() -> Any:
            import asyncio

            yield b"--x"
            await asyncio.sleep(3)
            yield b"--"

        headers = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "5"}
        answer = caller.post("/v1/predict", headers=headers, content=slow())
        assert answer.status_code == 408 and answer.headers["connection"] == "close"
        assert caller.predict(picture()).status_code == 200


def test_bodies_share_one_bound_of_memory() -> None:
    limits = Limits(request_bytes=5000, held_bytes=600)
    with calling(Engine({"colours": FakeModel()}, limits)) as caller:
        answer = caller.predict(picture(size=(200, 200)))
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert caller.get("/health").status_code == 200


@settings(max_examples=30)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"]), st.data())
def test_flipped_bytes_are_an_image_or_a_refusal(kind: str, data: st.DataObject) -> None:
    content = bytearray(picture(size=(9, 7), kind=kind))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(1, len(content)))
    try:
        assert rgb_from_bytes(bytes(content[:end]), pixels=10_000).mode == "RGB"
    except RefusedImage as refused:
        assert refused.reason and refused.kind in ("format", "size", "damaged")


def test_what_is_decoded_is_what_a_file_gives(tmp_path: Path) -> None:
    from focoop.data.decoding import read_rgb

    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"):
        content = picture((10, 200, 90), (33, 21), kind)
        (tmp_path / "x").write_bytes(content)
        mine = rgb_from_bytes(content, pixels=10_000)
        assert mine.tobytes() == read_rgb(tmp_path / "x").tobytes() and mine.size == (33, 21)
    with pytest.raises(RefusedImage, match="million pixels"):
        rgb_from_bytes(picture(size=(101, 100)), pixels=10_000)
    with pytest.raises(RefusedImage):
        rgb_from_bytes(picture(kind="GIF"), pixels=10_000, names=("PNG",))
    with pytest.raises(RefusedImage):
        rgb_from_bytes(picture(), pixels=10_000, names=("HEIF",))


def test_the_form_of_this_file_is_taken(caller: Caller) -> None:
    """The refusals above are not of the test's own making."""
    assert caller.post("/v1/predict", **form(picture())).status_code == 200
