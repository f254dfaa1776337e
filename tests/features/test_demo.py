"""The packaged demo features as a user meets them."""

import json
from pathlib import Path

import pytest
import torch

from focoop.clip.base import Backbone
from focoop.errors import DataError
from focoop.features import demo
from focoop.features.lookup import open_features

MEGABYTE = 1_000_000


def test_the_pack_is_whole_and_small() -> None:
    assert demo.verify() == []
    assert sum(file.path.stat().st_size for file in demo.files().values()) <= 18.5 * MEGABYTE
    assert demo.names() == ("cifar100", "dtd", "dtd_32px", "sun", "sun_32px")
    listed = {file.path.name for file in demo.files().values()}
    assert {path.name for path in demo.FOLDER.glob("*.gz")} == listed


def test_the_pack_lives_in_the_joint_space_of_mini(mini: Backbone) -> None:
    test = open_features("demo:cifar100", "test", mini)
    prompts = [f"a photo of a {name.replace('_', ' ')}." for name in test.classes]
    hits = (test.pooled @ mini.encode_texts(prompts).T).argmax(1) == test.labels
    recorded = demo.manifest()["zero_shot_accuracy"]["packed"]
    assert 100 * float(hits.float().mean()) == pytest.approx(recorded, abs=0.1)
    assert recorded > 25


def test_cifar_has_16_training_and_20_test_images_per_class_with_patches() -> None:
    for split, count in (("train", 16), ("test", 20)):
        features = open_features("demo:cifar100", split, with_patches=True)
        assert features.labels.bincount().tolist() == [count] * 100
        assert features.patches is not None and features.patches.shape[1:] == (16, 256)
        for vectors in (features.pooled, features.patches):
            norms = vectors.norm(dim=-1)
            torch.testing.assert_close(norms, torch.ones_like(norms), atol=1e-5, rtol=0)
        bare = open_features("demo:cifar100", split)
        assert bare.patches is None and torch.equal(bare.pooled, features.pooled)


def test_brightness_moves_the_same_images_further_at_each_severity() -> None:
    clean = open_features("demo:cifar100", "test")
    cosines = []
    for severity in range(1, 6):
        bright = open_features(f"demo:cifar100#brightness@{severity}", "test")
        assert torch.equal(bright.labels, clean.labels) and bright.classes == clean.classes
        cosine = (bright.pooled * clean.pooled).sum(-1)
        # An image is nearer to its own brighter copy than to its neighbour in the list.
        other = (bright.pooled * clean.pooled.roll(1, 0)).sum(-1)
        assert float((cosine > other).float().mean()) > 0.97
        cosines.append(float(cosine.mean()))
    assert cosines == sorted(cosines, reverse=True) and cosines[0] > 0.9


@pytest.mark.parametrize("name", ["dtd", "sun"])
def test_ood_sets_hold_the_same_images_sharp_and_blurred(name: str) -> None:
    sharp, blurred = (open_features(f"demo:{n}", "test") for n in (name, f"{name}_32px"))
    assert 950 <= len(sharp) <= 1050 and torch.equal(sharp.labels, blurred.labels)
    assert sharp.labels.bincount().min() > 20  # spread over all classes
    assert float((sharp.pooled * blurred.pooled).sum(-1).median()) < 0.9
    rows = [open_features(f"demo:{n}", "test", with_patches=True) for n in (name, f"{name}_32px")]
    assert 230 <= len(rows[0]) <= 270 and torch.equal(rows[0].labels, rows[1].labels)


def test_the_whole_pack_opens() -> None:
    for name, entry in demo.files().items():
        spec = "demo:" + name.replace(".brightness.", "#brightness@")
        for split, count in entry.details["rows"].items():
            if count:
                assert len(open_features(spec, split)) == count
    open_features("demo:cifar100", "train", with_patches=True)


def test_the_manifest_records_small_errors() -> None:
    for file in demo.files().values():
        assert file.details["cosine_pooled"]["least"] > 0.999
        if file.details["rows_with_patches"]:
            assert file.details["cosine_patches"]["least"] > 0.999
    accuracy = demo.manifest()["zero_shot_accuracy"]
    assert abs(accuracy["packed"] - accuracy["unquantised"]) < 0.3
    assert "/" not in json.dumps(demo.manifest()["backbone"])


def test_damaged_and_missing_packs_are_found(tmp_path: Path) -> None:
    for path in demo.FOLDER.iterdir():
        if not path.name.startswith("cifar100"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    raw = bytearray((tmp_path / "sun.safetensors.gz").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "sun.safetensors.gz").write_bytes(raw)
    problems = demo.verify(tmp_path)
    assert len(problems) == 7 and sum("is missing" in line for line in problems) == 6
    assert any("sun.safetensors.gz" in line and "is damaged" in line for line in problems)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="reinstall focoop"):
        demo.files(tmp_path / "empty")
