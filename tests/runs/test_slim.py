"""A copy of a run without its models: equal numbers, small, and refused where models are asked."""

import shutil
from pathlib import Path

import pytest

import focoop
from focoop.errors import RunError
from focoop.report import collect_runs
from focoop.runs import CLIENTS, STATE, RunFolder, slim_files
from tests.toy_setting import write_setting


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Path]:
    """A run of FOCoOp, and its slim copy."""
    folder = tmp_path_factory.mktemp("slim")
    setting = write_setting(folder / "data", rounds=1)
    quick = {"method.name": "focoop", "negatives.count": 4, "method.context_tokens": 2}
    focoop.run(setting, quick, out=folder / "run")
    run = RunFolder.open(folder / "run")
    target = folder / "copy" / "toy" / "focoop" / "seed0"
    target.mkdir(parents=True)
    for name, content in slim_files(run, ["plan_by_word", "never heard of"]).items():
        (target / name).write_bytes(content)
    return run, target


def test_a_copy_has_the_runs_numbers_and_no_models(copy: tuple[RunFolder, Path]) -> None:
    run, target = copy
    slim = RunFolder.open(target)
    assert slim.status == "finished" and slim.config == run.config and slim.names == run.names
    assert slim.metrics() == run.metrics()
    assert slim.committed_rounds() == run.committed_rounds()
    found = slim.resume_point()
    assert found is not None and found.shared == {} and set(found.memory) == {"plan_by_word"}
    assert not (target / CLIENTS).exists() and slim.private.clients() == []
    (record,) = collect_runs([target.parents[2]]).records
    assert record.last == run.metrics()[-1]


def test_whoever_asks_a_copy_for_its_models_is_told(copy: tuple[RunFolder, Path]) -> None:
    _, target = copy
    for ask in (
        lambda: RunFolder.open(target).snapshot(),
        lambda: RunFolder.open(target, writable=True),
        lambda: focoop.open_run(target).prompts(),
        lambda: focoop.open_run(target).scores("far", client=0),
    ):
        with pytest.raises(RunError, match="a copy without models"):
            ask()


def test_a_changed_copy_is_found_and_an_unfinished_run_is_not_packed(
    copy: tuple[RunFolder, Path], tmp_path: Path
) -> None:
    run, target = copy
    changed = shutil.copytree(target, tmp_path / "changed")
    state = bytearray((changed / STATE).read_bytes())
    state[-1] ^= 1
    (changed / STATE).write_bytes(state)
    with pytest.raises(RunError, match="checksum differs"):
        RunFolder.open(changed)
    shutil.copytree(run.path, tmp_path / "run")
    RunFolder.open(tmp_path / "run", writable=True).finish("interrupted")
    with pytest.raises(RunError, match="only finished runs"):
        slim_files(RunFolder.open(tmp_path / "run"))
