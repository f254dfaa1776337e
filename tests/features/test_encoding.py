"""Encoding through the cache: correct, and nothing twice."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from focoop.caching import cache_folder
from focoop.clip.base import Backbone, ImageFeatures
from focoop.data import ImageSet, read_folder
from focoop.data.corruptions.apply import corrupt
from focoop.data.unreadable import examine
from focoop.errors import ConfigError, DataError
from focoop.features.encoding import data_hash, encode
from focoop.features.lookup import open_features
from focoop.features.storage import read_file
from focoop.seeds import numpy_generator
from tests.helpers import ToyBackbone, toy_backbone

ROOT = Path(__file__).resolve().parents[2]


class Counting(ToyBackbone):
    """Counts the images that pass through the image tower; what fills up a piece is a copy."""

    seen = 0

    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        self.seen += len(batch.flatten(1).unique(dim=0))
        return super().encode_images(batch, patches)


def counting() -> Counting:
    return Counting(seed=0, width=16, dim=12, layers=1)


def plant_images(root: Path, per_class: int = 4, side: int = 8) -> Path:
    generator = numpy_generator(7, "images")
    for split in ("train", "test"):
        for name in ("ant", "bee", "cat"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(per_class):
                pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    return root


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return read_folder(plant_images(tmp_path / "images"), "test")


def one_by_one(
    images: ImageSet, backbone: Backbone, change: Callable[[np.ndarray], np.ndarray]
) -> ImageFeatures:
    pooled, patches = [], []
    for row in range(len(images)):
        image = Image.fromarray(change(np.asarray(images.image(row))))
        features = backbone.encode_images(backbone.preprocess(image)[None], "grid")
        assert features.patches is not None
        pooled.append(features.pooled[0])
        patches.append(features.patches[0])
    return ImageFeatures(torch.stack(pooled), torch.stack(patches))


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_the_cache_keeps_of_images_is_its_owners_alone(
    images: ImageSet, tmp_path: Path, mask: int
) -> None:
    cache, seen = tmp_path / "c", set[int]()
    (cache / "features").mkdir(parents=True, mode=0o755)  # as an earlier focoop left it
    before = os.umask(mask)
    try:
        encode(
            images, toy_backbone(), cache_dir=cache, batch_size=2, shard_size=5,
            progress=lambda *_: seen.update(p.stat().st_mode for p in cache.rglob("*")),
        )  # fmt: skip
        examine(images, cache)
    finally:
        os.umask(before)
    seen |= {path.stat().st_mode for path in cache.rglob("*")}
    assert {path.name for path in cache.iterdir()} == {"features", "hashes", "checked"}
    assert {oct(mode & 0o777) for mode in seen if stat.S_ISREG(mode)} == {"0o600"}
    assert {oct(mode & 0o777) for mode in seen if stat.S_ISDIR(mode)} == {"0o700"}


def test_encoding_agrees_with_one_image_at_a_time(images: ImageSet, tmp_path: Path) -> None:
    backbone = toy_backbone()
    options = {"cache_dir": tmp_path / "c", "batch_size": 5, "shard_size": 7}
    got = encode(images, backbone, patches="grid", **options)  # type: ignore[arg-type]
    want = one_by_one(images, backbone, lambda pixels: pixels)
    assert want.patches is not None and got.patches is not None
    torch.testing.assert_close(got.pooled, want.pooled, atol=1e-3, rtol=0)
    assert float((got.patches * want.patches).sum(-1).min()) > 0.9999
    assert got.labels.tolist() == list(images.labels) and got.classes == images.classes
    assert got.provenance["fingerprint"] == backbone.image_fingerprint


def test_corruption_comes_before_preprocessing(tmp_path: Path) -> None:
    images = read_folder(plant_images(tmp_path / "images", side=20), "test")
    backbone = toy_backbone()
    for severity in (1, 5):
        spec = f"folder:{images.root}#brightness@{severity}"
        got = open_features(spec, "test", backbone, cache_dir=tmp_path)
        want = one_by_one(
            images, backbone, lambda pixels, s=severity: corrupt(pixels, "brightness", s)
        )
        torch.testing.assert_close(got.pooled, want.pooled, atol=1e-3, rtol=0)
        assert got.provenance["corruption"] == f"brightness@{severity}"


def test_nothing_is_encoded_twice(images: ImageSet, tmp_path: Path) -> None:
    backbone, cache = counting(), tmp_path / "c"
    first = encode(images, backbone, patches="grid", cache_dir=cache)
    assert backbone.seen == len(images) == 12
    steps: list[tuple[int, int]] = []
    again = encode(
        images,
        backbone,
        patches="grid",
        cache_dir=cache,
        progress=lambda done, total: steps.append((done, total)),
    )
    pooled = encode(images, backbone, cache_dir=cache)  # the file with patches has them
    assert backbone.seen == 12 and steps == [(12, 12)] and pooled.patches is None
    assert torch.equal(first.pooled, again.pooled) and torch.equal(first.pooled, pooled.pooled)
    assert torch.equal(first.patches, again.patches)  # type: ignore[arg-type]
    encode(images, backbone, corruption="brightness", severity=1, cache_dir=cache)
    encode(images, backbone, corruption="brightness", severity=2, cache_dir=cache)
    assert backbone.seen == 36
    assert len(list((cache / "features").iterdir())) == 3  # and no shards are left


def test_other_weights_or_other_images_are_other_features(images: ImageSet, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    first = encode(images, toy_backbone(), cache_dir=cache)
    assert not torch.equal(first.pooled, encode(images, toy_backbone(1), cache_dir=cache).pooled)
    file = images.root / images.files[3]
    Image.fromarray(np.full((8, 8, 3), 9, dtype=np.uint8)).save(file)
    changed = encode(images, toy_backbone(), cache_dir=cache)
    same = [torch.equal(a, b) for a, b in zip(first.pooled, changed.pooled, strict=True)]
    assert same == [row != 3 for row in range(12)]


def test_hashes_are_of_content_and_remembered(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = data_hash(images, tmp_path)
    file = images.root / images.files[0]
    os.utime(file, ns=(1, 1))
    assert data_hash(images, tmp_path) == before  # a new date alone changes nothing
    read = Path.read_bytes
    opened: list[Path] = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: (opened.append(path), read(path))[1])
    assert data_hash(images, tmp_path) == before and opened == []
    file.write_bytes(file.read_bytes() + b"\0")
    opened.clear()
    assert data_hash(images, tmp_path) != before and opened == [file]
    memo = next((tmp_path / "hashes").glob("*.json"))
    memo.write_text("{")
    assert data_hash(images, tmp_path) == data_hash(images, tmp_path / "elsewhere")


def test_progress_counts_images(images: ImageSet, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    encode(
        images,
        toy_backbone(),
        cache_dir=tmp_path,
        progress=lambda done, total: steps.append((done, total)),
        batch_size=4,
        shard_size=6,
    )
    assert steps == [(0, 12), (4, 12), (6, 12), (10, 12), (12, 12)]


def test_broken_images_are_named(images: ImageSet, tmp_path: Path) -> None:
    file = images.root / images.files[5]
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match="replace it or remove it") as caught:
        encode(images, toy_backbone(), cache_dir=tmp_path)
    assert str(file) in str(caught.value)
    file.write_bytes(b"no image")
    with pytest.raises(DataError, match=file.name):
        encode(images, toy_backbone(), cache_dir=tmp_path)


def test_a_damaged_cache_file_is_made_again_and_named(images: ImageSet, tmp_path: Path) -> None:
    wanted = encode(images, toy_backbone(), cache_dir=tmp_path)
    (file,) = (tmp_path / "features").iterdir()
    whole = file.read_bytes()
    bits = [bytes([*whole[:place], whole[place] ^ 4, *whole[place + 1 :]]) for place in (40, -60)]
    for damaged in (whole[:-9], *bits):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match="is damaged: .*encoded again") as caught:
            again = encode(images, toy_backbone(), cache_dir=tmp_path)
        assert str(file) in str(caught[0].message)
        assert torch.equal(again.pooled, wanted.pooled) and file.read_bytes() == whole


def test_features_of_another_set_in_a_set_s_place_are_made_again(
    images: ImageSet, tmp_path: Path
) -> None:
    wanted = encode(images, toy_backbone(), cache_dir=tmp_path)
    (file,) = (tmp_path / "features").iterdir()
    encode(images, toy_backbone(), corruption="brightness", severity=5, cache_dir=tmp_path)
    (other,) = set((tmp_path / "features").iterdir()) - {file}
    file.write_bytes(other.read_bytes())
    with pytest.warns(UserWarning, match="features of another set. Its images are encoded again"):
        again = encode(images, toy_backbone(), cache_dir=tmp_path)
    assert torch.equal(again.pooled, wanted.pooled)


def test_a_cache_of_an_earlier_focoop_gains_checksums(images: ImageSet, tmp_path: Path) -> None:
    encode(images, toy_backbone(), cache_dir=tmp_path)
    (file,) = (tmp_path / "features").iterdir()
    whole = file.read_bytes()
    tensors, metadata = read_file(file)
    file.write_bytes(save(tensors, {k: v for k, v in metadata.items() if k != "checksums"}))
    counter = counting()
    assert len(encode(images, counter, cache_dir=tmp_path)) == len(images)
    assert counter.seen == 0 and file.read_bytes() == whole


@pytest.mark.parametrize("in_place", [True, False])
def test_an_image_replaced_by_one_of_its_size_and_time_is_seen(
    tmp_path: Path, in_place: bool
) -> None:
    root = tmp_path / "images"
    for name in ("ant", "bee"):
        (root / "test" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), "red").save(root / "test" / name / "0.bmp")
    images = read_folder(root, "test")
    before = data_hash(images, tmp_path)
    assert data_hash(images, tmp_path) == before
    file, status = root / "test" / "ant" / "0.bmp", (root / "test" / "ant" / "0.bmp").stat()
    time.sleep(0.02)  # the clock of a file system ticks slowly
    target = file if in_place else tmp_path / "other.bmp"
    Image.new("RGB", (8, 8), "blue").save(target)
    os.replace(target, file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    assert data_hash(images, tmp_path) != before


def test_a_cache_that_cannot_be_written_is_explained(images: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"a file where the folder should be")
    with pytest.raises(DataError, match="FOCOOP_CACHE"):
        encode(images, toy_backbone(), cache_dir=tmp_path / "c")


def test_unknown_patch_kinds_are_refused(images: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it has grid"):
        encode(images, toy_backbone(), patches="lf_z", cache_dir=tmp_path)


def test_images_with_domains_keep_them(tmp_path: Path) -> None:
    root = plant_images(tmp_path / "images", per_class=1)
    (root / "train").rename(root / "photo")
    (root / "test").rename(root / "sketch")
    got = open_features(f"folder:{root}", "all", toy_backbone(), cache_dir=tmp_path)
    assert got.domain_names == ("photo", "sketch") and got.domains is not None
    assert got.domains.tolist() == [0, 0, 0, 1, 1, 1]
    one = open_features(f"folder:{root}", "sketch", toy_backbone(), True, cache_dir=tmp_path)
    assert torch.equal(one.pooled, got.pooled[3:]) and one.patches is not None
    assert one.domains is not None and one.domains.tolist() == [1, 1, 1]


def test_the_cache_lies_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("FOCOOP_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "focoop"


@pytest.mark.shared
def test_mini_encodes_a_shared_image_as_stored(
    mini: Backbone, shared_dir: Path, tmp_path: Path
) -> None:
    source = shared_dir / "images" / "cifar100" / "test" / "apple"
    folder = tmp_path / "images" / "test" / "apple"
    folder.mkdir(parents=True)
    for name in ("000.png", "007.png"):
        (folder / name).write_bytes((source / name).read_bytes())
    got = open_features(f"folder:{tmp_path / 'images'}", "test", mini, True, tmp_path / "cache")
    stored = open_features(f"file:{shared_dir}/features/cifar100.safetensors", "test", mini)
    rows = stored.select(stored.labels == stored.classes.index("apple")).select([0, 7])
    assert float((got.pooled * rows.pooled).sum(-1).min()) > 0.999
    assert got.patches is not None and got.patches.shape == (2, 16, 256)


def test_an_images_features_do_not_depend_on_the_others(mini: Backbone, tmp_path: Path) -> None:
    """Sites that encode their own images get what one machine gets of all of them."""
    images = read_folder(plant_images(tmp_path / "images", side=40), "test")
    whole = encode(images, mini, patches="grid", cache_dir=tmp_path)
    for rows in (range(5), range(3, 12), range(10, 12)):
        part = encode(images.take(list(rows)), mini, patches="grid", cache_dir=tmp_path)
        assert torch.equal(part.pooled, whole.pooled[rows.start : rows.stop])
        assert part.patches is not None and whole.patches is not None
        assert torch.equal(part.patches, whole.patches[rows.start : rows.stop])
