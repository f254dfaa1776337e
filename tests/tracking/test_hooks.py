"""What hooks are told of a run, and what a run does where they fail."""

import json
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import focoop
from focoop.plugins import finding
from focoop.runs import RunFolder
from focoop.tracking import as_hooks, flat_metrics
from focoop.tracking.hooks import Listener
from tests.toy_setting import write_setting

QUICK = {"method.name": "promptfl", "method.context_tokens": 2, "federation.evaluate_every": 2}


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_setting(tmp_path_factory.mktemp("setting") / "data")


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    yield
    finding.forget()


class Diary(focoop.Tracker):
    """Keeps what it is told in lists that outlive the run."""

    pages: list[tuple[str, int]] = []
    events: list[focoop.RoundEvent] = []

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self.fail_at = [int(part) for part in target.split(",") if part]

    def begin(self, event: focoop.RoundEvent) -> None:
        self.pages.append(("begin", event.round))

    def round(self, event: focoop.RoundEvent) -> None:
        if event.round in self.fail_at:
            self.fail_at.remove(event.round)
            raise OSError("the diary is locked")
        self.pages.append(("round", event.round))
        self.events.append(event)

    def end(self, event: focoop.RoundEvent) -> None:
        self.pages.append((event.status, event.round))


@pytest.fixture
def diary() -> type[Diary]:
    Diary.pages, Diary.events = [], []
    focoop.register(Diary)
    return Diary


def test_a_function_is_told_each_round_as_the_run_folder_has_it(
    tmp_path: Path, setting: Path
) -> None:
    told: list[focoop.RoundEvent] = []
    given = {**QUICK, "federation.rounds": 3}
    run = focoop.run(setting, given, out=tmp_path / "mine", on_round=told.append)
    assert [event.round for event in told] == [0, 1, 2, 3]
    assert {(e.moment, e.name, e.rounds, e.status) for e in told} == {
        ("round", "mine", 3, "running")
    }
    assert {event.path for event in told} == {run.path} and len({e.id for e in told}) == 1
    assert told[0].settings["federation.rounds"] == 3
    lines = {line["round"]: line for line in run.metrics}
    assert sorted(lines) == [0, 2, 3]
    for event, facts in zip(told[1:], run.rounds, strict=True):
        assert event.evaluation == lines.get(event.round)
        assert (event.seconds, event.bytes_up) == (facts["seconds"], facts["bytes_up"])
        assert event.metrics["train/loss"] == facts["loss"] and facts["loss"] is not None
        assert event.metrics["cost/bytes_down"] == event.bytes_down == facts["bytes_down"]
        assert ("own/accuracy" in event.metrics) == (event.round in lines)
    assert told[3].metrics["own/accuracy"] == run.summary["accuracy_own"]
    assert told[3].metrics["ood/far/fpr95"] == run.summary["ood"]["far"]["fpr95"]
    assert told[3].metrics["clients/1/accuracy"] == run.clients[1]["accuracy_own"]
    with pytest.raises(FrozenInstanceError):
        told[0].round = 7  # type: ignore[misc]


def test_a_stopped_run_goes_on_where_its_tracker_is(
    tmp_path: Path, setting: Path, diary: type[Diary]
) -> None:
    def stop(event: focoop.RoundEvent) -> None:
        if event.round == 1:
            raise KeyboardInterrupt

    # The tracker stands behind what stops the run: it is not told the round that is committed.
    with pytest.raises(KeyboardInterrupt):
        focoop.run(setting, QUICK, out=tmp_path / "x", on_round=[stop, "diary"])
    assert diary.pages == [("begin", -1), ("round", 0), ("stopped", 1)]
    first = diary.events[0].id
    run = focoop.run(setting, QUICK, out=tmp_path / "x", resume=True, on_round="diary")
    assert diary.pages[3:] == [("begin", 0), ("round", 1), ("round", 2), ("finished", 2)]
    assert {event.id for event in diary.events} == {first}
    assert diary.events[1].metrics["train/loss"] == run.rounds[0]["loss"]
    assert RunFolder.open(run.path).manifest["tracked"] == {"diary": 2}


