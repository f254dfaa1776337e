"""A text tower without an image tower: runs on features of somebody else, and refuses images."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import focoop
from focoop.cli.doctor.check import OK
from focoop.cli.doctor.run_checks import run_backbone
from focoop.errors import BackboneError
from focoop.features import FeatureSet, save_splits
from focoop.runs import RunFolder
from focoop.seeds import torch_generator
from focoop.serve.loading import load
from tests.clip.test_local_folder import small
from tests.toy_command import call

CLASSES = ("cat", "dog", "zebra", "teapot")
SETTINGS = [
    "backbone.name=local-dir:mine",
    "data.id=file:mine/images.safetensors",
    "data.ood=['file:mine/images.safetensors@train']",
    "method.name=promptfl",
    "partition.kind=iid",
    "partition.clients=2",
    "federation.rounds=1",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the text tower and the features in `mine`."""
    small(tmp_path / "mine")
    pooled = torch.randn(32, 32, generator=torch_generator(0, "somebody's features"))
    labels = torch.arange(32) % 4
    images = FeatureSet(torch.nn.functional.normalize(pooled, dim=1), None, labels, CLASSES)
    save_splits(tmp_path / "mine" / "images.safetensors", {"train": images, "test": images})
    for place, colour in ((place, colour) for colour in ("red", "blue") for place in range(8)):
        path = tmp_path / "photos" / colour / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30 + place), colour).save(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_trains_and_answers_features_from_any_folder_and_refuses_images(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = call("run", *(f"--set={one}" for one in SETTINGS), "--out", "run")
    assert result.exit_code == 0, result.stderr
    found = run_backbone(RunFolder.open(Path("run")).config)
    assert found.state == OK and "local-dir:mine, fingerprint" in found.found
    focoop.export("run", "model")
    assert str(folder) not in Path("model/README.md").read_text()
    asked = focoop.open_run("run").images("test")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))  # its backbone's path was relative
    for path in (folder / "run", folder / "model"):
        model = focoop.load_model(path)
        assert len(model.decide(asked)) == 32
        with pytest.raises(BackboneError, match="no image tower"):
            model.encode(folder / "photos" / "red" / "0.png")
        with pytest.raises(BackboneError, match="no image tower"):
            load(path)  # focoop serve
    (folder / "mine").rename(folder / "moved")
    with pytest.raises(BackboneError, match="--weights FOLDER"):
        load(folder / "model")
    assert focoop.load_model(folder / "model", weights=folder / "moved").backbone.dim == 32


def test_what_encodes_images_says_what_to_do_instead(folder: Path) -> None:
    with pytest.raises(BackboneError, match="no image tower"):
        focoop.encode("folder:photos", backbone="local-dir:mine")
    on_images = (*SETTINGS, "data.id=folder:photos")
    result = call("run", *(f"--set={one}" for one in on_images))
    assert result.exit_code != 0
    assert "text tower and no image tower" in result.stderr
    assert "file:PATH.safetensors" in " ".join(result.stderr.split())
