"""Run folders of two versions: equal to the bit, or said where they differ."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from focoop.config.loading import load
from focoop.methods import available

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import compare_commits  # noqa: E402 (scripts, found by their folder)
import compare_folders  # noqa: E402
import toy_cases  # noqa: E402

# A package that stands for a version of focoop: its "run" writes the arguments to a run folder.
STAND_IN = """
import json, pathlib, sys
arguments = sys.argv[1:]
if arguments[0] == "methods":
    print(json.dumps([{"name": name} for name in ("alpha", "beta", "gamma")]))
    raise SystemExit
folder = pathlib.Path(arguments[arguments.index("--out") + 1])
folder.mkdir(parents=True)
method = next(text.split("=")[2] for text in arguments if text.startswith("--set=method.name"))
(folder / "config.toml").write_text(pathlib.Path("toy.toml").read_text())
(folder / "manifest.json").write_text(json.dumps(str(folder)))
(folder / "metrics.jsonl").write_text(json.dumps({"loss": LOSS[method]}) + "\\n")
if LOSS[method] is None:
    sys.exit("error: no loss for " + method)
"""


def run_folder(path: Path) -> Path:
    (path / "clients" / "0000").mkdir(parents=True)
    tensors = {"shared/context": torch.ones(2, 3), "memory/step": torch.tensor(2)}
    save_file(tensors, path / "state.safetensors", {"round": "2"})
    save_file(
        {"own": torch.ones(3).bfloat16()}, path / "clients" / "0000" / "round-0002.safetensors"
    )
    (path / "metrics.jsonl").write_text('{"round": 1, "loss": 0.5}\n{"round": 2, "loss": 0.25}\n')
    (path / "names.json").write_text('{"classes": ["ant", "bee"]}')
    (path / "config.toml").write_text("seed = 0\n[robust]\nrule = 'none'\nparts = [1, 2]\n")
    (path / "log.txt").write_text(f"started in {path}")
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return run_folder(tmp_path / "old"), run_folder(tmp_path / "new")


def test_equal_folders_agree_whatever_their_logs_say(pair: tuple[Path, Path]) -> None:
    assert compare_folders.compare_folders(*pair) == (5, ())


def test_one_bit_of_a_tensor_is_found(pair: tuple[Path, Path]) -> None:
    changed = torch.ones(2, 3)
    changed.view(torch.int32)[1, 2] ^= 1
    tensors = {"shared/context": changed, "memory/step": torch.tensor(2)}
    save_file(tensors, pair[1] / "state.safetensors", {"round": "2"})
    told = compare_folders.compare_folders(*pair)[1]
    assert told == ("state.safetensors: shared/context",)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "metrics.jsonl",
            '{"round": 1, "loss": 0.5}\n{"round": 2, "loss": 0.26}\n',
            "line[1].loss",
        ),
        (
            "metrics.jsonl",
            '{"round": 1.0, "loss": 0.5}\n{"round": 2, "loss": 0.25}\n',
            "line[0].round",
        ),
        ("names.json", '{"classes": ["ant"]}', "-classes[1]"),
        ("config.toml", "seed = 1\n[robust]\nrule = 'none'\nparts = [1, 2]\n", "seed"),
    ],
)
def test_other_values_are_found(pair: tuple[Path, Path], name: str, text: str, told: str) -> None:
    (pair[1] / name).write_text(text)
    assert compare_folders.compare_folders(*pair)[1] == (f"{name}: {told}",)


def test_missing_files_are_found(pair: tuple[Path, Path]) -> None:
    shutil.rmtree(pair[1] / "clients")
    (found,) = compare_folders.compare_folders(*pair)[1]
    assert found.startswith("clients/0000/round-0002.safetensors: only in")


def test_other_names_of_settings_must_be_said(pair: tuple[Path, Path]) -> None:
    text = "seed = 0\n[defence]\nkind = 'none'\npieces = [1, 2]\nnew = 3\n"
    (pair[1] / "config.toml").write_text(text)
    told = compare_folders.compare_folders(*pair)[1]
    assert told == ("config.toml: -robust.rule, -robust.parts[0], -robust.parts[1] and 4 more",)
    to_new = {"robust.rule": "defence.kind", "robust.parts": "defence.pieces"}
    assert compare_folders.compare_folders(*pair, {"defence.new": ""}, to_new)[1] == ()
    to_new = {"robust.rule": "", "robust.parts": "defence.pieces"}
    told = compare_folders.compare_folders(*pair, {"defence.new": ""}, to_new)[1]
    assert told == ("config.toml: +defence.kind",)


def test_a_setting_may_be_new_for_some_methods_alone(pair: tuple[Path, Path]) -> None:
    assert compare_folders.compare_folders(*pair, {"robust.rule": ""})[1] == ()


def test_new_metrics_must_be_said(pair: tuple[Path, Path]) -> None:
    lines = '{"round": 1, "loss": 0.5}\n{"round": 2, "loss": 0.25, "clients": [{"margin": 1}]}\n'
    (pair[1] / "metrics.jsonl").write_text(lines)
    told = compare_folders.compare_folders(*pair)[1]
    assert told == ("metrics.jsonl: +line[1].clients[0].margin",)
    assert compare_folders.compare_folders(*pair, measured=["margin"])[1] == ()
    assert compare_folders.compare_folders(*pair, measured=["loss"])[1] == told


def version(folder: Path, names: dict[str, str], **losses: float | None) -> compare_commits.Version:
    (folder / "focoop").mkdir(parents=True)
    (folder / "focoop" / "__init__.py").touch()
    (folder / "focoop" / "__main__.py").write_text(f"LOSS = {losses}\n{STAND_IN}")
    return compare_commits.Version(folder.name, folder, folder / "work", names, preload=())


def test_versions_are_run_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to_new = {"partition.shots": "partition.images"}
    old = version(tmp_path / "a", {}, alpha=0.5, beta=0.5, gamma=0.5)
    new = version(tmp_path / "b", to_new, alpha=0.5, beta=0.75, gamma=None)
    outcomes = compare_commits.compare_versions(old, new, tmp_path / "toy")
    table = capsys.readouterr().out
    assert "alpha      2  equal" in table
    assert "beta       2  differs\n  metrics.jsonl: line[0].loss\n" in table
    assert "gamma      0  failed" in table and "no loss for gamma" in table
    assert "1 of 3 cases are equal" in table
    assert [compare_commits.exit_status(outcomes[:n]) for n in (1, 2, 3)] == [0, 1, 2]


def test_what_is_no_version_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_commits.main([str(tmp_path), str(ROOT)]) == 2
    assert "neither a folder with a package focoop nor a git revision" in capsys.readouterr().err


def test_every_case_is_a_configuration_of_this_version(tmp_path: Path) -> None:
    """The settings of the cases exist; the toy files are there."""
    toy_cases.write_files(tmp_path)
    lines = [f"{key} = {value}" for key, value in toy_cases.toy_setting(tmp_path).items()]
    (tmp_path / "toy.toml").write_text("\n".join(lines))
    cases = toy_cases.all_cases(list(available()), tmp_path)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        config = load(tmp_path / "toy.toml", [*case.settings, *case.longer])
        assert case.name.split(",")[0] == config.method.name
        assert config.partition.shots > 0
