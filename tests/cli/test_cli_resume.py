"""The command line where a run is stopped, killed, resumed or repeated."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from focoop import runs
from focoop.cli.demo import demo_config
from focoop.config import loading
from tests.toy_command import FAST, PRIVATE, ROOT, TINY, call


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def start_run(path: Path, *settings: str) -> "subprocess.Popen[str]":
    threads = str(torch.get_num_threads())  # bits depend on how sums are divided
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": threads}
    return subprocess.Popen(
        [sys.executable, "-m", "focoop", "run", *settings, "--out", str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Children of a job in the background would inherit that Ctrl-C is ignored.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_round(path: Path, process: "subprocess.Popen[str]", wanted: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (path / runs.STATE).exists() and runs.RunFolder.open(path).last_round() >= wanted:
            return
        time.sleep(0.01)
    raise AssertionError(f"the run ended early: {process.communicate()[1]}")


def results(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in runs.TIMED
    }


@pytest.mark.slow
def test_kill_and_resume_end_with_the_same_bits(tmp_path: Path) -> None:
    settings = [*PRIVATE, "--set=federation.rounds=4", "--set=federation.evaluate_every=0"]
    killed = tmp_path / "killed"
    process = start_run(killed, *settings)
    wait_for_round(killed, process, 2)
    process.kill()
    process.communicate()
    assert runs.RunFolder.open(killed).status == "killed"
    resumed = call("run", *settings, "--out", str(killed), "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    assert "going on after round" in resumed.stderr
    assert call("run", *settings, "--out", str(tmp_path / "whole")).exit_code == 0
    assert results(killed) == results(tmp_path / "whole")
    assert any(name.startswith("clients/") for name in results(killed))


@pytest.mark.slow
def test_interrupt_sets_the_status_and_tells_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = start_run(path, *FAST, "--set=federation.rounds=500")
    wait_for_round(path, process, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in errors and "Traceback" not in errors
    assert runs.RunFolder.open(path).status == "interrupted"


@pytest.mark.slow
def test_a_run_that_never_began_does_not_stand_in_the_way(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    refused = call("run", *FAST, "--set=partition.clients=200", *out)
    assert refused.exit_code == 2 and "partition.clients to 100 or fewer" in refused.stderr
    assert call("run", *FAST, *out).exit_code == 0
    again = call("run", *FAST, "--set=seed=7", *out)  # a run that did begin is kept
    assert again.exit_code == 6 and "another configuration" in again.stderr


@pytest.mark.slow
def test_demo_compares_four_methods(tmp_path: Path) -> None:
    result = call("demo", *TINY, "--set=federation.rounds=1", "--out", str(tmp_path / "d"))
    assert result.exit_code == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["zero-shot", "PromptFL", "FOCoOp", "FOCoOp+"] in lines
    for column in ("own", "all", "corrupted", "fpr95", "auroc", "alarm"):
        assert column in result.stdout
    for method in ("zeroshot", "promptfl", "focoop", "focoop_plus"):
        assert runs.RunFolder.open(tmp_path / "d" / method).status == "finished"
        assert f"run folder: {tmp_path / 'd' / method}" in result.stdout


@pytest.mark.slow
def test_demo_resumes_what_is_unfinished_and_repeats_what_is_finished() -> None:
    settings = [*TINY, "--set=federation.rounds=0"]
    first = json.loads(call("demo", *settings, "--json").stdout)
    assert [row["folder"] for row in first] == [
        f"runs/demo/{method}" for method in ("zeroshot", "promptfl", "focoop", "focoop_plus")
    ]
    runs.RunFolder.open("runs/demo/focoop", writable=True).finish("interrupted")
    resumed = call("demo", *settings, "--json")
    assert json.loads(resumed.stdout) == first
    assert "runs/demo/zeroshot is finished" in resumed.stderr
    second = json.loads(call("demo", *settings, "--json").stdout)
    assert second[2]["folder"] == "runs/demo-2/focoop"
    assert [row["summary"] for row in second] == [row["summary"] for row in first]
    changed = json.loads(call("demo", *settings, "--set=seed=1", "--json").stdout)
    assert changed[0]["folder"] == "runs/demo-3/zeroshot"


def test_demo_file_is_what_the_demo_runs() -> None:
    assert loading.load(ROOT / "configs" / "demo.toml") == demo_config("focoop")
