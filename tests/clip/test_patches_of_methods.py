"""A run loads the patch features that its method reads, from images and from files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from focoop.clip.openclip import OpenClipBackbone, build, wrap
from focoop.config import loading, schema
from focoop.errors import BackboneError, DataError, MethodError
from focoop.experiments.running import run_experiment
from focoop.features.lookup import open_features, patch_kind_of, save_splits
from focoop.runs import start
from focoop.runs.manifest import collect
from focoop.scenario import scenario
from focoop.scenario import task as scenario_task
from focoop.seeds import numpy_generator, torch_generator
from tests.helpers import toy_backbone

TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
VIT = {"image_size": 24, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
READS = {"fedotp": "lf_a", "fedlocoop": "lf_b", "fedgallop": "lf_c", "promptfl": ""}


@pytest.fixture(scope="module")
def vit() -> OpenClipBackbone:
    """A tiny random ViT: D = 32 in the joint space, D' = 64 before the last projection."""
    torch_config = {"embed_dim": 32, "vision_cfg": VIT, "text_cfg": TEXT}
    model = build(torch_config, quick_gelu=False).eval()
    generator = torch_generator(0, "patches of methods")
    for tensor in model.state_dict().values():
        tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    return wrap(model, open_clip.SimpleTokenizer(), {"size": 24}, "openclip:tiny:none")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, six training and three test images each."""
    root = tmp_path_factory.mktemp("images")
    generator = numpy_generator(0, "images")
    for split, count in (("train", 6), ("test", 3)):
        for name in ("ant", "bee"):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 256, (24, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


@pytest.fixture
def settings(images: Path) -> Callable[..., schema.RunConfig]:
    def made(method: str, *more: str) -> schema.RunConfig:
        overrides = [
            f"data.id=folder:{images}",
            "data.corrupted=[]",
            f'data.ood=["folder:{images}"]',
            f"method.name={method}",
            "partition.kind=iid",
            "partition.clients=2",
            "partition.shots=2",
            "federation.rounds=1",
            "federation.epochs=1",
        ]
        return loading.load(None, [*overrides, *more])

    return made


@pytest.fixture
def loads_vit(vit: OpenClipBackbone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scenario_task, "load_backbone", lambda *rest, **more: vit)
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("method", "kind"), READS.items())
def test_a_run_sees_the_kind_its_method_reads(
    method: str,
    kind: str,
    vit: OpenClipBackbone,
    images: Path,
    settings: Callable[..., schema.RunConfig],
    loads_vit: None,
) -> None:
    built = scenario.build_scenario(settings(method, "data.with_patches=true"))
    sets = [built.split.train, built.split.test, *built.sets.ood.values()]
    if not kind:
        assert all(one.patches is None for one in sets)
        return
    paths = [images / "test" / name / f"{i}.png" for name in ("ant", "bee") for i in range(3)]
    batch = torch.stack([vit.preprocess(Image.open(path)) for path in paths])
    expected = vit.encode_images(batch, kind).patches
    assert expected is not None
    assert expected.shape == (6, 9, 64 if kind == "lf_c" else 32)
    for found in (built.split.test, *built.sets.ood.values()):
        assert found.patches is not None
        # Stored as int8: half a step of the largest entry, relative to a unit vector.
        torch.testing.assert_close(found.patches, F.normalize(expected, dim=2), atol=5e-3, rtol=0)


def test_kinds_are_cached_apart(vit: OpenClipBackbone, images: Path, tmp_path: Path) -> None:
    found = {
        kind: open_features(f"folder:{images}", "test", vit, True, tmp_path, patch_kind=kind)
        for kind in ("lf_a", "lf_b", "lf_c", "lf_a")
    }
    assert len(list((tmp_path / "features").glob("*.safetensors"))) == 3
    first, second = found["lf_a"].patches, found["lf_b"].patches
    assert first is not None
    assert second is not None
    assert not torch.allclose(first, second, atol=0.05)
    assert torch.equal(found["lf_a"].pooled, found["lf_c"].pooled)


@pytest.mark.parametrize("method", [name for name, kind in READS.items() if kind])
def test_every_patch_method_trains_on_a_vit(
    method: str, settings: Callable[..., schema.RunConfig], loads_vit: None, tmp_path: Path
) -> None:
    more = ("federation.rounds=4", "federation.lr=0.3", "backbone.logit_scale=10.0")
    chosen = settings(method, "data.with_patches=true", *more)
    folder = start(tmp_path / "run", chosen, collect(chosen), resume=False)
    with folder:
        run_experiment(chosen, folder)
        losses = [row["loss"] for row in folder.metrics() if row["round"]]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("method", [name for name, kind in READS.items() if kind])
def test_without_patches_the_run_is_refused_before_anything_is_loaded(
    method: str, settings: Callable[..., schema.RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenario_task, "load_backbone", None)
    with pytest.raises(MethodError, match=rf"{method} .*data\.with_patches=true"):
        scenario.build_scenario(settings(method))


def test_a_backbone_without_the_kind_is_refused_before_images_are_encoded(
    settings: Callable[..., schema.RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = toy_backbone()
    monkeypatch.setattr(scenario_task, "load_backbone", lambda *rest, **more: backbone)
    monkeypatch.setattr(scenario, "make_split", None)
    for kinds, told in ((("lf_a",), "offers: lf_a"), ((), "offers: none")):
        backbone.patch_kinds = kinds
        with pytest.raises(BackboneError, match=rf"toy has no patch features 'lf_b' \(it {told}\)"):
            scenario.build_scenario(settings("fedlocoop", "data.with_patches=true"))


@pytest.mark.parametrize(
    ("kinds", "wanted", "given"),
    [
        (("grid",), "lf_b", "grid"),
        (("grid",), None, "grid"),
        (("grid",), "", None),
        (("lf_a", "lf_b"), "lf_b", "lf_b"),
        (("lf_a", "lf_b"), None, "lf_a"),
        ((), "", None),
    ],
)
def test_which_kind_serves(kinds: tuple[str, ...], wanted: str | None, given: str | None) -> None:
    backbone: Any = toy_backbone()
    backbone.patch_kinds = kinds
    assert patch_kind_of(backbone, wanted) == given


def test_files_remember_their_kind_and_backbone(
    vit: OpenClipBackbone, images: Path, tmp_path: Path
) -> None:
    made = open_features(f"folder:{images}", "test", vit, True, tmp_path, patch_kind="lf_a")
    path = tmp_path / "saved.safetensors"
    save_splits(path, {"test": made})
    same = open_features(f"file:{path}", "test", vit, True, patch_kind="lf_a")
    assert same.provenance["fingerprint"] == vit.image_fingerprint
    assert same.patches is not None
    with pytest.raises(DataError, match="holds patch features 'lf_a' and the method reads 'lf_b'"):
        open_features(f"file:{path}", "test", vit, True, patch_kind="lf_b")
    assert len(open_features(f"file:{path}", "test", vit, True, patch_kind="")) == 6
