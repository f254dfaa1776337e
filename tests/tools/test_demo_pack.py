"""The demo pack against the reference folder it was made from."""

import gzip
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from focoop.clip.base import Backbone
from focoop.data import read_folder
from focoop.data.corruptions.apply import corrupt
from focoop.features import demo
from focoop.features.lookup import open_features
from focoop.features.storage import load_split, read_file


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "tools" / "make_demo_pack.py"
    spec = importlib.util.spec_from_file_location("make_demo_pack", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_demo_pack"] = module
    spec.loader.exec_module(module)
    return module


def test_ranks_count_within_class_and_split(tool: ModuleType) -> None:
    labels, split = torch.tensor([0, 1, 0, 0, 1, 0]), torch.tensor([0, 0, 0, 1, 0, 1])
    assert tool.ranks(labels, split).tolist() == [0, 0, 1, 0, 1, 1]


def test_rows_are_sorted_by_their_keys(tool: ModuleType) -> None:
    keep = torch.tensor([True, True, False, True])
    rows = tool.in_order(keep, torch.tensor([1, 0, 0, 0]), torch.tensor([0, 2, 0, 1]))
    assert rows.tolist() == [3, 1, 0]


@pytest.mark.shared
@pytest.mark.parametrize("name", ["cifar100", "dtd", "dtd_32px", "sun", "sun_32px"])
def test_packed_rows_are_rows_of_the_reference(name: str, shared_dir: Path) -> None:
    path = shared_dir / "features" / f"{name}.safetensors"
    for split in ("train", "test") if name == "cifar100" else ("test",):
        packed = open_features(f"demo:{name}", split)
        whole = load_split(path, split)
        assert packed.classes == whole.classes
        best, row = (packed.pooled @ whole.pooled.T).max(dim=1)
        assert float(best.min()) > 0.999 and torch.equal(packed.labels, whole.labels[row])
        assert len(set(row.tolist())) == len(packed)
        patched = open_features(f"demo:{name}", split, with_patches=True)
        source = load_split(path, split, with_patches=True)
        match = (patched.pooled @ source.pooled.T).argmax(dim=1)
        assert patched.patches is not None and source.patches is not None
        assert float((patched.patches * source.patches[match]).sum(-1).min()) > 0.999


@pytest.mark.shared
def test_writing_again_gives_the_packaged_content(
    tool: ModuleType, shared_dir: Path, tmp_path: Path
) -> None:
    for name in ("sun", "dtd_32px"):
        source = shared_dir / "features" / f"{name}.safetensors"
        rows = tool.ood_rows(source)
        first = tool.write(tmp_path, name, rows, "", tool.OOD[name])
        raw = (tmp_path / first["file"]).read_bytes()
        assert first == tool.write(tmp_path, name, rows, "", tool.OOD[name])
        # Another zlib may pack the same content into other bytes; checksums in heads are newer.
        made, packed = (
            load(gzip.decompress(data)) for data in (raw, demo.demo_path(name).read_bytes())
        )
        assert made.keys() == packed.keys()
        assert all(np.array_equal(made[key], packed[key]) for key in made)


@pytest.mark.shared
def test_packed_brightness_is_what_mini_sees(mini: Backbone, shared_dir: Path) -> None:
    import numpy as np
    from PIL import Image

    images = read_folder(shared_dir / "images" / "cifar100", "test")
    for severity, label in ((1, 17), (5, 80)):
        packed = open_features(f"demo:cifar100#brightness@{severity}", "test", mini)
        row = int((packed.labels == label).nonzero()[3])
        with Image.open(images.root / f"test/{images.classes[label]}/003.png") as opened:
            pixels = corrupt(np.asarray(opened.convert("RGB")), "brightness", severity)
        seen = mini.encode_images(mini.preprocess(Image.fromarray(pixels))[None])
        assert float((seen.pooled[0] * packed.pooled[row]).sum()) > 0.999


def test_stored_levels_fit_the_step(tool: ModuleType) -> None:
    tensors, _ = read_file(demo.demo_path("cifar100"))
    assert int(tensors["patches_q"].abs().max()) <= 127
    steps = tensors["patches_scale"].float().unique()
    assert float(steps.min()) == pytest.approx(tool.PATCH_STEP, rel=1e-3)
