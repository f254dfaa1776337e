"""`focoop run cifar100-vitb16` on a bare machine: the hub and the datasets' sites are stood in for
by small files, all between them and the run folder is real."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import open_clip
import pytest
from open_clip.factory import _MODEL_CONFIGS
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat
from typer.testing import CliRunner, Result

from focoop.cli import app
from focoop.clip.openclip import build
from focoop.data import download
from focoop.seeds import numpy_generator

# The fetched stand-ins hold few images.
FEW = (
    "federation.rounds=1",
    "federation.epochs=1",
    "partition.shots=1",
    "data.incomplete=true",
)
SMALL = (*FEW, "method.name=promptfl")  # mines no words: that takes most of the time


def shrunk(name: str) -> dict[str, Any]:
    config = copy.deepcopy(open_clip.get_model_config(name))
    config["embed_dim"] = 32
    config["text_cfg"] |= {"width": 32, "heads": 2, "layers": 1}
    vision: dict[str, Any] = {"layers": 2, "width": 64, "image_size": 32}
    if name == "RN50":
        vision = {"layers": [1, 1, 1, 1], "width": 16, "image_size": 32}
    config["vision_cfg"] |= vision
    return config


def pixels(count: int, name: str) -> np.ndarray:
    return numpy_generator(0, name).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def bring(name: str, root: Path) -> None:
    """What a download leaves, in the official layout: one or two images of each class."""
    if name == "cifar100":
        base = root / "cifar-100-python"
        base.mkdir(parents=True)
        for split, count in (("train", 200), ("test", 100)):
            rows = pixels(count, split).transpose(0, 3, 1, 2).reshape(count, 3072)
            labels = [i % 100 for i in range(count)]
            (base / split).write_bytes(pickle.dumps({b"data": rows, b"fine_labels": labels}))
    elif name == "texture":
        for label in ("banded", "woven"):
            (root / "dtd" / "images" / label).mkdir(parents=True)
            for i, image in enumerate(pixels(3, label)):
                Image.fromarray(image).save(root / "dtd" / "images" / label / f"{i}.jpg")
    else:
        (root / "SVHN").mkdir(parents=True)
        digits = {"X": pixels(6, "svhn").transpose(1, 2, 3, 0), "y": np.arange(1, 7)[:, None]}
        savemat(root / "SVHN" / "test_32x32.mat", digits)


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried_products: None) -> list[str]:
    """A hub and sites that answer; the names of what was asked of them."""
    asked: list[str] = []
    root = tmp_path / "data"

    def fetched(name: str, root: Path | None, progress: Any) -> None:
        asked.append(name)
        progress(f"{name}.tar.gz", 0, 2**20)
        bring(name, tmp_path / "data")

    def downloaded(repo: str, name: str) -> str:
        asked.append(repo)
        model = "RN50" if "resnet" in repo else "ViT-B-16"
        path = tmp_path / f"{model}.safetensors"
        save_file(build(_MODEL_CONFIGS[model], quick_gelu=True).state_dict(), path)
        return str(path)

    for name in ("ViT-B-16", "RN50"):
        monkeypatch.setitem(_MODEL_CONFIGS, name, shrunk(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FOCOOP_DATA", str(root))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # with the cache of downloads
    monkeypatch.setattr(download, "fetch", fetched)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, name: None)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, timeout: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", downloaded)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return asked


def call(*arguments: str, settings: tuple[str, ...] = SMALL) -> Result:
    return CliRunner().invoke(app, [*arguments, *(f"--set={one}" for one in settings)])


@pytest.mark.parametrize(
    ("name", "repo", "settings"),
    [
        ("cifar100-vitb16", "timm/vit_base_patch16_clip_224.openai", SMALL),
        pytest.param(
            "cifar100-rn50",
            "timm/resnet50_clip.openai",
            SMALL,
            marks=pytest.mark.slow,
            id="ResNet",
        ),
        pytest.param(
            "cifar100-vitb16",
            "timm/vit_base_patch16_clip_224.openai",
            FEW,
            marks=pytest.mark.slow,
            id="with FOCoOp",
        ),
    ],
)
def test_a_named_configuration_needs_no_further_step(
    name: str, repo: str, settings: tuple[str, ...], network: list[str]
) -> None:
    result = call("run", name, "--json", "--out", "run", settings=settings)
    assert result.exit_code == 0, result.stderr
    assert network == ["cifar100", "texture", "svhn", repo]
    assert "licence: " in result.stderr
    found = json.loads(result.stdout)["summary"]
    assert found["num_clients"] == 10
    assert set(found["ood"]) == {"texture", "svhn"}
    assert set(found["corrupted"]) == {f"brightness@{severity}" for severity in range(1, 6)}
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert len(manifest["backbone_fingerprint"]) == 64
    doctor = call("doctor", name, settings=("data.incomplete=true",))
    assert doctor.exit_code == 0  # and now it lacks nothing


def test_nothing_is_fetched_unasked(network: list[str]) -> None:
    result = call("run", "cifar100-vitb16", settings=("data.fetch=false",))
    assert result.exit_code == 3
    assert "focoop data fetch cifar100" in result.stderr
    assert "cifar100" not in network


def test_an_unknown_name_is_told_the_nearest(network: list[str]) -> None:
    result = call("run", "cifar100-vit16")
    assert result.exit_code == 2
    assert "no configuration file" in result.stderr
    assert "nearest is 'cifar100-vitb16'" in result.stderr
