"""The command line as a user meets it: output, files, exit codes, interruption, resuming."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

from focoop import config, runs
from focoop.cli import app, screen
from focoop.cli.run import demo_config
from focoop.cli.screen import Rounds
from focoop.methods import available

ROOT = Path(__file__).resolve().parents[1]
TINY = [
    "--set=partition.clients=2",
    "--set=partition.shots=1",
    "--set=federation.epochs=1",
    "--set=federation.rounds=2",
    "--set=federation.batch_size=64",
    "--set=data.corrupted=[]",
    '--set=data.ood=["demo:dtd_32px"]',
]
FAST = [*TINY, "--set=method.name=promptfl"]
PRIVATE = [*TINY, "--set=method.bos=false", "--set=negatives.count=10"]  # focoop keeps tensors


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished run and what `--json` said about it."""
    path = tmp_path_factory.mktemp("cli") / "run"
    result = call("run", *FAST, "--out", str(path), "--json")
    assert result.exit_code == 0, result.stderr
    return path, json.loads(result.stdout)


def test_help_names_every_command() -> None:
    result = call("--help")
    assert result.exit_code == 0
    for name in ("run", "evaluate", "features", "data", "methods", "doctor", "demo", "config"):
        assert f" {name} " in result.stdout
    assert call("--version").stdout.startswith("focoop ")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run", "--set", "federation.roundz=1"], 2, "'federation.rounds'"),
        (["run", "absent.toml"], 2, "absent.toml"),
        (["run", "--nonsense"], 2, "nonsense"),
        (["run", "--set", "partition.clients=101"], 2, "101 clients"),
        (["run", "--set", "data.id=demo:cifar10"], 3, "cifar100"),
        (["run", "--set", "data.id=pack:cifar100"], 3, "demo:NAME"),
        (["run", "--set", "backbone.name=maxi"], 4, "mini"),
        (["run", "--device", "abacus"], 4, "abacus"),
        (["evaluate", "nowhere"], 6, "not a run folder"),
        (["features", "folder:nowhere"], 3, "nowhere"),
        (["data", "show", "--set", "partition.kind=dirichle"], 2, "'dirichlet'"),
    ],
)
def test_exit_codes_and_messages(arguments: list[str], code: int, told: str) -> None:
    result = call(*arguments)
    assert result.exit_code == code, result.stderr
    assert told in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_json_is_the_only_thing_on_stdout(finished: tuple[Path, dict[str, Any]]) -> None:
    path, document = finished
    assert document["status"] == "finished"
    folder = runs.RunFolder.open(path)
    assert folder.status == "finished"
    last = folder.metrics()[-1]
    assert last["round"] == 2
    for key in ("accuracy_own", "accuracy_all", "cross_alarm", "ood"):
        assert document["summary"][key] == last[key]


def test_a_run_folder_holds_all_that_was_promised(finished: tuple[Path, dict[str, Any]]) -> None:
    path, _ = finished
    manifest = json.loads((path / "manifest.json").read_text())
    for key in ("code", "versions", "seeds", "hardware", "started", "ended", "config_hash"):
        assert key in manifest
    assert manifest["data_hashes"] and manifest["backbone_fingerprint"]
    start, *trained = manifest["rounds"]
    assert (start["round"], [entry["round"] for entry in trained]) == (0, [1, 2])
    assert all(entry["bytes_up"] > 0 and entry["bytes_down"] > 0 for entry in trained)
    assert config.load(path / "config.toml").federation.rounds == 2
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2]


def test_running_again(finished: tuple[Path, dict[str, Any]]) -> None:
    path, document = finished
    refused = call("run", *FAST, "--out", str(path))
    assert refused.exit_code == 6 and "--resume" in refused.stderr
    other = call("run", *FAST, "--set", "seed=9", "--out", str(path), "--resume")
    assert other.exit_code == 6 and "seed: 0 -> 9" in other.stderr
    again = call("run", *FAST, "--out", str(path), "--resume", "--json")
    assert again.exit_code == 0 and "nothing left to do" in again.stderr
    for key, value in document["summary"].items():
        assert json.loads(again.stdout)["summary"][key] == value


def test_evaluate_repeats_the_last_round(finished: tuple[Path, dict[str, Any]]) -> None:
    path, document = finished
    before = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    result = call("evaluate", str(path), "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["round"] == 2 and len(found["clients"]) == 2
    for key in ("accuracy_own", "accuracy_all", "cross_alarm", "ood"):
        assert found["summary"][key] == document["summary"][key]
    assert {file: file.read_bytes() for file in path.iterdir() if file.is_file()} == before
    table = call("evaluate", str(path)).stdout
    assert "own classes" in table and "auroc dtd_32px" in table


def test_plain_output_has_a_line_per_round_and_no_control_codes(tmp_path: Path) -> None:
    result = call("run", *FAST, "--set", "federation.rounds=1", "--out", str(tmp_path / "r"))
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0].startswith("promptfl  round 0/1  own classes ")
    assert lines[1].startswith("promptfl  round 1/1  loss ") and "own classes" in lines[1]
    assert lines[-1] == f"run folder: {tmp_path / 'r'}"


def test_live_progress_on_a_terminal() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    with Rounds(console, 3, "focoop") as bar:
        bar.show(1, 2.5, None)
        bar.show(2, 2.25, {"accuracy_own": 0.5, "ood": {}})
    shown = stream.getvalue()
    assert "2/3" in shown and "loss 2.250" in shown
    assert "focoop  round 2/3  loss 2.250  own classes 50.0" in shown


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
        if file.is_file() and file.name not in (runs.MANIFEST, runs.LOCK)
    }


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


