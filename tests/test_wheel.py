"""The wheel: what a user who has no checkout gets, built offline and run elsewhere."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from focoop.config.loading import RunConfig

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installation; a pure wheel is installed by unpacking it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("focoop-*.whl")
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(folder / "site")
    return folder / "site"


def focoop(installed: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(installed), "FOCOOP_CACHE": str(folder / "c")}
    environment |= {"FOCOOP_DATA": str(folder / "data"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "focoop", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
def test_every_configuration_is_in_the_wheel_once(installed: Path) -> None:
    ours = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.toml")}
    there = {path.relative_to(installed) for path in installed.rglob("*.toml")}
    assert there == {Path("focoop/configs") / path for path in ours} and len(ours) > 20
    assert not (ROOT / "focoop" / "configs").exists()  # a copy would be taken before the original
    strangers = {path.name for path in installed.iterdir()} - {"focoop"}
    assert all(name.endswith(".dist-info") for name in strangers)


@pytest.mark.slow
def test_a_shipped_configuration_runs_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    told = focoop(installed, tmp_path, "doctor", "cifar100-vitb16", "--json")
    found = {check["topic"]: check for check in json.loads(told.stdout)}
    assert str(installed) in found["focoop"]["found"]  # not the checkout
    assert "focoop run fetches it" in found["this run's cifar100"]["advice"]
    resolved = json.loads(focoop(installed, tmp_path, "config", "cifar100-rn50", "--json").stdout)
    assert resolved["backbone"]["name"] == "openclip:RN50:openai" and resolved["data"]["fetch"]
    few = ("federation.rounds=1", "negatives.count=2", "partition.shots=1")
    options = [word for setting in few for word in ("--set", setting)]
    done = focoop(installed, tmp_path, "run", "demo", *options, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["round"] == 1
    wrong = focoop(installed, tmp_path, "run", "cifar100-vitb61")
    assert wrong.returncode == 2 and "nearest is 'cifar100-vitb16'" in wrong.stderr


@pytest.mark.slow
def test_tuned_presets_come_with_the_wheel(installed: Path, tmp_path: Path) -> None:
    tuned = tomllib.loads((ROOT / "configs" / "methods" / "promptfl.toml").read_text("utf-8"))
    assert tuned["federation"]["lr"] != RunConfig().federation.lr
    (tmp_path / "mine.toml").write_text("[federation]\nrounds = 0\n", "utf-8")
    words = ["mine.toml", "--methods", "promptfl", "--seeds", "0", "--jobs", "0", "--out", "runs"]
    done = focoop(installed, tmp_path, "compare", *words)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("runs/mine/promptfl/seed0/config.toml")
    assert tomllib.loads(kept.read_text("utf-8"))["federation"]["lr"] == tuned["federation"]["lr"]


@pytest.mark.slow
def test_a_setting_of_the_wheel_says_what_to_fetch_and_takes_ready_features(
    installed: Path, tmp_path: Path
) -> None:
    for words in (
        ["run", "settings/cifar100"],
        ["compare", "settings/cifar100", "--methods", "zeroshot", "--seeds", "0"],
    ):
        told = focoop(installed, tmp_path, *words)
        assert told.returncode == 3 and "focoop data fetch cifar100 dtd sun" in told.stderr
        assert "CIFAR-100, 169 MB" in told.stderr and not (tmp_path / "runs").exists()
    ready = tmp_path / "ready"
    ready.mkdir()
    for packed in (installed / "focoop" / "assets" / "demo").glob("*.gz"):
        (ready / packed.name).write_bytes(packed.read_bytes())  # mini's features, called the same
    words = ["run", "settings/cifar100", "--set", "method.name=zeroshot"]
    words += ["--features", "ready", "--out", "out", "--json"]
    done = focoop(installed, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert set(summary["ood"]) == {"dtd_32px", "sun_32px", "dtd", "sun"}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    assert manifest["data_sources"]["cifar100"]["served by"] == "ready features"
