"""Runs on a borrowed machine: what is copied there, what comes back, what goes on."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from focoop.experiments.comparison import Outcome
from focoop.experiments.grid import Cell
from focoop.features.storage import quantise, write_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import device_runs  # noqa: E402 (a script, found by its folder)


@pytest.fixture(autouse=True)
def no_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool names its folder of features for the whole process: not for other tests."""
    monkeypatch.setenv("FOCOOP_FEATURES", "")


def feature_file(path: Path) -> Path:
    """Six images, four of them to train on, two with patches out of order."""
    pooled = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    patches, scale = quantise(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)))
    tensors = {
        "pooled": pooled.half(),
        "labels": torch.arange(6, dtype=torch.int32) % 2,
        "split": torch.tensor([0, 0, 1, 0, 1, 0], dtype=torch.int8),
        "patches_q": patches,
        "patches_scale": scale,
        "patches_index": torch.tensor([4, 1], dtype=torch.int32),
    }
    names = {"classes": json.dumps(["a", "b"]), "splits": json.dumps(["train", "test"])}
    write_file(path, tensors, {**names, "patches": "lf_a"})
    return path


def test_a_slim_file_holds_what_its_group_reads(tmp_path: Path) -> None:
    whole = feature_file(tmp_path / "x.safetensors")
    tensors = load_file(whole)
    device_runs.slim(whole, tmp_path / "train.safetensors", frozenset({False}), "train")
    train = load_file(tmp_path / "train.safetensors")
    assert set(train) == {"pooled", "labels", "split"}
    assert torch.equal(train["pooled"], tensors["pooled"][[0, 1, 3, 5]])
    device_runs.slim(whole, tmp_path / "patched.safetensors", frozenset({True}), "")
    patched = load_file(tmp_path / "patched.safetensors")
    assert torch.equal(patched["pooled"], tensors["pooled"][[1, 4]])
    assert torch.equal(patched["patches_q"], tensors["patches_q"][[1, 0]])
    assert patched["patches_index"].tolist() == [0, 1]
    device_runs.slim(whole, tmp_path / "both.safetensors", frozenset({True, False}), "")
    assert load_file(tmp_path / "both.safetensors").keys() == tensors.keys()


def test_every_setting_is_in_one_group_and_every_trained_method_is_tuned() -> None:
    from focoop.methods import Answering, available

    grouped = [name for names in device_runs.GROUPS.values() for name in names]
    settings = {path.stem for path in (ROOT / "configs" / "settings").glob("*.toml")}
    assert sorted(grouped) == sorted(settings)
    tuned = {name for methods, _ in device_runs.TUNED.values() for name in methods.split(",")}
    assert tuned == {name for name, kind in available().items() if issubclass(kind, Answering)}


def test_what_was_chosen_is_unpacked(tmp_path: Path) -> None:
    chosen = {
        "promptfl": {"page": "# page\n", "presets": {"promptfl": "# Chosen\n"}},
        "fedpgp": {"page": "# failed\n", "presets": {}},
    }
    (tmp_path / "tune.json").write_text(json.dumps(chosen))
    arguments = ["unpack", str(tmp_path / "tune.json")]
    arguments += ["--presets", str(tmp_path / "presets"), "--pages", str(tmp_path / "pages")]
    assert device_runs.main(arguments) == 0
    assert [path.name for path in (tmp_path / "presets").iterdir()] == ["promptfl.toml"]
    assert (tmp_path / "pages" / "fedpgp.md").read_text() == "# failed\n"


@pytest.mark.slow
def test_a_grid_stops_in_time_and_leaves_out_what_is_done(tmp_path: Path) -> None:
    common = ["--features", str(tmp_path), "--runs", str(tmp_path / "runs"), "--jobs", "0"]
    common += ["--device", "cpu", "--methods", "zeroshot", "--out", str(tmp_path / "out")]
    common += ["--set", 'data.id="demo:cifar100"', "--set", "data.corrupted=[]"]
    common += ["--set", 'data.ood=["demo:dtd_32px"]', "--set", "data.with_patches=false"]
    assert device_runs.main(["grid-3", *common, "--seeds", "1"]) == 0
    written = tmp_path / "out" / "grid-3.json"
    (first,) = json.loads(written.read_text())["cells"]
    assert first["status"] == "finished" and first["setting"] == "cifar100-patches"
    done = tmp_path / "done.json"
    written.rename(done)
    assert device_runs.main(["grid-3", *common, "--seeds", "0,1", "--done", str(done)]) == 0
    seeds = [cell["seed"] for cell in json.loads(written.read_text())["cells"]]
    assert sorted(seeds) == [0, 1]


def test_a_trial_that_diverges_does_not_hold_up_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_runs, "TUNED", {("cifar100-patches",): ("promptfl", 2)})
    call = ["tune", "--features", str(tmp_path), "--runs", str(tmp_path / "runs")]
    call += ["--out", str(tmp_path / "out"), "--trials", "2"]

    def too_slow(*given: object, **options: object) -> None:
        raise device_runs.OutOfTime

    monkeypatch.setattr(device_runs.comparison, "run", too_slow)
    assert device_runs.main(call) == 3 and not (tmp_path / "out").exists()

    def run(cells: list[Cell], *given: object, **options: object) -> list[Outcome]:
        numbers = {"auroc": 0.5, "fpr95": 0.5, "fpr95_oodpos": 0.5}
        summary = {
            **dict.fromkeys(("accuracy_own", "accuracy_own_alone", "accuracy_all"), 0.5),
            "cross_alarm": 0.1,
            "frontier": {"ausuc": 0.5},
        }
        return [
            Outcome(cells[0], "failed", error="training diverged"),
            Outcome(cells[1], "finished", 25, {**summary, "ood": {"x": numbers}}),
        ]

    monkeypatch.setattr(device_runs.comparison, "run", run)
    assert device_runs.main(call) == 0
    chosen = json.loads((tmp_path / "out" / "tune.json").read_text())["promptfl"]
    assert (
        "training diverged" in chosen["page"]
        and ": 50.00 (first trial: " in chosen["presets"]["promptfl"]
    )