@pytest.mark.slow
def test_what_was_told_is_not_told_again(tmp_path: Path, setting: Path, diary: type[Diary]) -> None:
    focoop.run(setting, QUICK, out=tmp_path / "x")  # not tracked: the tracker has missed it all
    longer = {**QUICK, "federation.rounds": 3}
    focoop.run(setting, longer, out=tmp_path / "x", resume=True, on_round="diary")
    again = {"resume": True, "from_round_before": True, "on_round": "diary"}
    focoop.run(setting, longer, out=tmp_path / "x", **again)  # type: ignore[arg-type]
    rounds = [("round", number) for number in range(4)]
    assert diary.pages == [("begin", -1), *rounds, ("finished", 3), ("begin", 3), ("finished", 3)]


def test_a_hook_that_raises_costs_a_warning_and_no_bit(
    tmp_path: Path, setting: Path, diary: type[Diary]
) -> None:
    calls: list[int] = []

    def broken(event: focoop.RoundEvent) -> None:
        calls.append(event.round)
        raise KeyError("own/acuracy")

    with pytest.warns(UserWarning) as warned:
        run = focoop.run(setting, QUICK, out=tmp_path / "x", on_round=[broken, "diary:1"])
    messages = [str(one.message) for one in warned]
    assert len(messages) == 2 and calls == [0, 1, 2]
    assert messages[0] == (
        "the hook broken failed after round 0 of x (KeyError: 'own/acuracy'): the run goes on"
    )
    assert (
        "the hook diary:1 failed after round 1 of x (OSError: the diary is locked)" in (messages[1])
    )
    assert "--resume tells it what it missed" in messages[1]
    assert "diary is locked" in (run.path / "log.txt").read_text()
    # The diary got the round it missed before the next one.
    assert diary.pages == [("begin", -1), *(("round", n) for n in range(3)), ("finished", 2)]
    plain = focoop.run(setting, QUICK, out=tmp_path / "plain")
    for name in ("state.safetensors", "metrics.jsonl"):
        assert (run.path / name).read_bytes() == (plain.path / name).read_bytes()


def test_a_hook_that_fails_again_and_again_is_left_alone() -> None:
    class Dead(focoop.Tracker):
        calls = 0

        def round(self, event: focoop.RoundEvent) -> None:
            self.calls += 1
            raise OSError

    event = focoop.RoundEvent("round", "x", "0" * 16, Path("x"), {}, 9, 1)
    dead = Dead()
    listener = Listener(dead)
    with pytest.warns(UserWarning, match="the hook Dead failed"):
        assert [listener.tell(event) for _ in range(9)] == 9 * [False]
    assert dead.calls == 3


def test_a_run_that_fails_says_so_at_its_end(
    tmp_path: Path, setting: Path, diary: type[Diary], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = RunFolder.commit

    def full(self: RunFolder, number: int, *rest: Any) -> None:
        if number == 1:
            raise focoop.RunError("the disk is full")
        commit(self, number, *rest)

    monkeypatch.setattr(RunFolder, "commit", full)
    with pytest.raises(focoop.RunError, match="the disk is full"):
        focoop.run(setting, QUICK, out=tmp_path / "x", on_round=diary())
    assert diary.pages == [("begin", -1), ("round", 0), ("failed", 0)]
    assert focoop.open_run(tmp_path / "x").status == "failed"


def test_a_grid_tells_of_all_its_runs(tmp_path: Path, setting: Path, diary: type[Diary]) -> None:
    told: list[focoop.RoundEvent] = []
    focoop.compare(
        setting,
        "zeroshot",
        seeds=2,
        out=tmp_path / "grid",
        on_round=[told.append, "diary", Diary()],
    )
    assert [event.name for event in told] == ["toy/zeroshot/seed0", "toy/zeroshot/seed1"]
    assert told[0].evaluation is not None and "clients" not in told[0].evaluation
    each = [("begin", -1), ("round", 0), ("finished", 0)]
    assert sorted(diary.pages) == sorted(4 * each)
    with pytest.raises(focoop.ConfigError, match="'diary' was registered in this process"):
        focoop.compare(setting, "zeroshot", out=tmp_path / "grid", jobs=2, on_round="diary")


@pytest.mark.slow
def test_a_grid_of_processes_tells_the_same(tmp_path: Path, setting: Path) -> None:
    Diary.pages = []
    (tmp_path / "mine.py").write_text(TRACKER)
    spec = f"{tmp_path}/mine.py:{tmp_path}/told.txt"
    focoop.compare(
        setting, "zeroshot", seeds=2, out=tmp_path / "grid", jobs=2, on_round=[Diary(), spec]
    )
    each = [("begin", -1), ("round", 0), ("finished", 0)]
    assert sorted(Diary.pages) == sorted(2 * each)
    lines = (tmp_path / "told.txt").read_text().splitlines()
    assert sorted(lines) == ["toy/zeroshot/seed0 0", "toy/zeroshot/seed1 0"]


TRACKER = """
import focoop


class Mine(focoop.Tracker):
    \"\"\"A line per round in a file.\"\"\"

    def round(self, event):
        with open(self.target, "a") as file:
            print(event.name, event.round, file=file)
"""


def test_a_file_and_a_package_bring_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TRACKER)
    listener = as_hooks("./mine.py:told.txt")[0]
    assert (listener.key, listener.tracker.target) == ("./mine.py:told.txt", "told.txt")
    Path("two.py").write_text(TRACKER + TRACKER.replace("Mine", "Other"))
    with pytest.raises(focoop.ConfigError, match=r"exactly one focoop\.Tracker, it defines 2"):
        as_hooks("./two.py")

    class Point:
        name, group, dist = "theirs", "focoop.trackers", None

        def load(self) -> Any:
            return Diary

    def entry_points(*, group: str) -> list[Any]:
        return [Point()] if group == "focoop.trackers" else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert isinstance(as_hooks(["theirs"])[0].tracker, Diary)


