"""The folder of CLIP ViT-B/32 features: settings that read it, its zero-shot row, parts of it."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import focoop
from focoop.clip import Backbone, load_backbone
from focoop.config import loading
from focoop.data import Source
from focoop.errors import DataError
from focoop.features import open_features
from focoop.scenario.assignment import make_split

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import clip_folder  # noqa: E402 (a script, found by its folder)

SETTINGS = sorted((ROOT / "configs" / "settings").glob("clipb32-*.toml"))
# Percent in the reference data's own README, of 700 test images (1,500 of ImageNet).
ZERO_SHOT = {
    "imagenet": 58.7,
    "caltech101": 80.3,
    "oxford_pets": 54.1,
    "sun397": 24.6,
    "food101": 28.1,
    "dtd": 13.6,
    "flowers102": 7.3,
}


@pytest.fixture(scope="module")
def clipb32(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `build/clipb32` lies."""
    base = tmp_path_factory.mktemp("clipb32")
    clip_folder.write_folder(shared_dir / "clipb32", base / clip_folder.OUT)
    return base


@pytest.fixture(scope="module")
def backbone(clipb32: Path) -> Backbone:
    return load_backbone(f"local-dir:{clipb32 / clip_folder.OUT}")


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_a_setting_reads_one_folder_and_no_id_images_as_ood(path: Path) -> None:
    stated = tomllib.loads(path.read_text(encoding="utf-8"))
    assert set(stated) <= {"extends", "data", "backbone", "partition", "federation"}
    told = loading.load(path)
    assert told.backbone.name == f"local-dir:{clip_folder.OUT}"
    assert told.data.validation_ood and not told.data.corrupted
    specs = (told.data.id, *told.data.ood, *told.data.validation_ood)
    assert {Path(Source.parse(spec).target).parent for spec in specs} == {
        clip_folder.OUT / "features"
    }
    stems = [Path(Source.parse(spec).target).stem for spec in specs]
    assert len(set(stems)) == len(stems)


@pytest.mark.shared
@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_a_setting_gives_every_client_images(
    path: Path, clipb32: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clipb32)
    told = loading.load(path)
    split = make_split(told)
    counts = split.counts()
    assert len(counts) == told.partition.clients and (counts.sum(1) > 0).all()
    assert set(counts[counts > 0].tolist()) == {told.partition.shots}
    assert (split.counts(of_test=True).sum(1) > 0).all()
    assert len(split.classes) == (200 if path.stem.endswith("200") else len(set(split.classes)))


@pytest.mark.shared
@pytest.mark.parametrize("name", ZERO_SHOT)
def test_zero_shot_is_that_of_the_reference_data(
    name: str, clipb32: Path, backbone: Backbone
) -> None:
    path = clipb32 / clip_folder.OUT / "features" / f"{name}.safetensors"
    images = open_features(f"file:{path}", "test", backbone)
    names = [label if name == "imagenet" else label.lower() for label in images.classes]
    texts = backbone.encode_texts([f"a photo of a {label}." for label in names])
    right = ((images.pooled @ texts.T).argmax(1) == images.labels).float().mean()
    # All test images here, a part there: two deviations of 700 draws and what rounding leaves.
    spread = (ZERO_SHOT[name] * (100 - ZERO_SHOT[name]) / 700) ** 0.5
    assert 100 * float(right) == pytest.approx(ZERO_SHOT[name], abs=2 * spread)


@pytest.mark.shared
def test_the_tower_says_what_clips_own_text_tower_says(
    shared_dir: Path, clipb32: Path, backbone: Backbone
) -> None:
    real = torch.nn.functional.normalize(
        load_file(shared_dir / "clipb32" / "real_text.safetensors")["imagenet"].float(), dim=1
    )
    path = clipb32 / clip_folder.OUT / "features" / "imagenet.safetensors"
    classes = open_features(f"file:{path}", "test", backbone).classes
    ours = backbone.encode_texts([f"a photo of a {name}" for name in classes])
    nearest = (ours @ real.T).argmax(1)
    assert float((nearest == torch.arange(1000)).float().mean()) > 0.9


@pytest.mark.shared
@pytest.mark.slow
def test_a_part_runs_as_the_whole_does_where_it_has_the_same_images(
    clipb32: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clipb32)
    part = tmp_path / clip_folder.OUT
    setting = "settings/clipb32-food101"
    clip_folder.write_part(clip_folder.OUT, part, [setting], test=8, ood=10**6)
    changed = {"method.name": "focoop", "federation.rounds": 1, "federation.epochs": 1}
    whole = focoop.run(setting, changed, out=tmp_path / "whole")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCOOP_CACHE", str(part / "cache"))
    same = focoop.run(setting, changed, out=tmp_path / "part")
    assert same.summary == whole.summary
    assert not list((part / "cache" / "negatives").glob("features-*"))  # WordNet was not encoded
    shutil.rmtree(part / "cache")
    with pytest.raises(focoop.FocoopError, match="part of the vocabulary"):
        focoop.run(setting, changed, out=tmp_path / "again")


def test_features_of_another_backbone_are_refused(tmp_path: Path) -> None:
    from focoop.features import FeatureSet, save_splits
    from tests.clip.test_local_folder import small

    backbone = load_backbone(f"local-dir:{small(tmp_path)}")
    images = FeatureSet(torch.eye(32)[:4], None, torch.arange(4) % 2, ("cat", "dog"))
    path = tmp_path / "mine.safetensors"
    save_splits(path, {"train": images, "test": images})
    assert len(open_features(f"file:{path}@train", "test", backbone)) == 4  # nobody says whose
    save_splits(path, {"train": images, "test": images}, {"fingerprint": "other"})
    with pytest.raises(DataError, match=r"another joint space \(32\): give features of that"):
        open_features(f"file:{path}", "test", backbone)
    with pytest.raises(DataError, match="asks for one split"):
        open_features(f"file:{path}@train", "train", backbone)
