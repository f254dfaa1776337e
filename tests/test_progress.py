"""Work on images as it is shown: told by those who do it, a bar or lines where someone looks."""

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from focoop.cli import app, screen
from focoop.cli.console import Screen, messages
from focoop.cli.screen import ImageWork, Rounds, image_work
from focoop.data import read_folder
from focoop.data.unreadable import broken
from focoop.features.encoding import encode
from focoop.progress import tell, watched
from tests.features.test_encoding import plant_images
from tests.helpers import toy_backbone
from tests.toy_command import SlowClock


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120)


def shown(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


class Clock:
    """Seconds that pass when told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(screen, "time", clock)
    return clock


def test_nobody_is_told_unless_someone_watches() -> None:
    told: list[tuple[str, int, int]] = []
    tell("encoding a", 0, 2)
    with watched(lambda *all: told.append(all)):
        tell("encoding b", 1, 2)
        with watched(lambda *_: None):
            tell("encoding c", 1, 2)
        tell("encoding b", 2, 2)
    tell("encoding d", 0, 2)
    assert told == [("encoding b", 1, 2), ("encoding b", 2, 2)]


def test_checking_hashing_and_encoding_tell_how_far_they_are(tmp_path: Path) -> None:
    images = read_folder(plant_images(tmp_path / "pets"), "test")
    told: list[tuple[str, int, int]] = []
    with watched(lambda *all: told.append(all)):
        broken(images, tmp_path)
        encode(images, toy_backbone(), cache_dir=tmp_path, batch_size=8, views=1)
        first = list(told)
        broken(images, tmp_path)
        encode(images, toy_backbone(), cache_dir=tmp_path, corruption="fog", severity=2)
    assert first == [
        *(("checking pets", done, 12) for done in (0, 12)),
        ("hashing pets", 12, 12),
        *(("encoding pets test", done, 12) for done in (0, 8, 12)),
        *(("encoding pets test view 1", done, 12) for done in (0, 8, 12)),
    ]
    again = [("encoding pets test fog@2", done, 12) for done in (0, 12)]
    assert told[len(first) :] == [("checking pets", 0, 0), *again]


def test_lines_come_now_and_then_and_at_the_end(clock: Clock) -> None:
    lines = console(terminal=False)
    work = ImageWork(lines)
    for second in range(0, 26):
        clock.now = second
        work("encoding pets test", 4 * second, 100)
    work("encoding kept", 7, 7)  # was done before
    work("hashing pets", 0, 5)
    clock.now += 0.5
    work("hashing pets", 5, 5)
    assert shown(lines).splitlines() == [
        "encoding pets test: 40 of 100 images, about 15 s left",
        "encoding pets test: 80 of 100 images, about 5 s left",
        "encoding pets test: 100 images in 25.0 s",
    ]


def test_a_terminal_has_a_bar_that_goes_away() -> None:
    live = console(terminal=True)
    with Rounds(live, 3, "focoop") as rounds:
        work = rounds.images()
        work("encoding pets [test]", 0, 40)
        work("encoding pets [test]", 12, 40)
        rounds._bar.refresh()
        assert "encoding pets [test]" in shown(live) and "12/40" in shown(live)
        work("encoding pets [test]", 40, 40)
        assert len(rounds._bar.tasks) == 1
    with image_work(live):
        tell("encoding more", 1, 2)
        tell("encoding more", 2, 2)


def test_messages_appear_above_a_live_bar_on_the_same_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = Screen(file=io.StringIO(), force_terminal=True, width=60)
    with Rounds(live, 3, "focoop"):
        assert messages() is not live  # standard error is no terminal
    monkeypatch.setenv("FORCE_COLOR", "1")  # now it is taken for one
    with Rounds(live, 3, "focoop"):
        assert messages() is live
        messages().print("warning: a file is left out")
    with image_work(live):
        assert messages() is live
    with image_work(Screen(file=io.StringIO(), force_terminal=False)):
        assert messages() is not live
    assert messages() is not live
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown(live))  # without colours and movements
    assert "warning: a file is left out" in plain.splitlines()


@pytest.mark.slow
def test_a_run_in_a_pipe_says_what_it_encodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(screen, "time", SlowClock())  # else quick work has no line
    root = plant_images(tmp_path / "pets", per_class=1)
    settings = [
        f"data.id=folder:{root}",
        "data.corrupted=[]",
        f'data.ood=["folder:{root / "test"}"]',
        "method.name=zeroshot",
        "partition.kind=iid",
        "partition.clients=1",
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", "--out", str(tmp_path / "run"), *options])
    assert done.exit_code == 0, done.output
    assert "encoding pets train: 3 images in" in done.stderr
    assert "encoding test test: 3 images in" in done.stderr and "encoding" not in done.stdout


def test_words_are_told_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = toy_backbone()
    told: list[tuple[str, int, int]] = []
    with watched(lambda *news: told.append(news)):
        found = backbone.encode_texts([f"word {k}" for k in range(40)], batch_size=4)
    assert told[0] == ("encoding words", 0, 40) and told[-1] == ("encoding words", 40, 40)
    assert torch.equal(found, backbone.encode_texts([f"word {k}" for k in range(40)], batch_size=4))
    lines = console(terminal=False)
    monkeypatch.setattr("focoop.cli.screen.time", SlowClock())
    work = ImageWork(lines, pause=1.0)
    for done in (0, 10, 40):
        work("encoding words", done, 40)
    assert "encoding words: 10 of 40 words, about 6 s left" in shown(lines)
    assert "encoding words: 40 words in 4.0 s" in shown(lines)