def test_interrupt_sets_the_status_and_tells_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = start_run(path, *FAST, "--set=federation.rounds=500")
    wait_for_round(path, process, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in errors and "Traceback" not in errors
    assert runs.RunFolder.open(path).status == "interrupted"


def test_a_run_that_never_began_does_not_stand_in_the_way(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    refused = call("run", *FAST, "--set=partition.clients=200", *out)
    assert refused.exit_code == 2 and "partition.clients to 100 or fewer" in refused.stderr
    assert call("run", *FAST, *out).exit_code == 0
    again = call("run", *FAST, "--set=seed=7", *out)  # a run that did begin is kept
    assert again.exit_code == 6 and "another configuration" in again.stderr


def test_demo_compares_three_methods(tmp_path: Path) -> None:
    result = call("demo", *TINY, "--set=federation.rounds=1", "--out", str(tmp_path / "d"))
    assert result.exit_code == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["zero-shot", "PromptFL", "FOCoOp"] in lines
    for column in ("own", "all", "corrupted", "fpr95", "auroc", "alarm"):
        assert column in result.stdout
    for method in ("zeroshot", "promptfl", "focoop"):
        assert runs.RunFolder.open(tmp_path / "d" / method).status == "finished"
        assert f"run folder: {tmp_path / 'd' / method}" in result.stdout


def test_demo_resumes_what_is_unfinished_and_repeats_what_is_finished() -> None:
    settings = [*TINY, "--set=federation.rounds=0"]
    first = json.loads(call("demo", *settings, "--json").stdout)
    assert [row["folder"] for row in first] == [
        f"runs/demo/{method}" for method in ("zeroshot", "promptfl", "focoop")
    ]
    manifest = Path("runs/demo/focoop/manifest.json")
    manifest.write_text(manifest.read_text().replace('"finished"', '"interrupted"'))
    resumed = call("demo", *settings, "--json")
    assert json.loads(resumed.stdout) == first
    assert "runs/demo/zeroshot is finished" in resumed.stderr
    second = json.loads(call("demo", *settings, "--json").stdout)
    assert second[2]["folder"] == "runs/demo-2/focoop"
    assert [row["summary"] for row in second] == [row["summary"] for row in first]
    changed = json.loads(call("demo", *settings, "--set=seed=1", "--json").stdout)
    assert changed[0]["folder"] == "runs/demo-3/zeroshot"


def test_demo_file_is_what_the_demo_runs() -> None:
    assert config.load(ROOT / "configs" / "demo.toml") == demo_config("focoop")


def test_methods_and_config_tell_what_the_code_says() -> None:
    shown = call("methods").stdout
    assert [row["name"] for row in json.loads(call("methods", "--json").stdout)] == list(
        available()
    )
    assert all(name in shown for name in available())
    text = call("config", "--set", "seed=3").stdout
    assert config.from_dict(tomllib.loads(text)) == config.RunConfig(seed=3)
    assert "# communication rounds T" in text
    assert json.loads(call("config", "--json").stdout)["federation"]["rounds"] == 25


def test_data_show_prints_plots_and_counts(tmp_path: Path) -> None:
    plot = tmp_path / "p.png"
    result = call("data", "show", "--set=partition.clients=4", "--plot", str(plot))
    assert result.exit_code == 0, result.stderr
    assert plot.read_bytes()[:4] == b"\x89PNG"
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:3] for row in rows if row and row[0].isdecimal()] == [
        [str(client), "200", "25"] for client in range(4)
    ]
    document = json.loads(call("data", "show", "--set=partition.clients=4", "--json").stdout)
    counts = np.array(document["train"])
    assert counts.shape == (4, 100) and set(np.unique(counts)) == {0, 8}
    assert (np.array(document["test"]).sum(0) == 20).all()


def test_data_list_and_runs(finished: tuple[Path, dict[str, Any]]) -> None:
    assert "demo:cifar100" in call("data", "list").stdout
    document = json.loads(call("data", "list", "--json").stdout)
    assert "brightness" in document["corruptions"]
    assert "finished" in call("runs", str(finished[0].parent)).stdout
    listed = json.loads(call("runs", str(finished[0].parent), "--json").stdout)
    assert [row["round"] for row in listed] == [2]
    assert "no runs" in call("runs", "nowhere").stdout


def test_features_encode_a_folder_once_and_save_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(screen, "QUICK", 0.0)  # else quick work has no line
    for number, name in enumerate(("cat", "dog")):
        folder = tmp_path / "images" / "train" / name
        folder.mkdir(parents=True)
        for j in range(2):
            Image.new("RGB", (40, 40), (90 * number, 40 * j, 200)).save(folder / f"{j}.png")
    spec = f"folder:{tmp_path / 'images'}"
    saved = tmp_path / "mine.safetensors"
    result = call("features", spec, "--split", "train", "--save", str(saved))
    assert result.exit_code == 0, result.stderr
    assert "4 images, 2 classes, 256 dimensions" in result.stdout
    assert "encoding images train: 4 images in" in result.stderr
    again = call("features", f"file:{saved}", "--split", "train", "--json")
    assert json.loads(again.stdout)[0]["images"] == 4
    corrupted = call("features", spec, "--split", "train", "--corruption", "brightness", "--json")
    assert [row["dataset"] for row in json.loads(corrupted.stdout)] == [
        f"{spec}#brightness@{severity}" for severity in range(1, 6)
    ]
