"""A site's people see rounds, what left, what was refused, and why there is no connection."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.cli import app
from focoop.errors import FederationError, RunError
from focoop.flower import in_process
from focoop.flower.journal import Journal, Tail
from focoop.flower.site import status
from focoop.flower.site.connection import Reach
from focoop.flower.site.status import Pauses, SiteWatch, read_status
from focoop.flower.site.status_words import sentences
from tests.flower.federations import CLIENTS, toy_config
from tests.flower.test_policy import SAID, SETTINGS, site_nodes


class Said(list[str]):
    def __call__(self, event: dict[str, Any], text: str) -> None:
        assert event["event"]
        self.append(text)


QUICK = Pauses(beat=0.0, look_every=0.0, first=0.0)


def watched(folder: Path, said: Said, *found: Reach, pauses: Pauses = QUICK) -> SiteWatch:
    left = list(found)

    def looking(server: str, certificate: Path) -> Reach:
        return left.pop(0) if len(left) > 1 else left[0]

    return SiteWatch("ghent", "fl:8000", folder / "ca.crt", folder, said, looking, pauses)


def test_a_site_that_starts_first_says_so_and_goes_on(tmp_path: Path) -> None:
    said = Said()
    away = Reach("refused", "fl:8000 is not reachable yet: nothing listens there")
    watch = watched(
        tmp_path, said, away, away, Reach("clock", "the clock is 2 h behind"), Reach("")
    )
    watch.await_server()
    assert said == [f"{away.text}; trying again", "the clock is 2 h behind; trying again"]
    assert read_status(tmp_path)["state"] == "waiting"
    watch.connected()
    found = read_status(tmp_path)
    assert (found["state"], found["reason"], found["running"]) == ("connected", "", True)


def test_a_server_of_another_federation_ends_it_unless_it_was_known(tmp_path: Path) -> None:
    said = Said()
    watch = watched(tmp_path, said, Reach("authority", "another authority"))
    with pytest.raises(FederationError, match="another authority"):
        watch.await_server()
    assert read_status(tmp_path)["state"] == "failed"


def test_cut_off_and_back(tmp_path: Path) -> None:
    said = Said()
    lost = Reach("silent", "fl:8000 does not answer")
    watch = watched(tmp_path, said, lost, lost, Reach("", ahead=0.25))
    watch.connected()
    watch.tick()
    found = read_status(tmp_path)
    assert (found["state"], found["reason"]) == ("cut off", "fl:8000 does not answer")
    watch.tick()
    watch.tick()
    assert read_status(tmp_path)["state"] == "connected" and watch.status.clock_ahead == 0.2
    assert said == [
        "connected",
        "cut off: fl:8000 does not answer; trying again",
        "connected again",
    ]
    assert watch.ended("the key is not registered") == "the key is not registered"
    watch.stopped()
    found = read_status(tmp_path)
    assert found["state"] == "stopped" and not found["running"]


def test_a_coordinator_that_leaves_after_its_run_is_not_called_cut_off(tmp_path: Path) -> None:
    said, gone = Said(), Reach("refused", "fl:8000 is not reachable yet")
    watch = watched(tmp_path, said, gone, Reach(""), gone)
    watch.tick()  # before the node is connected nobody is called connected
    assert read_status(tmp_path)["state"] == "starting" and not said
    journal = Journal(tmp_path / "journal.jsonl")
    watch.connected()
    journal.note("asked", round=2, step="train", rounds=5)
    journal.note("run failed", reason="round 2 has 1 updates of 2 needed")
    watch.tick()
    found, reason = read_status(tmp_path), "(round 2 has 1 updates of 2 needed)"
    assert found["state"] == "waiting" and found["reason"].endswith(f"has left {reason}")
    told = "the run failed at the coordinator: round 2 has 1 updates of 2 needed"
    assert told in sentences(found) and any(one.startswith(told) for one in said)
    watch.tick()
    assert read_status(tmp_path)["state"] == "connected" and said[-1] == "connected again"
    journal.note("asked", round=2, step="train", rounds=5)
    journal.note("finished", round=5)
    watch.tick()
    found = read_status(tmp_path)
    assert not found["run_failed"] and found["state"] == "waiting"
    assert (
        found["reason"] == "the run is finished and the coordinator has left (all rounds are done)"
    )


def test_sites_hear_why_a_run_failed_and_not_what_others_said(tmp_path: Path) -> None:
    nodes = site_nodes(tmp_path, SETTINGS)
    (tmp_path / "policy2.toml").write_text("methods = ['focoop']")
    wanted = toy_config(tmp_path, *SETTINGS)
    told: dict[str, Any] = {"nodes": nodes, "classes": SAID, "quorum": 1.0}
    with pytest.raises(FederationError, match="of 3 needed .*policy: the method"):
        in_process.run(wanted, tmp_path / "run", CLIENTS, **told)
    for k in range(CLIENTS):
        tail = Tail(tmp_path / f"state{k}" / "journal.jsonl")
        (failed,) = [one for one in tail.new() if one["event"] == "run failed"]
        assert failed["reason"] == "round 1 has 2 updates of 3 needed"


def test_a_refused_key_is_not_blamed_where_the_clock_is_off(tmp_path: Path) -> None:
    watch = watched(tmp_path, Said(), Reach("clock", "the clock is 2 h behind"))
    assert watch.ended("the server does not let this key in") == "the clock is 2 h behind"


def test_a_run_as_its_site_sees_it(tmp_path: Path) -> None:
    """Two rounds; the site's app writes the journal, the watch reads it."""
    nodes = site_nodes(tmp_path, SETTINGS)
    said, strict = Said(), Said()
    watch = watched(tmp_path / "state0", said, Reach(""))
    other = watched(tmp_path / "state2", strict, Reach(""))
    (tmp_path / "policy2.toml").write_text("methods = ['focoop']")
    wanted = toy_config(tmp_path, *SETTINGS)
    told: dict[str, Any] = {"nodes": nodes, "classes": SAID}
    in_process.run(wanted, tmp_path / "run", CLIENTS, **told)
    watch.tick()
    other.tick()
    assert said[0] == "told the coordinator its name, classes and version"
    assert said[1].startswith("round 1: sent 12.6 kB (context 16 x 192 float32, class-counts 4")
    assert said[2] == "round 1: the update counted"
    assert "finished: the last round is done" in said
    assert said[-1].startswith(f"this site's model: {tmp_path / 'state0'}")
    watch._set("connected", "")
    found = read_status(tmp_path / "state0")
    assert (found["round"], found["rounds"], found["finished"]) == (2, 2, True)
    assert found["updates_sent"] == found["updates_counted"] == 2
    assert found["bytes_sent"] > 2 * 16 * 192 * 4 and found["last_sent"]["step"] == "query.sketch"
    assert f"this site's model: {found['model']}" in sentences(found)
    assert "its model: why" in sentences({**found, "model_note": "why"})
    assert not found["refused"] and not found["left_out"] and not found["errors"]
    # A command that starts again knows the history, and says none of it again.
    again = Said()
    assert watched(tmp_path / "state0", again, Reach("")).status.updates_counted == 2 and not again
    assert strict == ["refused: policy: the method promptfl (allowed: focoop)"]
    other._set("connected", "")
    words = sentences(read_status(tmp_path / "state2"))
    assert "refused: policy: the method promptfl (allowed: focoop)" in words


