"""Trackers at the coordinator: told each round of the federation, named by nothing sites see."""

from pathlib import Path

import pytest

from focoop.flower import in_process
from focoop.flower.settings import TRACK
from focoop.runs import RunFolder
from tests.flower.federations import CLIENTS, toy_config

MINE = """
import focoop


class Mine(focoop.Tracker):
    def begin(self, event):
        self.say("begin", event.round)

    def round(self, event):
        self.say(event.name, event.round, event.bytes_up, event.metrics.get("own/accuracy"))

    def end(self, event):
        self.say(event.status, event.round)

    def say(self, *words):
        with open(self.target, "a") as file:
            print(*words, file=file)
"""


def test_the_server_tells_its_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setenv(TRACK, f"{tmp_path}/mine.py:{tmp_path}/told.txt")
    wanted = toy_config(tmp_path, "method.name=promptfl", "federation.rounds=1")
    grid = in_process.run(wanted, tmp_path / "study" / "run", CLIENTS)
    folder = RunFolder.open(tmp_path / "study" / "run")
    first, last = (line["accuracy_own"] for line in folder.metrics())
    up = folder.manifest["rounds"][1]["bytes_up"]
    told = (tmp_path / "told.txt").read_text().splitlines()
    rounds = [f"study 0 0 {first}", f"study 1 {up} {last}"]
    assert told == ["begin -1", *rounds, "finished 1"]
    assert folder.manifest["rounds"][1]["loss"] == folder.metrics()[1]["loss"]
    assert not any("mine.py" in str(context.run_config) for context in grid.contexts)
