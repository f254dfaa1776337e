"""Grids of runs: resuming, failures, dead workers, shared features, the command."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from focoop import caching
from focoop.caching import is_intact
from focoop.cli import app
from focoop.cli.compare import live_comparison
from focoop.errors import ConfigError, RunError
from focoop.experiments import __main__ as plain_commands
from focoop.experiments import comparison, grid, workers
from focoop.features import storage
from focoop.runs import RunFolder
from tests.toy_setting import summary, toy_plan, write_setting

ROOT = Path(__file__).resolve().parents[2]


def content(path: Path) -> dict[str, bytes]:
    files = [file for file in path.rglob("*") if file.is_file() and file.name != ".lock"]
    return {str(f.relative_to(path)): f.read_bytes() for f in files}


def test_finished_cells_are_skipped_and_changed_ones_refused(tmp_path: Path) -> None:
    cells = toy_plan(tmp_path, "zeroshot,promptfl", (0, 1))
    half = comparison.run(cells[:2], jobs=0)
    before = content(tmp_path / "out")
    seen: list[tuple[str, int, str]] = []
    outcomes = comparison.run(
        cells, lambda o: seen.append((o.cell.label, o.cell.config.seed, o.status)), jobs=0
    )
    assert [o.status for o in outcomes] == ["finished"] * 4
    assert outcomes[1].summary == half[1].summary
    assert outcomes[1].summary != outcomes[3].summary  # another seed
    assert seen[:2] == [("zeroshot", 0, "finished"), ("promptfl", 0, "finished")]
    assert before.items() <= content(tmp_path / "out").items()  # not touched
    changed = toy_plan(tmp_path, "zeroshot,promptfl", overrides=["federation.lr=7"])
    with pytest.raises(RunError, match=r"federation.lr: 3.0 -> 7.0\n(.|\n)*--out"):
        comparison.run(changed, jobs=0)
    assert before.items() <= content(tmp_path / "out").items()


def test_a_stopped_grid_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = comparison.run(grid.plan(*plain(tmp_path, "whole")), jobs=0)

    def stop(outcome: comparison.Outcome) -> None:
        if outcome.round == 1:
            raise KeyboardInterrupt

    cells = grid.plan(*plain(tmp_path, "stopped"))
    with pytest.raises(KeyboardInterrupt):
        comparison.run(cells, stop, jobs=0)
    assert RunFolder.open(cells[0].folder).status == "interrupted"
    assert comparison.outcome_of(cells[0]) == comparison.Outcome(cells[0], round=1)
    rounds: list[int] = []
    outcomes = comparison.run(cells, lambda o: rounds.append(o.round), jobs=0)
    assert rounds == [2, 2]  # the second round, then the end
    assert [o.summary for o in outcomes] == [o.summary for o in whole]


def plain(tmp_path: Path, name: str) -> tuple[list[Path], str, tuple[int], Path]:
    return [write_setting(tmp_path / "data")], "promptfl", (0,), tmp_path / name


def test_a_failed_cell_does_not_stop_the_others(tmp_path: Path) -> None:
    cells = toy_plan(tmp_path, "promptfl:partition.clients=99,zeroshot")
    failed, done = comparison.run(cells, jobs=0)
    assert (failed.status, failed.exit_code) == ("failed", 2) and "99 clients" in failed.error
    assert done.status == "finished"
    written = comparison.write_results(tmp_path / "out", [failed, done])
    assert "99 clients" in written[0].read_text()
    cells_json = json.loads(written[2].read_text())["cells"]
    assert [one["status"] for one in cells_json] == ["failed", "finished"]
    assert cells_json[0]["summary"] is None
    assert cells_json[1]["summary"]["accuracy_own"] == done.summary["accuracy_own"]  # type: ignore[index]


@pytest.mark.slow
def test_workers_that_die_or_are_stopped_leave_resumable_runs(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data", rounds=3000)
    cells = grid.plan([setting], "promptfl", (0, 1), tmp_path / "out")
    news: list[tuple[int, str, str]] = []

    def disturb(outcome: comparison.Outcome) -> None:
        seed = outcome.cell.config.seed
        news.append((seed, outcome.status, outcome.error))
        if outcome.status == "running" and seed == 0:
            os.kill(int((outcome.cell.folder / ".lock").read_text()), signal.SIGKILL)
        elif outcome.status == "running":
            raise KeyboardInterrupt  # as Ctrl-C would

    with pytest.raises(KeyboardInterrupt):
        comparison.run(cells, disturb, jobs=1)
    (error,) = [error for seed, status, error in news if (seed, status) == (0, "failed")]
    assert "signal 9" in error and "fewer --jobs" in error
    assert news[-1][:2] == (1, "running")  # a fresh worker took over
    assert RunFolder.open(cells[0].folder).status == "killed"
    assert RunFolder.open(cells[1].folder).status == "interrupted"
    assert all(comparison.outcome_of(cell).status == "waiting" for cell in cells)


@pytest.mark.slow
def test_interrupt_on_a_terminal_and_the_same_command_again(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data", rounds=60)
    call = [sys.executable, "-m", "focoop", "compare", str(setting), "--methods=promptfl,zeroshot"]
    call += ["--seeds=0,1", "--jobs=2", f"--out={tmp_path / 'out'}", "--presets=absent"]
    process = subprocess.Popen(
        call,
        cwd=ROOT,
        text=True,
        stdout=-1,
        stderr=-1,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    folder = tmp_path / "out" / "toy" / "promptfl" / "seed0"
    deadline = time.monotonic() + 120
    while not (folder / "state.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does to all processes of a command
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command" in errors and "Traceback" not in errors
    # Killed, where a busy machine did not let it end in time.
    assert RunFolder.open(folder).status in ("interrupted", "killed")
    again = subprocess.run(call, cwd=ROOT, text=True, capture_output=True)
    assert again.returncode == 0, again.stderr
    cells = grid.plan([setting], "promptfl,zeroshot", (0, 1), tmp_path / "here")
    here = comparison.document(comparison.run(cells, jobs=0))["cells"]
    there = json.loads((tmp_path / "out" / "results.json").read_text())["cells"]
    assert [one["summary"] for one in here] == [one["summary"] for one in there]


def test_runs_of_a_worker_share_features_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    original = storage.read_file

    def counted(path: Path, **options: Any) -> Any:
        opened.append(path.name)
        return original(path, **options)

    monkeypatch.setattr(storage, "read_file", counted)
    for things in (caching.FEATURES, caching.BACKBONES):  # limits are restored afterwards
        monkeypatch.setattr(things, "limit", 0)
    alone = comparison.run(toy_plan(tmp_path / "alone", "zeroshot"), jobs=0)[0].summary
    for limit, expected in ((2**30, 3), (0, 6)):
        opened.clear()
        workers.keep_open(limit)
        outcomes = comparison.run(toy_plan(tmp_path / str(limit), "zeroshot", (0, 1)), jobs=0)
        for outcome in outcomes:  # which images are left to calibrate on depends on the seed
            same = {**outcome.summary, **{key: alone[key] for key in ("kept", "cross_alarm")}}
            assert same == alone
        assert len(opened) == expected  # train, test and one OOD set, for one run or for each
    caching.FEATURES.clear()
    caching.BACKBONES.clear()


def test_the_least_recently_used_goes_first() -> None:
    few = caching.ProcessCache(limit=2)
    made: list[str] = []

    def make(name: str) -> str:
        made.append(name)
        return name

    for name in ("a", "b", "a", "c", "a", "b"):
        assert few.get(name, partial(make, name), size=1) == name
    assert made == ["a", "b", "c", "b"]
    assert caching.ProcessCache().get("a", lambda: 1, size=1) == 1  # no limit: nothing is kept


def test_jobs_by_device() -> None:
    assert workers.default_jobs(["cpu"]) == workers.cores()
    assert workers.default_jobs(["cuda", "cpu"]) <= workers.GPU_JOBS
    with pytest.raises(ConfigError, match="--jobs"):
        workers.run_jobs([], print, workers=-1)


def test_the_command_prints_tables_and_codes(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data")
    common = ["--seeds=0,1", f"--out={tmp_path / 'out'}", "--jobs=0", "--presets=absent"]
    call = ["compare", "--settings", str(setting), "--methods", "zeroshot", *common]
    missing = CliRunner().invoke(app, [*call, "--no-run"])
    assert missing.exit_code == 0 and "| zeroshot | 0 of 2 |" in missing.stdout
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.stderr
    assert "[2/2] toy zeroshot seed 1: finished" in result.stderr
    assert result.stdout.strip() == (tmp_path / "out" / "toy.md").read_text().strip()
    document = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert is_intact(written) and document == {"cells": written["cells"]}
    values = [100 * cell["summary"]["accuracy_own"] for cell in document["cells"]]
    assert f"| zeroshot | {np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} |" in result.stdout
    call[4] = "zeroshot:partition.clients=99,zeroshot"
    failed = CliRunner().invoke(app, call)
    assert failed.exit_code == 2 and "99 clients" in failed.stderr and "2 |" in failed.stdout


def test_methods_without_tuned_settings_are_named(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data")
    (tmp_path / "zeroshot.toml").write_text('[method]\nname = "zeroshot"\n')
    call = ["compare", str(setting), f"--out={tmp_path / 'out'}", "--no-run", "--seeds=1"]
    call += [f"--presets={tmp_path}", "--methods=zeroshot,promptfl:context_tokens=2"]
    told = " ".join(CliRunner().invoke(app, call).stderr.split())
    assert "note: no tuned settings for promptfl in" in told and "--methods promptfl --wr" in told
    (tmp_path / "promptfl@toy.toml").write_text("")
    assert "no tuned settings" not in CliRunner().invoke(app, call).stderr
    call[-2] = "--untuned"
    assert "no tuned settings" not in CliRunner().invoke(app, call).stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--methods=focop"], "'focoop'"),
        (["--methods=fedprox"], "promptfl:federation.prox=0.1"),
        (["--methods=zeroshot", "--seeds=a"], "cannot read seeds 'a': write how many, 3, or"),
        (["--methods=zeroshot", "--seeds=0"], "says how many seeds"),
        (["--methods=zeroshot", "--seeds=1,1"], "twice"),
        (["--methods=zeroshot:scor=1"], "method.scor"),
    ],
)
def test_wrong_usage_is_refused(tmp_path: Path, arguments: list[str], told: str) -> None:
    setting = write_setting(tmp_path / "data")
    result = CliRunner().invoke(app, ["compare", str(setting), *arguments, "--out=never"])
    assert result.exit_code == 2 and told in result.stderr, result.stderr
    assert CliRunner().invoke(app, ["compare", "--methods=zeroshot"]).exit_code == 2


def test_live_table_shows_finished_and_running(tmp_path: Path) -> None:
    one, two, other = toy_plan(tmp_path, "zeroshot,promptfl,promptfl:federation.lr=1")
    outcomes = [
        comparison.Outcome(one, "finished", 0, summary(0.25)),
        comparison.Outcome(two, "running", 1),
        comparison.Outcome(other, "failed", error="x"),
    ]
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(live_comparison(outcomes))
    console.file.close()
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["zeroshot", "1/1", "25.0", "12.5", "75.0", "50.0", "90.0"] in rows
    assert ["promptfl", "0/1", "(1/2)"] in rows
    assert ["promptfl:federation.lr=1", "0/1", "(1", "failed)"] in rows
    assert "1 of 3 runs finished, 1 running, 1 failed" in " ".join(map(" ".join, rows))


def test_the_plain_command_line_runs_whole_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = write_setting(tmp_path / "data")
    files = [setting.with_name(f"{name}.toml") for name in ("one", "two")]
    for path, name in zip(files, ("zeroshot", "promptfl"), strict=True):
        path.write_text(setting.read_text() + f'\n[method]\nname = "{name}"\n')
    common = ["--seeds=0,1", f"--out={tmp_path / 'out'}", "--jobs=0"]
    assert plain_commands.main(["compare", *map(str, files), *common]) == 0
    assert (tmp_path / "out" / "runs" / "one" / "seed0" / "config.toml").exists()
    shown = capsys.readouterr()
    assert "| one | " in shown.out and "| two | " in shown.out
    assert "runs two seed 1: finished" in shown.err
    assert plain_commands.main(["compare", "absent.toml", *common]) == 2
    assert "absent.toml" in capsys.readouterr().err
