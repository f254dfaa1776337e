"""The command line as a user meets it: output, files, exit codes."""

import io
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from focoop import runs
from focoop.cli import info, screen
from focoop.cli.console import Screen
from focoop.cli.doctor import Check
from focoop.cli.screen import Rounds
from focoop.config import loading, schema
from focoop.methods import available
from focoop.tracking import RoundEvent
from tests.toy_command import FAST, SlowClock, call


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
    for name in ("run", "evaluate", "encode", "data", "methods", "doctor", "demo", "config"):
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
        (["evaluate", "nowhere"], 6, "does not exist"),
        (["encode", "folder:nowhere"], 3, "nowhere"),
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
    start, *trained = [json.loads(line) for line in (path / runs.ROUNDS).read_text().splitlines()]
    assert (start["round"], [entry["round"] for entry in trained]) == (0, [1, 2])
    assert all(entry["bytes_up"] > 0 and entry["bytes_down"] > 0 for entry in trained)
    assert loading.load(path / "config.toml").federation.rounds == 2
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


def test_evaluate_repeats_the_last_round(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setenv("COLUMNS", "60")
    assert broken(table, call("evaluate", str(path)).stdout, 60) == set()


def test_plain_output_has_a_line_per_round_and_no_control_codes(tmp_path: Path) -> None:
    result = call("run", *FAST, "--set", "federation.rounds=1", "--out", str(tmp_path / "r"))
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0].startswith("promptfl  round 0/1  own classes ")
    assert lines[1].startswith("promptfl  round 1/1  loss ") and "own classes" in lines[1]
    assert lines[-1] == f"run folder: {tmp_path / 'r'}"


def a_round(number: int, loss: float, evaluation: dict[str, Any] | None) -> RoundEvent:
    metrics = {"train/loss": loss}
    return RoundEvent("round", "x", "", Path("x"), {}, 25, number, metrics, evaluation=evaluation)


def test_live_progress_on_a_terminal() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    with Rounds(console, 3, "focoop") as bar:
        bar.show(a_round(1, 2.5, None))
        bar.show(a_round(2, 2.25, {"accuracy_own": 0.5, "ood": {}}))
    shown = stream.getvalue()
    assert "2/3" in shown and "loss 2.250" in shown
    assert "focoop  round 2/3  loss 2.250  own classes 50.0" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_round_lines_fit_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ood = {name: {"fpr95": 0.5, "auroc": 0.6} for name in ("dtd_32px", "sun_32px")}
    summary = {"accuracy_own": 0.5, "accuracy_all": 0.25, "ood": ood, "server": {"epsilon": 3.21}}
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(Rounds, "explained", False)
    for _ in range(2):
        with Rounds(console, 25, "focoop_plus") as bar:
            bar.show(a_round(7, 2.5, summary))
    assert stream.getvalue().count("means over the OOD sets") == 1  # said once
    line = next(line for line in stream.getvalue().splitlines() if "own" in line)
    line = line.replace("\x1b[2K", "").strip("\r")
    assert len(line) <= width
    assert line.startswith("focoop_plus  round  7/25  loss 2.500  epsilon 3.21  own 50.0")


def broken(whole: str, narrow: str, width: int) -> set[str]:
    """Words of an output that are not whole on a narrow screen; refuses lines that do not fit."""
    for line in narrow.splitlines():
        assert len(line) <= width or len(line.split()) == 1, line  # a long path stays whole
    pictures, headers = set("─░▒▓█ "), {"name", "dataset", "folder"}  # lists have no such headers
    wanted = {word for word in whole.split() if not set(word) <= pictures}
    found = {part for word in narrow.split() for part in (word, word.rstrip(":"))}
    return wanted - found - headers


@pytest.mark.parametrize(
    "command", ["runs", "methods", "config --untuned", "data list", "data show"]
)
def test_no_word_is_broken_on_a_narrow_screen(
    command: str, finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*command.split(), *([str(finished[0].parent)] if command == "runs" else [])]
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = call(*arguments).stdout
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        narrow = call(*arguments).stdout
        assert broken(whole, narrow, width) == set()
        if command.startswith("config"):
            assert loading.from_dict(tomllib.loads(narrow)) == schema.RunConfig()