def test_what_is_no_hook_is_refused_before_a_folder_is_made(tmp_path: Path, setting: Path) -> None:
    for given, message in (
        ("tensorbord:x", "no tracker is called 'tensorbord'; nearest is 'tensorboard'"),
        ("tb", "nearest is 'tensorboard'"),
        ([3], "on_round takes functions"),
        (Diary, "on_round takes functions"),
    ):
        with pytest.raises(focoop.ConfigError, match=message):
            focoop.run(setting, QUICK, out=tmp_path / "x", on_round=given)  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
    with pytest.raises(focoop.ConfigError, match="a tracker 'wandb' of its own"):
        focoop.register(Diary, "wandb")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(focoop.MissingExtra, match=rf"pip install 'focoop\[{name}\]'"):
        as_hooks(f"{name}:somewhere")


def test_a_server_that_is_down_costs_a_warning(
    tmp_path: Path, setting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def __init__(self, tracking_uri: str | None) -> None:
            self.uri = tracking_uri

        def get_experiment_by_name(self, name: str) -> None:
            raise ConnectionError(f"{self.uri} does not answer")

    fake = ModuleType("mlflow")
    fake.MlflowClient, fake.entities = Client, None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    given = {"method.name": "zeroshot"}
    with pytest.warns(UserWarning, match="http://away does not answer.*goes on without it") as all_:
        run = focoop.run(setting, given, out=tmp_path / "x", on_round="mlflow:http://away")
    assert len(all_) == 1 and run.status == "finished"
    assert "tracked" not in json.loads((run.path / "manifest.json").read_text())


def test_names_of_numbers_group_by_what_they_are_of() -> None:
    line = {
        "num_clients": 2,
        "accuracy_own": 0.5,
        "accuracy_corrupted": None,
        "corrupted_by_type": {"fog": 0.25},
        "corrupted": {"fog@5": 0.125},
        "frontier": {"ausuc": 0.75, "curve": {"0": 1.0}},
        "ood": {"d t(d)": {"auroc": 0.9, "pooled": {"auroc": 0.8}}},
        "server": {"gap": float("nan")},
        "clients": [{"client": 0, "accuracy_own": 0.25}, {"client": 1, "accuracy_own": 0.75}],
    }
    facts = {"loss": 1.5, "participants": [0, 1], "accepted": [1], "seconds": 2, "bytes_up": 3}
    assert flat_metrics(line, facts, ["north", "south"]) == {
        "clients/evaluated": 2.0,
        "own/accuracy": 0.5,
        "own/accuracy_worst": 0.25,
        "corrupted/fog/mean": 0.25,
        "corrupted/fog/5": 0.125,
        "frontier/ausuc": 0.75,
        "ood/d t_d_/auroc": 0.9,
        "ood/d t_d_/pooled/auroc": 0.8,
        "clients/north/accuracy": 0.25,
        "clients/south/accuracy": 0.75,
        "train/loss": 1.5,
        "train/clients": 1.0,
        "cost/seconds": 2.0,
        "cost/bytes_up": 3.0,
    }
    many = [{"client": k, "accuracy_own": k / 50} for k in range(21)]
    assert flat_metrics({"clients": many}, {}) == {"own/accuracy_worst": 0.0}
