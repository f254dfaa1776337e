"""Runs of a grid that a worker makes as one batch: numbers, failures, stops, dead workers."""

import os
import signal
from pathlib import Path

import pytest
from torch import Tensor
from typer.testing import CliRunner

from focoop import caching
from focoop.cli import app
from focoop.clip.text.tower import Names, TextTower
from focoop.errors import ConfigError
from focoop.experiments import comparison, grid, workers
from focoop.runs import RunFolder
from tests.toy_setting import toy_plan, write_setting

BATCHED = ["federation.together=8"]
METHODS = "promptfl,focoop,zeroshot,promptfl:federation.lr=0.5"


def jobs_of(cells: list[grid.Cell]) -> list[workers.Job]:
    return [workers.Job(cell.config, cell.folder) for cell in cells]


def test_bundles_hold_runs_of_one_tower_and_data_set(tmp_path: Path) -> None:
    cells = toy_plan(tmp_path, "promptfl,focoop", (0, 1, 2))
    other = grid.plan(
        [write_setting(tmp_path / "other")], "promptfl", (0,), tmp_path / "out2", overrides=BATCHED
    )
    half = toy_plan(tmp_path, "promptfl", overrides=["backbone.precision=bfloat16"])
    jobs = jobs_of([*cells, *other, *half])
    assert workers.bundles(jobs, 1) == [[numbered] for numbered in enumerate(jobs)]
    found = [[number for number, _ in bundle] for bundle in workers.bundles(jobs, 4)]
    assert sorted(number for bundle in found for number in bundle) == list(range(len(jobs)))
    focoop, promptfl = [1, 3, 5], [0, 2, 4]
    assert found == [[*focoop, promptfl[0]], promptfl[1:], [6], [7]]


def test_runs_made_together_have_the_numbers_of_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching.BACKBONES, "limit", 0)
    passes: list[int] = []
    original = TextTower.forward

    def counted(tower: TextTower, contexts: Tensor, names: Names) -> Tensor:
        passes.append(len(contexts))
        return original(tower, contexts, names)

    monkeypatch.setattr(TextTower, "forward", counted)
    alone = comparison.run(toy_plan(tmp_path / "a", METHODS, (0, 1), overrides=BATCHED), jobs=0)
    before, passes = passes, []
    cells = toy_plan(tmp_path / "b", METHODS, (0, 1), overrides=BATCHED)
    seen: list[tuple[str, int, int]] = []
    met = comparison.run(
        cells,
        lambda o: seen.append((o.cell.label, o.cell.config.seed, o.round)),
        jobs=0,
        together=len(cells),
    )
    assert [o.status for o in met] == ["finished"] * len(cells)
    for one, other in zip(alone, met, strict=True):
        assert one.summary is not None and other.summary is not None
        assert one.summary.get("loss", 0.0) == pytest.approx(other.summary.get("loss", 0), rel=1e-4)
        assert one.summary["accuracy_own"] == pytest.approx(other.summary["accuracy_own"], abs=0.06)
    assert len(passes) < 0.8 * len(before)  # evaluations are each run's own
    caching.BACKBONES.clear()
    # They took turns: another run's first round came before this one's second.
    assert seen.index(("focoop", 1, 1)) < seen.index(("focoop", 0, 2))


def test_a_run_that_fails_leaves_the_others_of_its_bundle_alone(tmp_path: Path) -> None:
    methods = "promptfl:partition.clients=99,promptfl,focoop"
    found = comparison.run(toy_plan(tmp_path, methods, overrides=BATCHED), jobs=0, together=3)
    assert [o.status for o in found] == ["failed", "finished", "finished"]
    assert "99 clients" in found[0].error


def test_a_stopped_bundle_goes_on_where_it_stopped(tmp_path: Path) -> None:
    cells = toy_plan(tmp_path, "promptfl", (0, 1), overrides=BATCHED)

    def stop(outcome: comparison.Outcome) -> None:
        if outcome.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comparison.run(cells, stop, jobs=0, together=2)
    folders = [RunFolder.open(cell.folder) for cell in cells]
    assert [folder.status for folder in folders] == ["interrupted"] * 2
    assert sorted(folder.last_round() for folder in folders) == [0, 1]
    outcomes = comparison.run(cells, jobs=0, together=2)
    assert [o.status for o in outcomes] == ["finished"] * 2


@pytest.mark.slow
def test_a_worker_that_dies_fails_its_bundle_and_a_fresh_one_takes_the_next(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data", rounds=3000)
    cells = grid.plan([setting], "promptfl", (0, 1, 2), tmp_path / "out", overrides=BATCHED)
    news: list[tuple[int, str, str]] = []

    def disturb(outcome: comparison.Outcome) -> None:
        seed = outcome.cell.config.seed
        news.append((seed, outcome.status, outcome.error))
        if outcome.status == "running" and seed == 1 and outcome.round == 1:
            os.kill(int((outcome.cell.folder / ".lock").read_text()), signal.SIGKILL)
        elif outcome.status == "running" and seed == 2:
            raise KeyboardInterrupt  # as Ctrl-C would

    with pytest.raises(KeyboardInterrupt):
        comparison.run(cells, disturb, jobs=1, together=2)
    failed = {seed: error for seed, status, error in news if status == "failed"}
    assert failed.keys() == {0, 1} and all("signal 9" in error for error in failed.values())
    assert [RunFolder.open(cell.folder).status for cell in cells] == [
        "killed",
        "killed",
        "interrupted",
    ]


def test_the_command_makes_runs_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="least is 1"):
        workers.run_jobs([], print, workers=0, together=0)
    setting = write_setting(tmp_path / "data", rounds=1)
    call = ["compare", str(setting), "--methods=promptfl", "--seeds=0,1", "--jobs=0"]
    call += ["--together=2", f"--out={tmp_path / 'out'}", "--set=federation.together=8"]
    found = CliRunner().invoke(app, call)
    assert found.exit_code == 0, found.output
    assert "2 of 2" in found.output or "| 2 |" in found.output


def test_a_worker_that_is_told_to_stop_stops_all_its_runs(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data", rounds=3000)
    cells = grid.plan([setting], "promptfl", (0, 1), tmp_path / "out", overrides=BATCHED)

    def stop(outcome: comparison.Outcome) -> None:
        if outcome.round == 2:
            raise KeyboardInterrupt  # as Ctrl-C would

    with pytest.raises(KeyboardInterrupt):
        comparison.run(cells, stop, jobs=1, together=2)
    folders = [RunFolder.open(cell.folder) for cell in cells]
    assert [folder.status for folder in folders] == ["interrupted"] * 2
    assert all(folder.last_round() >= 1 for folder in folders)
