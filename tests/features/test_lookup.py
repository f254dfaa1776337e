"""FeatureSet and its file format against slow references, and dataset names."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from focoop.errors import DataError
from focoop.features.lookup import (
    FeatureSet,
    Source,
    load_split,
    open_features,
    save_splits,
    sibling,
)
from focoop.features.storage import quantise, read_file, write_file
from focoop.scenario.split import Split
from focoop.seeds import torch_generator
from tests.helpers import toy_backbone

CLASSES = ("ant", "bee_fly", "cat")


def unit(*shape: int, seed: int = 0) -> Tensor:
    vectors = torch.randn(*shape, generator=torch_generator(seed, "features"))
    return vectors / vectors.norm(dim=-1, keepdim=True)


def toy_set(count: int = 9, patches: bool = True, seed: int = 0) -> FeatureSet:
    return FeatureSet(
        pooled=unit(count, 8, seed=seed),
        patches=unit(count, 4, 8, seed=seed + 1) if patches else None,
        labels=torch.arange(count) % 3,
        classes=CLASSES,
    )


def raw_file(path: Path, **changes: object) -> Path:
    """A file as the reference folder has them: patches of rows 1 and 4 only."""
    tensors: dict[str, Tensor] = {
        "pooled": unit(6, 8).half(),
        "labels": torch.tensor([0, 1, 2, 0, 1, 2], dtype=torch.int32),
        "split": torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int8),
        "patches_q": torch.randint(-127, 128, (2, 4, 8), generator=torch_generator(1)).to(
            torch.int8
        ),
        "patches_scale": torch.full((2, 4), 0.01, dtype=torch.float16),
        "patches_index": torch.tensor([4, 1], dtype=torch.int32),
    }
    metadata = {"classes": json.dumps(CLASSES), "kind": "split: 0 train, 1 test"}
    for key, value in changes.items():
        target = tensors if isinstance(value, Tensor) or key in tensors else metadata
        if value is None:
            target.pop(key)
        else:
            target[key] = value  # type: ignore[index,assignment]
    save_file(tensors, path, metadata)
    return path


def test_files_of_the_reference_folder_load_as_unit_float32(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "x.safetensors")
    stored, _ = read_file(path)
    test = load_split(path, "test")
    assert len(test) == 3 and test.patches is None and test.classes == CLASSES
    assert test.pooled.dtype == torch.float32 and test.labels.tolist() == [0, 1, 2]
    for row in range(3):
        slow = np.array([float(v) for v in stored["pooled"][3 + row]])
        np.testing.assert_allclose(test.pooled[row], slow / np.linalg.norm(slow), atol=1e-6)


def test_asking_for_patches_keeps_the_rows_that_have_them(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "x.safetensors")
    stored, _ = read_file(path)
    for split, row, place in (("test", 4, 0), ("train", 1, 1)):
        part = load_split(path, split, with_patches=True)
        assert len(part) == 1 and part.labels.tolist() == [int(stored["labels"][row])]
        assert torch.equal(part.pooled[0], load_split(path, "all").pooled[row])
        slow = stored["patches_q"][place].double() * 0.01
        slow = slow / slow.pow(2).sum(-1, keepdim=True).sqrt()
        assert part.patches is not None
        torch.testing.assert_close(part.patches[0].double(), slow, atol=1e-6, rtol=0)
    assert len(load_split(path, "all", with_patches=True)) == 2


def test_select_drop_and_reorder(tmp_path: Path) -> None:
    whole = toy_set()
    part = whole.select([7, 2])
    assert part.labels.tolist() == [1, 2] and torch.equal(part.pooled[0], whole.pooled[7])
    assert part.patches is not None and torch.equal(part.patches[1], whole.patches[2])  # type: ignore[index]
    masked = whole.select(whole.labels == 1)
    assert len(masked) == 3 and set(masked.labels.tolist()) == {1}
    dropped = whole.drop_classes(["ant"])
    assert dropped.classes == ("bee_fly", "cat") and len(dropped) == 6
    assert torch.equal(dropped.pooled, whole.pooled[whole.labels != 0])
    assert dropped.labels.tolist() == [0, 1] * 3
    turned = whole.with_classes(["Cat", "bee fly", "dog", "ant"])
    names = ["Cat", "bee fly", "dog", "ant"]
    for before, after in zip(whole.labels.tolist(), turned.labels.tolist(), strict=True):
        assert names[after].lower().replace(" ", "_") == CLASSES[before]


def test_classes_that_do_not_match_are_named() -> None:
    with pytest.raises(DataError, match=r"1 class has .*'cat'; nearest is 'cats'.*class_names"):
        toy_set().with_classes(["ant", "bee fly", "cats"])
    with pytest.raises(DataError, match="nearest is 'ant'"):
        toy_set().drop_classes(["aunt"])


def test_content_hash_sees_every_part() -> None:
    whole = toy_set()
    other = [whole.select([*range(8), 7]), toy_set(patches=False), toy_set(seed=5)]
    assert whole.sha256() == toy_set().sha256()
    assert len({whole.sha256(), *(one.sha256() for one in other)}) == 4


def test_domains_are_splits(tmp_path: Path) -> None:
    domains = json.dumps(["photo", "sketch"])
    path = raw_file(tmp_path / "d.safetensors", domains=domains, kind="split: domain index")
    both = load_split(path, "all")
    assert both.domains is not None and both.domains.tolist() == [0, 0, 0, 1, 1, 1]
    assert both.domain_names == ("photo", "sketch")
    assert both.select([5]).domains.tolist() == [1]  # type: ignore[union-attr]
    one = load_split(path, "sketch")
    assert len(one) == 3 and one.domains is not None and one.domains.tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="domains are photo, sketch"):
        load_split(path, "test")


def test_validation_is_another_name_of_test_where_the_file_says_so(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "v.safetensors", kind="split: 0 train, 1 validation")
    assert torch.equal(load_split(path, "validation").pooled, load_split(path, "test").pooled)
    with pytest.raises(DataError, match="splits are train, test"):
        load_split(raw_file(tmp_path / "x.safetensors"), "validation")


@pytest.mark.parametrize("suffix", ["safetensors", "safetensors.gz"])
def test_saved_splits_come_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    train, test = toy_set(9), toy_set(6, seed=3)
    save_splits(path, {"train": train, "calibration": test}, {"backbone": "toy"})
    again = load_split(path, "calibration", with_patches=True)
    assert len(again) == 6 and again.provenance["backbone"] == "toy"
    assert torch.equal(again.labels, test.labels)
    torch.testing.assert_close(again.pooled, test.pooled, atol=1e-3, rtol=0)
    torch.testing.assert_close(again.patches, test.patches, atol=5e-3, rtol=0)
    first = path.read_bytes()
    save_splits(path, {"train": train, "calibration": test}, {"backbone": "toy"})
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_splits_that_do_not_fit_together_are_not_written(tmp_path: Path) -> None:
    for other in (toy_set(patches=False), toy_set().with_classes(["cat", "bee fly", "ant"])):
        with pytest.raises(DataError, match="differ"):
            save_splits(tmp_path / "a.safetensors", {"train": toy_set(), "test": other})


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4), st.sampled_from([0.0, 0.02, 0.3])
)
def test_quantisation_errs_by_at_most_half_a_step(entries: list[float], step: float) -> None:
    vector = torch.tensor([entries])
    levels, scale = quantise(vector, step)
    wanted = max(max(abs(v) for v in entries) / 127, step, 1e-7)
    assert float(scale) == pytest.approx(wanted, rel=1e-3, abs=3e-8)
    error = (levels.float() * scale.float()[:, None] - vector).abs().max()
    # Half a step, and the float16 scale's own error at the largest level.
    assert float(error) <= 0.5 * float(scale) * 1.13 + 1e-6


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"labels": None}, "'labels' is missing"),
        ({"split": None}, "'split' is missing"),
        ({"pooled": None}, "neither 'pooled'"),
        ({"classes": None}, "'classes' is missing"),
        ({"labels": torch.tensor([0, 1, 2, 3, 1, 2])}, "row 3 has label 3 of 3 classes"),
        ({"labels": torch.tensor([0, -1, 2, 0, 1, 2])}, "row 1 has label -1"),
        ({"labels": torch.tensor([0, 1])}, "6 rows, 2 labels"),
        ({"split": torch.tensor([0, 0, 0, 1, 1, 2])}, "beyond the 2 named"),
        ({"patches_index": torch.tensor([1, 6])}, "reaches beyond its 6 rows"),
        ({"patches_scale": torch.ones(2, 3)}, "do not fit each other"),
        ({"patches_scale": None}, "neither 'patches'"),
    ],
)
def test_unsound_files_are_named_and_explained(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    path = raw_file(tmp_path / "bad.safetensors", **changes)
    with pytest.raises(DataError, match=says) as caught:
        load_split(path, "all", with_patches=True)
    assert str(path) in str(caught.value) and "again" in str(caught.value)


def test_cut_files_and_absent_ones_are_explained(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "x.safetensors")
    whole = path.read_bytes()
    packed = tmp_path / "y.safetensors.gz"
    small = gzip.compress(whole)
    for share in (0.0, 0.01, 0.1, 0.5, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        packed.write_bytes(small[: int(share * len(small))])
        for broken in (path, packed):
            with pytest.raises(DataError, match="damaged") as caught:
                load_split(broken, "test")
            assert str(broken) in str(caught.value)
    with pytest.raises(DataError, match="check the path"):
        load_split(tmp_path / "none.safetensors", "test")


def test_files_without_patches_say_so(tmp_path: Path) -> None:
    save_splits(tmp_path / "p.safetensors", {"test": toy_set(patches=False)})
    with pytest.raises(DataError, match="no patch features"):
        load_split(tmp_path / "p.safetensors", "test", with_patches=True)


def test_file_names_with_corruptions_open_the_sibling(tmp_path: Path) -> None:
    path = tmp_path / "set.v2.safetensors"
    save_splits(path, {"test": toy_set(seed=1)})
    save_splits(tmp_path / "set.v2.brightness.3.safetensors", {"test": toy_set(seed=2)})
    bright = open_features(f"file:{path}#brightness@3", "test")
    torch.testing.assert_close(bright.pooled, toy_set(seed=2).pooled, atol=1e-3, rtol=0)
    assert sibling(path, Source("file", str(path))) == path
    with pytest.raises(DataError, match=r"set.v2.brightness.4.safetensors: make them"):
        open_features(f"file:{path}#brightness@4", "test")
    assert len(open_features(f"file:{path}", "test", drop_classes=["ant"])) == 6


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("cifar1000", "nearest is 'cifar100'"),
        ("cifar100#fog", "cifar100#fog@3"),
        ("dmo:cifar100", "demo:NAME"),
        ("file:", "demo:NAME"),
        ("demo:cifar10", "nearest is 'cifar100'"),
        ("demo:cifar100#brightness", "cifar100#brightness@3"),
        ("demo:cifar100#brightness@x", "severity from 1 to 5"),
        ("demo:cifar100#brightness@9", "severity 9"),
        ("demo:cifar100#fogg@1", "nearest is 'fog'"),
        ("demo:sun#brightness@1", "no 'sun.brightness.1'"),
        ("folder:nowhere", "backbone is needed"),
    ],
)
def test_unknown_names_say_what_there_is(spec: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        open_features(spec, "test")


def test_features_of_another_backbone_are_refused(tmp_path: Path) -> None:
    backbone = toy_backbone(dim=8)
    path = tmp_path / "x.safetensors"
    save_splits(path, {"test": toy_set()}, {"fingerprint": backbone.image_fingerprint})
    assert len(open_features(f"file:{path}", "test", backbone)) == 9
    for other in (toy_backbone(seed=1, dim=8), toy_backbone(dim=12)):
        with pytest.raises(DataError, match="another joint space"):
            open_features(f"file:{path}", "test", other)


def test_metadata_order_does_not_change_the_bytes(tmp_path: Path) -> None:
    tensors = {"labels": torch.zeros(1, dtype=torch.int8)}
    keys = [f"k{i}" for i in range(12)]
    written = set()
    for turn in range(4):
        order = keys[turn:] + keys[:turn]
        write_file(tmp_path / "a.safetensors", tensors, {key: "é" + key for key in order})
        written.add((tmp_path / "a.safetensors").read_bytes())
    assert len(written) == 1
    assert read_file(tmp_path / "a.safetensors")[1]["k3"] == "ék3"


@pytest.mark.shared
def test_every_shared_feature_file_loads(shared_dir: Path) -> None:
    for path in sorted((shared_dir / "features").glob("*.safetensors")):
        features = load_split(path, "all")
        assert len(features) > 1000 and features.dim == 256
        norms = features.pooled.norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms), atol=1e-5, rtol=0)
    caltech = f"file:{shared_dir}/features/caltech101.safetensors"
    dropped = open_features(caltech, "train", drop_classes=["BACKGROUND_Google"])
    assert len(dropped.classes) == 101 and dropped.classes[0] == "Faces"
    assert len(load_split(shared_dir / "features" / "cifar100.safetensors", "test")) == 10_000


def test_features_that_are_no_numbers_are_named_with_file_and_row(tmp_path: Path) -> None:
    features = toy_set(patches=False)
    pooled = features.pooled.clone()
    pooled[4, 1] = float("nan")
    path = tmp_path / "bad.safetensors"
    save_splits(path, {"test": replace(features, pooled=pooled)})
    with pytest.raises(DataError, match=r"bad.safetensors .*not finite .*1 of 9 .* in row 4"):
        load_split(path, "test")


@pytest.mark.parametrize("names", [("cup", "cup"), ("a b", "a_b"), ("a_ b", "a b")])
def test_classes_of_one_name_are_refused(names: tuple[str, str]) -> None:
    features = replace(toy_set(), classes=(*names, "mug"), labels=torch.arange(9) % 3)
    with pytest.raises(DataError, match=r"classes 0 and 1 of .* are both called"):
        features.with_classes(features.classes)
    with pytest.raises(DataError, match=r"classes 0 and 1 of the run's images are both called"):
        Split(features, features, [np.arange(9)], [np.arange(9)], 0, None)


def test_a_name_that_may_be_two_classes_is_refused() -> None:
    features = replace(toy_set(), classes=("MUG", "cup", "jar"), labels=torch.arange(9) % 3)
    with pytest.raises(DataError, match="'MUG' may be 'Mug' or 'mug'"):
        features.with_classes(("Mug", "mug", "cup", "jar"))


@pytest.mark.parametrize("suffix", ["safetensors", "safetensors.gz"])
def test_single_bits_of_a_feature_file_are_found(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"toy.{suffix}"
    save_splits(path, {"test": toy_set()})
    whole, wanted = path.read_bytes(), load_split(path, "test", with_patches=True).sha256()
    for place in range(0, len(whole), len(whole) // 60):
        path.write_bytes(bytes([*whole[:place], whole[place] ^ 2, *whole[place + 1 :]]))
        try:
            found = load_split(path, "test", with_patches=True).sha256()
        except DataError as error:
            assert path.name in str(error)
        else:
            assert found == wanted, place  # a time or a name in the header of gzip
