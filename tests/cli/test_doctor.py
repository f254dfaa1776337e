"""The doctor: finds what is there, names what is missing, never stumbles itself."""

import builtins
import importlib.metadata
import os
import re
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from focoop.api import missing_datasets
from focoop.cli import doctor
from focoop.cli.doctor import findings
from focoop.clip import weights
from focoop.config import loading
from focoop.config.schema import RunConfig
from focoop.data import registry
from focoop.errors import DataError
from focoop.features import demo

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "cifar100-vitb16.toml"


def by_topic(checks: Any) -> dict[str, doctor.Check]:
    return {check.topic: check for check in checks}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried_products: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


def test_a_complete_installation_has_no_failure() -> None:
    found = by_topic(doctor.examine())
    assert [check for check in found.values() if check.state == doctor.FAIL] == []
    assert found["backbone mini"].state == doctor.OK
    assert "cifar100" in found["demo data"].found
    assert all(check.advice for check in found.values() if check.state == doctor.NOTE)


def test_absent_packages_come_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name in ("open_clip", "matplotlib", "PIL") else real(name, *rest)

    monkeypatch.setattr(util, "find_spec", without)
    found = by_topic(findings.packages())
    assert (found["pillow"].state, found["pillow"].advice) == ("fail", "pip install pillow")
    assert found["matplotlib"].state == "note" and "focoop[plot]" in found["matplotlib"].advice
    assert findings.backbone_openclip().advice == "pip install 'focoop[openclip]'"


def test_trackers_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"mlflow", "tensorboard", "trackio", "wandb"}
    here = {name for name in names if importlib.metadata.packages_distributions().get(name)}
    told = by_topic(doctor.examine())["trackers"].found
    assert set(re.findall(r"[a-z]+", told.partition("absent: ")[2])) == names - here
    site = tmp_path / "site" / "trackio-0.43.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: trackio\nVersion: 0.43\n")
    monkeypatch.syspath_prepend(str(site.parent))
    found = findings.trackers()
    assert found.state == "ok" and "trackio 0.43" in found.found.partition("absent")[0]


def test_a_damaged_demo_pack_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "verify", lambda: ["demo file x is damaged"])
    assert findings.demo_pack().state == doctor.FAIL

    def missing() -> list[str]:
        raise DataError("the demo pack is missing")

    monkeypatch.setattr(demo, "verify", missing)
    check = doctor.guarded(findings.demo_pack)
    assert (check.state, check.found) == (doctor.FAIL, "the demo pack is missing")


def test_an_import_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *rest: Any) -> Any:
        if name == "torch":
            raise ImportError("libfoo.so is missing")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", broken)
    check = doctor.guarded(findings.device)
    assert check.state == doctor.FAIL and "libfoo.so" in check.found


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert findings.cache().state == doctor.FAIL
    assert "FOCOOP_CACHE" in findings.cache().advice
    monkeypatch.undo()
    for place in (findings.runs_folder, findings.cache):
        assert place(needed=2**70).state == doctor.NOTE


