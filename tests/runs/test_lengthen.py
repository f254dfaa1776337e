"""A run goes on to more rounds and ends as one that had them from the start."""

import json
import shutil
from pathlib import Path

import pytest

from focoop import runs
from focoop.config import loading, writing
from focoop.config.schema import RunConfig
from focoop.errors import RunError
from focoop.experiments.running import run_experiment, run_to_end
from focoop.runs import RunFolder
from focoop.runs.lengthen import is_due
from focoop.tracking import RoundEvent, as_hooks
from tests.runs.work import Crash, crash_at, new_manifest
from tests.toy_setting import write_setting


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_setting(tmp_path_factory.mktemp("data"))


def settings(setting: Path, rounds: int, *more: str) -> RunConfig:
    """A method with shared and private tensors; `more` may name another."""
    method = "method.name=promptfolio"
    return loading.load(setting, [method, f"federation.rounds={rounds}", *more])


def run(path: Path, wanted: RunConfig, *, resume: bool = False) -> RunFolder:
    folder = runs.start(path, wanted, new_manifest(), resume=resume, lengthen=True)
    if folder.status != "finished":
        with folder:
            run_experiment(wanted, folder)
            folder.finish("finished")
    return folder


def content(path: Path) -> dict[str, bytes]:
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(f.relative_to(path)): f.read_bytes() for f in files if f.name not in runs.TIMED}


@pytest.mark.parametrize(
    "every", [*(pytest.param(every, marks=pytest.mark.slow) for every in (0, 1)), 3]
)
def test_more_rounds_end_with_the_bits_of_an_uninterrupted_run(
    tmp_path: Path, setting: Path, every: int
) -> None:
    more = f"federation.evaluate_every={every}"
    whole = run(tmp_path / "whole", settings(setting, 4, more))
    run(tmp_path / "parts", settings(setting, 1, more))
    short = RunFolder.open(tmp_path / "parts").metrics()[-1]
    for rounds in (2, 4):
        run(tmp_path / "parts", settings(setting, rounds, more), resume=True)
    assert content(tmp_path / "parts") == content(whole.path)
    assert len(content(whole.path)) == 9  # with private tensors of both clients, twice
    parts = RunFolder.open(tmp_path / "parts")
    assert parts.status == "finished" and parts.config.federation.rounds == 4
    assert parts.manifest["config_hash"] == writing.config_hash(parts.config)
    steps = parts.manifest["lengthened"]
    assert [(one["from"], one["to"], one["round"]) for one in steps] == [(1, 2, 1), (2, 4, 2)]
    assert [one["note"] for one in steps] == ["", ""]
    # An evaluation that the longer run does not make is kept, not lost.
    assert steps[0].get("evaluation") == (None if every == 1 else short)


def test_an_interrupted_run_may_be_lengthened_too(tmp_path: Path, setting: Path) -> None:
    def stop(event: RoundEvent) -> None:
        if event.round == 1:
            raise KeyboardInterrupt

    wanted = settings(setting, 2)
    folder = runs.start(tmp_path / "parts", wanted, new_manifest(), resume=False)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(wanted, folder, as_hooks(stop))
    run(tmp_path / "parts", settings(setting, 3), resume=True)
    run(tmp_path / "whole", settings(setting, 3))
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


@pytest.mark.slow
def test_a_crash_at_any_write_of_the_lengthening_loses_nothing(
    tmp_path: Path, setting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "__exit__", lambda self, *_: self._lock.release())
    wanted = settings(setting, 2)
    evaluation = run(tmp_path / "short", settings(setting, 1)).metrics()[-1]
    for moment in range(1, 12):
        path = tmp_path / str(moment)
        shutil.copytree(tmp_path / "short", path)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, moment, after=True)
            runs.start(path, wanted, new_manifest(), resume=True, lengthen=True).close()
            raise Crash  # the last moments come after the last write
        folder = runs.start(path, wanted, new_manifest(), resume=True, lengthen=True)
        folder.close()
        assert (folder.config, folder.status, folder.metrics()) == (wanted, "killed", []), moment
        kept = [one["evaluation"] for one in folder.manifest["lengthened"] if "evaluation" in one]
        assert kept[0] == evaluation
    run(path, wanted, resume=True)
    assert content(path) == content(run(tmp_path / "whole", wanted).path)


def test_a_cosine_schedule_goes_on_and_says_what_that_means(tmp_path: Path, setting: Path) -> None:
    cosine = "federation.lr_schedule=cosine"
    run(tmp_path / "run", settings(setting, 1, cosine))
    folder = run(tmp_path / "run", settings(setting, 3, cosine), resume=True)
    told = "round 1 was trained with rates for 1 round, so"
    assert told in folder.note and told in folder.manifest["lengthened"][0]["note"]
    assert told in (tmp_path / "run" / runs.LOG).read_text()
    assert folder.last_round() == 3


def test_nothing_else_may_change(tmp_path: Path, setting: Path) -> None:
    wanted = settings(setting, 2)
    run(tmp_path / "run", wanted)
    for other in (settings(setting, 1), settings(setting, 3, "seed=4")):
        with pytest.raises(RunError, match="another configuration"):
            run(tmp_path / "run", other, resume=True)
    with pytest.raises(RunError, match="go on to 3 rounds with --resume"):
        run(tmp_path / "run", settings(setting, 3))
    with pytest.raises(RunError, match="another configuration"):  # a grid's cells stay as they are
        runs.start(tmp_path / "run", settings(setting, 3), new_manifest(), resume=True)
    assert RunFolder.open(tmp_path / "run").config == wanted


def test_a_method_without_rounds_keeps_its_evaluation(tmp_path: Path, setting: Path) -> None:
    zero = ("method.name=zeroshot",)
    first = run(tmp_path / "run", settings(setting, 0, *zero)).metrics()
    again = run(tmp_path / "run", settings(setting, 4, *zero), resume=True)
    assert again.metrics() == first and again.status == "finished"


def test_the_last_round_is_always_due() -> None:
    assert [index for index in range(6) if is_due(index, 5, 2)] == [0, 2, 4, 5]
    assert [index for index in range(6) if is_due(index, 5, 0)] == [5]
    assert json.dumps(is_due(0, 0, 0)) == "true"


def test_a_run_that_late_clients_ended_does_not_go_on(tmp_path: Path, setting: Path) -> None:
    late = "federation.late_clients=1"
    whole = run(tmp_path / "late", settings(setting, 2, late))
    assert whole.status == "finished"
    with pytest.raises(RunError, match="ends with the round in which federation.late_clients"):
        run(tmp_path / "late", settings(setting, 3, late), resume=True)
