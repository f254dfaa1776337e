"""The features of the comparison: which images are taken and what a slim copy holds."""

import json
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

from focoop import config
from focoop.data.corruptions import SEVERITIES
from focoop.featurefile import load_split, read_file, write_file
from focoop.seeds import numpy_generator
from focoop.split import make_split

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import prepare_features  # noqa: E402 (a script, found by its folder)
import validation_ood  # noqa: E402

SETTINGS = sorted((ROOT / "configs" / "settings").glob("*.toml"))
SAID = {
    "data": {"id", "drop_classes", "corrupted", "ood", "validation_ood", "with_patches"},
    "partition": {"kind", "clients", "alpha", "classes_per_client", "leave_out", "shots"},
    "federation": {
        "rounds",
        "participation",
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
    mixed = np.asarray(validation_ood.shuffled(Image.fromarray(pixels), numpy_generator(1, "x")))

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
    work = tmp_path / "work"
    names = [tmp_path / "shared" / "features" / f"{name}.safetensors" for name in ("own", "far")]
    names += [work / "runs/features" / f"own_c.brightness.{s}.safetensors" for s in SEVERITIES]
    names += [work / "runs/validation/near.safetensors"]
    for rows, path in enumerate(names, start=10):
        feature_file(path, rows)
    monkeypatch.chdir(work)
    told = config.load(
        None,
        [
            "data.id=file:../shared/features/own.safetensors",
            'data.corrupted=["file:runs/features/own_c.safetensors#brightness"]',
            'data.ood=["file:../shared/features/far.safetensors", "demo:sun"]',
            'data.validation_ood=["file:runs/validation/near.safetensors"]',
        ],
    )
    prepare_features.slim([told], Path("slim"))
    found = {str(path.relative_to("slim")) for path in Path("slim").rglob("*.safetensors")}
    assert found == {
        "shared/own.safetensors",
        "shared/far.safetensors",
        "validation/near.safetensors",
        *(f"made/own_c.brightness.{s}.safetensors" for s in SEVERITIES),
    }
    pairs = [("shared/own", names[0], "train"), ("shared/own", names[0], "test")]
    pairs += [("shared/far", names[1], "test"), ("made/own_c.brightness.3", names[4], "test")]
    for copied, original, split in pairs:
        copy = load_split(Path("slim") / f"{copied}.safetensors", split)
        assert copy.sha256() == load_split(original, split).sha256()
    tensors, _ = read_file(Path("slim/shared/far.safetensors"))
    assert set(tensors) == {"pooled", "labels", "split"} and len(tensors["labels"]) == 11
    reads_patches = replace(told, data=replace(told.data, with_patches=True))
    prepare_features.slim([told, reads_patches], Path("slim"))
    made = load_split(Path("slim/shared/far.safetensors"), "test", with_patches=True)
    assert made.patches is not None and made.patches.shape[1:] == (2, 8)


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_a_setting_says_what_is_compared_on_and_nothing_of_the_method(path: Path) -> None:
    stated = tomllib.loads(path.read_text(encoding="utf-8"))
    extended = stated.pop("extends")
    assert extended in ("../base.toml", "cifar100.toml") or path.stem == f"{extended[:-5]}-patches"
    for section, values in stated.items():
        assert set(values) <= SAID[section]
    told = config.load(path)
    tested = {spec.rsplit("/", 1)[-1].split(":")[-1].split(".")[0] for spec in told.data.ood}
    # Only one OOD set has patches and is not DTD.
    assert len(tested) > (path.stem != "dtd-patches") and told.data.validation_ood
    own = told.data.id.rsplit("/", 1)[-1].split(".")[0]
    assert not any(name.split("_")[0] == own for name in tested)  # no ID images among the OOD ones
    assert not set(told.data.ood) & set(told.data.validation_ood)


@pytest.mark.shared
@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_a_setting_gives_every_client_images(
    path: Path, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the settings say ../shared
    told = config.load(path)
    split = make_split(told)
    counts = split.counts()
    assert len(counts) == told.partition.clients and (counts.sum(1) > 0).all()
    assert (counts.sum(0) > 0).all() and "BACKGROUND_Google" not in split.classes
    assert (split.counts(of_test=True).sum(1) > 0).all()
    if told.partition.shots:
        assert set(counts[counts > 0].tolist()) == {told.partition.shots}
