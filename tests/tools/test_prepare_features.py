"""The features of the comparison: which images are taken and what a slim copy holds."""

import json
import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from focoop.config import loading
from focoop.data import ready_features
from focoop.data.corruptions.apply import SEVERITIES
from focoop.data.dataset_spec import NAMED, Source, expand
from focoop.data.image_versions import shuffle
from focoop.features.feature_set import FeatureSet
from focoop.features.storage import load_split, read_file, write_file
from focoop.scenario.assignment import make_split
from focoop.seeds import numpy_generator
from tests.helpers import toy_backbone

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import prepare_features  # noqa: E402 (a script, found by its folder)
import validation_ood  # noqa: E402

CLIP = set((ROOT / "configs" / "settings").glob("clipb32-*.toml"))  # test_clip_folder.py
SETTINGS = sorted(set((ROOT / "configs" / "settings").glob("*.toml")) - CLIP)
SAID = {
    "data": {
        "id",
        "drop_classes",
        "unknown_classes",
        "new_classes",
        "corrupted",
        "ood",
        "validation_ood",
        "with_patches",
    },
    "partition": {"kind", "clients", "alpha", "classes_per_client", "leave_out", "shots"},
    "federation": {
        "rounds",
        "participation",
        "late_clients",
        "epochs",
        "batch_size",
        "evaluate_every",
        "lr_schedule",
    },
}


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 5))
def test_rows_per_class_are_the_first_ones(labels: list[int], count: int) -> None:
    slow = [row for row, label in enumerate(labels) if labels[:row].count(label) < count]
    assert prepare_features.rows_per_class(labels, count) == slow


def test_small_is_the_centre_square_reduced(tmp_path: Path) -> None:
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[:, 20:60] = (10, 200, 30)  # the centre square has one colour
    Image.fromarray(pixels).save(tmp_path / "x.png")
    small = np.asarray(validation_ood.small(tmp_path / "x.png", 16))
    assert small.shape == (16, 16, 3) and (small == (10, 200, 30)).all()


def test_shuffled_moves_whole_blocks() -> None:
    pixels = numpy_generator(0, "pixels").integers(0, 256, (16, 16, 3), dtype=np.uint8)
    mixed = np.asarray(shuffle(Image.fromarray(pixels), numpy_generator(1, "x")))

    def blocks(image: np.ndarray) -> list[bytes]:
        cut = range(0, 16, 4)
        return sorted(image[r : r + 4, c : c + 4].tobytes() for r in cut for c in cut)

    assert blocks(mixed) == blocks(pixels) and not np.array_equal(mixed, pixels)


def feature_file(path: Path, rows: int) -> None:
    """Half of the rows train, half test; all with patches."""
    generator = torch.Generator().manual_seed(rows)
    tensors = {
        "pooled": torch.randn(rows, 8, generator=generator).half(),
        "labels": torch.zeros(rows, dtype=torch.int32),
        "split": (torch.arange(rows) % 2).to(torch.int8),
        "patches_q": torch.ones(rows, 2, 8, dtype=torch.int8),
        "patches_scale": torch.ones(rows, 2).half(),
        "patches_index": torch.arange(rows, dtype=torch.int32),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, tensors, {"classes": json.dumps(["a"])})


def test_a_slim_copy_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, made, slim = tmp_path / "shared", tmp_path / "made", tmp_path / "slim"
    names = [shared / f"{name}.safetensors" for name in ("svhn", "sun_32px")]
    names += [made / f"svhn.brightness.{s}.safetensors" for s in SEVERITIES]
    names += [made / "isun.safetensors", made / "texture.safetensors"]  # the last is not named
    for rows, path in enumerate(names, start=10):
        feature_file(path, rows)
    monkeypatch.setenv(ready_features.VARIABLE, f"{shared}{os.pathsep}{made}")
    told = loading.load(
        None,
        [
            "data.id=svhn",
            'data.corrupted=["svhn#brightness"]',
            'data.ood=["sun@32px", "demo:sun"]',
            'data.validation_ood=["isun"]',
        ],
    )
    prepare_features.slim([told], slim)
    assert {path.name for path in slim.iterdir()} == {path.name for path in names[:-1]}
    for original, split in ((names[0], "train"), (names[1], "test"), (names[4], "test")):
        copy = load_split(slim / original.name, split)
        assert copy.sha256() == load_split(original, split).sha256()
    tensors, _ = read_file(slim / "sun_32px.safetensors")
    assert set(tensors) == {"pooled", "labels", "split"} and len(tensors["labels"]) == 11
    reads_patches = replace(told, data=replace(told.data, with_patches=True))
    prepare_features.slim([told, reads_patches], slim)
    copied = load_split(slim / "sun_32px.safetensors", "test", with_patches=True)
    assert copied.patches is not None and copied.patches.shape[1:] == (2, 8)


def test_rows_with_patches_are_those_that_were_asked_for(tmp_path: Path) -> None:
    backbone = toy_backbone()
    generator = torch.Generator().manual_seed(0)
    pooled, patches = torch.randn(5, 8, generator=generator), torch.randn(5, 2, 8)
    whole = FeatureSet(pooled, patches, torch.arange(5) % 2, ("a", "b"))
    validation_ood.write(tmp_path / "x.safetensors", whole, backbone, [1, 4])
    every = load_split(tmp_path / "x.safetensors", "test")
    some = load_split(tmp_path / "x.safetensors", "test", with_patches=True)
    assert len(every) == 5 and some.labels.tolist() == [1, 0] and some.patches is not None
    assert torch.equal(some.pooled, every.pooled[[1, 4]])
    unit = torch.nn.functional.normalize(patches[[1, 4]], dim=-1)
    assert torch.allclose(some.patches, unit, atol=0.02)  # int8
    assert every.provenance["fingerprint"] == backbone.image_fingerprint


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_a_setting_says_what_is_compared_on_and_nothing_of_the_method(path: Path) -> None:
    stated = tomllib.loads(path.read_text(encoding="utf-8"))
    extended = stated.pop("extends")
    assert extended in ("../base.toml", "cifar100.toml") or path.stem == f"{extended[:-5]}-patches"
    for section, values in stated.items():
        assert set(values) <= SAID[section]
    told = loading.load(path)
    tested = {spec.split(":")[-1].split("@")[0] for spec in told.data.ood}
    # Only one OOD set has patches and is not DTD.
    assert len(tested) > (path.stem != "dtd-patches") and told.data.validation_ood
    own = told.data.id.split(":")[-1]
    assert not any(name.split("_")[0] == own for name in tested)  # no ID images among the OOD ones
    assert not set(told.data.ood) & set(told.data.validation_ood)
    specs = (told.data.id, *told.data.corrupted, *told.data.ood, *told.data.validation_ood)
    assert {Source.parse(spec).kind for spec in expand(specs)} <= {NAMED, "demo"}


@pytest.mark.shared
@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_a_setting_gives_every_client_images(
    path: Path, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ready_features.VARIABLE, str(shared_dir / "features"))
    told = loading.load(path)
    split = make_split(told)
    counts = split.counts()
    assert len(counts) == told.partition.clients and (counts.sum(1) > 0).all()
    assert (counts.sum(0) == 0).sum() == told.data.new_classes
    assert "BACKGROUND_Google" not in split.classes
    assert (split.counts(of_test=True).sum(1) > 0).all()
    if told.partition.shots:
        assert counts.max() == told.partition.shots and split.repeated == 0
        if told.partition.kind != "dirichlet":  # whose skew stays
            assert set(counts[counts > 0].tolist()) == {told.partition.shots}