def test_the_cache_is_measured(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "x").write_bytes(b"0" * 3 * 2**20)
    assert "3 MiB" in findings.cache().found


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunConfig]:
    """The configuration for ViT-B/16 on a machine with nothing on it."""
    monkeypatch.setenv("FOCOOP_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, name: None)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # where weights may lie already
    return lambda *settings: loading.load(CONFIG, settings)


def of_this_run(settings: RunConfig) -> dict[str, doctor.Check]:
    found = by_topic(doctor.examine(settings))
    start = "this run's "
    return {topic.removeprefix(start): c for topic, c in found.items() if topic.startswith(start)}


def test_what_a_bare_machine_with_network_lacks_the_run_fetches(
    wanted: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(weights, "probe", lambda url, patience: asked.append(url))
    found = of_this_run(wanted())
    assert set(found) == {"backbone", "method", "cifar100", "texture", "svhn"}
    lacking = {name: one.advice for name, one in found.items() if one.state != doctor.OK}
    assert lacking == dict.fromkeys(
        ("backbone", "cifar100", "texture", "svhn"), "focoop run fetches it"
    )
    assert "vit_base_patch16_clip_224.openai/resolve/main/open_clip_model.safetensors" in asked[0]
    assert "161 MiB" in found["cifar100"].found


def test_what_a_bare_machine_without_network_lacks_it_is_told_how_to_bring(
    wanted: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(url: str, patience: float) -> None:
        raise OSError("no route")

    monkeypatch.setattr(weights, "probe", unreachable)
    found = of_this_run(wanted("data.fetch=false"))
    assert {name for name, one in found.items() if one.state == doctor.FAIL} == {
        "backbone",
        "cifar100",
        "texture",
        "svhn",
    }
    assert "no route" in found["backbone"].found
    assert "--weights weights/ViT-B-16.pt" in found["backbone"].found
    assert "focoop data fetch cifar100" in found["cifar100"].found
    assert "cifar-100-python/train" in found["cifar100"].found


def test_what_is_here_is_found(tmp_path: Path, wanted: Callable[..., RunConfig]) -> None:
    for name in ("train", "test"):
        (tmp_path / "data" / "cifar-100-python").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "cifar-100-python" / name).touch()
    (tmp_path / "my weights.pt").touch()
    (tmp_path / "sky").mkdir()
    settings = wanted(
        "data.incomplete=true",
        f"backbone.weights={tmp_path / 'my weights.pt'}",
        f'data.ood=["folder:{tmp_path / "sky"}", "demo:dtd", "folder:{tmp_path / "sea"}"]',
    )
    states = {name: one.state for name, one in of_this_run(settings).items()}
    assert states.pop(f"folder:{tmp_path / 'sea'}") == doctor.FAIL
    assert states.pop("cifar100") == doctor.NOTE  # empty files
    assert states.pop("backbone") == doctor.FAIL  # an empty file of weights
    assert set(states.values()) == {doctor.OK}
    assert len(states) == 3
    assert missing_datasets(settings) == []
    assert by_topic(doctor.examine())["datasets"].found.startswith("cifar100 incomplete")


def test_a_method_whose_patches_are_not_loaded_is_found(wanted: Callable[..., RunConfig]) -> None:
    settings = wanted("method.name=fedotp", "backbone.name=mini")
    assert "data.with_patches" in of_this_run(settings)["method"].advice
    fine = wanted("method.name=fedotp", "backbone.name=mini", "data.with_patches=true")
    assert of_this_run(fine)["method"].state == doctor.OK


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("openclip:ViT-B-16:openia", "did you mean openai"),
        ("openclip:RN50", "unknown pretrained"),
        ("openclip:RN-50:openai", "did you mean RN50"),
        ("openclip:ViT-B-16-SigLIP:webli", "cannot be prompted"),
    ],
)
def test_wrong_backbones_are_findings(
    name: str, told: str, wanted: Callable[..., RunConfig]
) -> None:
    found = of_this_run(wanted(f"backbone.name={name}"))["backbone"]
    assert found.state == doctor.FAIL
    assert told in found.found


def test_datasets_of_a_tuning_run(wanted: Callable[..., RunConfig]) -> None:
    assert doctor.datasets_of(wanted()) == ["cifar100", "texture", "svhn"]
    tuned = wanted(
        "data.validation=5", 'data.validation_ood=["isun"]', 'data.corrupted=["dtd#fog"]'
    )
    assert doctor.datasets_of(tuned) == ["cifar100", "isun"]


def test_datasets_that_must_be_got_by_hand_stop_a_run(wanted: Callable[..., RunConfig]) -> None:
    assert missing_datasets(wanted()) == ["cifar100", "texture", "svhn"]
    by_hand = next(n for n, one in registry.available().items() if one.by_hand)
    with pytest.raises(DataError, match="data.root"):
        missing_datasets(wanted(f'data.ood=["{by_hand}"]'))