def test_a_screen_leaves_brackets_and_long_paths_as_they_are() -> None:
    path = "runs/" + "a-long-name-" * 5
    stream = io.StringIO()
    console = Screen(file=stream, force_terminal=True, width=40, color_system=None)
    console.print(f"run folder with [bold] and :smile: in its name: {path} (new)", hang=2)
    shown = stream.getvalue().splitlines()
    assert shown == [
        "run folder with [bold] and :smile: in",
        "  its name:",
        f"  {path}",
        "  (new)",
    ]


def test_findings_of_the_doctor_break_between_words() -> None:
    check = Check(
        "datasets", "note", "none of 25 in a/folder/of/data", "focoop data list shows all"
    )
    shown = info._finding(check, 40).plain
    assert broken(f"note {check.topic}: {check.found} -> {check.advice}", shown, 40) == set()
    assert all(line.startswith(" " * 6) for line in shown.splitlines()[1:])


def test_a_pipe_gets_tables_of_their_natural_width(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    header, rule, row = call("runs", str(finished[0].parent)).stdout.splitlines()
    assert header.split()[:2] == ["folder", "method"]
    assert len(rule) == max(len(header), len(row)) and row == row.rstrip()
    assert row.startswith(str(finished[0]))


def test_methods_and_config_tell_what_the_code_says() -> None:
    shown = call("methods").stdout
    assert [row["name"] for row in json.loads(call("methods", "--json").stdout)] == list(
        available()
    )
    assert all(name in shown for name in available())
    text = call("config", "--set", "seed=3", "--untuned").stdout
    assert loading.from_dict(tomllib.loads(text)) == schema.RunConfig(seed=3)
    assert "# communication rounds T" in text
    assert json.loads(call("config", "--json").stdout)["federation"]["rounds"] == 25


@pytest.mark.slow
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
    assert "there is no folder nowhere" in call("runs", "nowhere").stderr


@pytest.mark.slow
def test_features_encode_a_folder_once_and_save_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(screen, "time", SlowClock())  # else quick work has no line
    for number, name in enumerate(("cat", "dog")):
        folder = tmp_path / "images" / "train" / name
        folder.mkdir(parents=True)
        for j in range(2):
            Image.new("RGB", (40, 40), (90 * number, 40 * j, 200)).save(folder / f"{j}.png")
    spec = f"folder:{tmp_path / 'images'}"
    saved = tmp_path / "mine.safetensors"
    result = call("encode", spec, "--split", "train", "--save", str(saved))
    assert result.exit_code == 0, result.stderr
    assert "4 images, 2 classes, 256 dimensions" in result.stdout
    assert "encoding images train: 4 images in" in result.stderr
    again = call("encode", f"file:{saved}", "--split", "train", "--json")
    assert json.loads(again.stdout)[0]["images"] == 4
    corrupted = call("encode", spec, "--split", "train", "--corruption", "brightness", "--json")
    assert [row["dataset"] for row in json.loads(corrupted.stdout)] == [
        f"{spec}#brightness@{severity}" for severity in range(1, 6)
    ]


def test_methods_shows_the_settings_of_one_by_their_group() -> None:
    shown = call("methods", "fedotp").stdout
    assert shown.index("paper:") < shown.index("method.epsilon") < shown.index("engineering:")
    assert shown.index("engineering:") < shown.index("method.max_iterations")
    rows = json.loads(call("methods", "fedotp", "--json").stdout)
    assert {"group": "engineering", "setting": "method.max_iterations", "default": 100} in [
        {key: row[key] for key in ("group", "setting", "default")} for row in rows
    ]
    wrong = call("methods", "fedopt")
    assert wrong.exit_code == 2 and "fedotp" in wrong.stderr