def test_the_command_shows_words_and_json(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["site", "status", "--state", str(tmp_path / "none")])
    assert missing.exit_code == 6 and "focoop site join" in missing.stderr
    journal = Journal(tmp_path / "journal.jsonl")
    journal.note("asked", round=3, step="train", rounds=5)
    journal.note("sent", round=3, step="train", bytes=12568, tensors=["context 16 x 192 float32"])
    journal.note("left out", round=3, reason="it did not answer in time")
    journal.note("failed", round=4, reason="DataError: images/a.png cannot be read")
    watch = watched(tmp_path, Said(), Reach(""))
    watch._set("connected", "")
    shown = CliRunner().invoke(app, ["site", "status", "--state", str(tmp_path)])
    assert shown.exit_code == 0
    for text in (
        "ghent: connected (since",
        "round 3 of 5: waiting for the next order",
        "1 updates sent, 0 of them known to count, 12.6 kB in all",
        "last sent: round 3, train, 12.6 kB (context 16 x 192 float32)",
        "left out: round 3: it did not answer in time",
        "error: round 4: DataError: images/a.png cannot be read",
    ):
        assert text in shown.stdout
    done = CliRunner().invoke(app, ["site", "status", "--state", str(tmp_path), "--json"])
    found = json.loads(done.stdout)
    assert found["running"] and found["left_out"][0]["round"] == 3 and found["rounds"] == 5


def test_a_process_that_is_gone_is_not_called_connected(tmp_path: Path) -> None:
    watch = watched(tmp_path, Said(), Reach(""))
    watch.connected()
    asked = ["site", "status", "--alive", "--state", str(tmp_path)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    long_ago = time.time() - 60
    os.utime(tmp_path / "status.json", (long_ago, long_ago))
    dead = CliRunner().invoke(app, asked)
    assert dead.exit_code == 1 and "ghent: not running" in dead.stdout
    assert CliRunner().invoke(app, [*asked, "--json"]).exit_code == 1
    assert CliRunner().invoke(app, [word for word in asked if word != "--alive"]).exit_code == 0
    found = read_status(tmp_path, silent=-1.0)
    assert not found["running"]
    assert sentences(found)[0].startswith("ghent: not running (last seen")
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        read_status(tmp_path)


def test_a_journal_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    tail = Tail(path)
    assert tail.new() == []
    journal = Journal(path)
    journal.note("one")
    journal.note("two")
    assert [one["event"] for one in tail.new()] == ["one", "two"]
    with open(path, "ab") as file:
        file.write(b'{"event": "thr')
    assert tail.new() == []
    with open(path, "ab") as file:
        file.write(b'ee"}\n')
    assert [one["event"] for one in tail.new()] == ["three"]


def test_a_full_disk_is_told_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said()
    watch = watched(tmp_path, said, Reach(""))

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(status, "write_whole", full)
        watch._set("waiting", "a")
        watch._set("waiting", "b")
    assert said == ["no status file: [Errno 28] No space left on device"]
    watch._set("waiting", "c")
    assert read_status(tmp_path)["reason"] == "c"
