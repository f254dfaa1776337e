"""ONNX files answer as the models they were made of."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import focoop
from focoop.clip import ImageFeatures
from focoop.errors import MethodError, MissingExtra, RunError
from focoop.methods import available
from focoop.predict import VERDICTS, Model, onnx_file
from tests.helpers import toy_backbone
from tests.predict.test_model import calibrated, images, model_of
from tools.check_export import Asked, OnnxTower, compared

SETS = ("cifar100", "dtd", "sun", "tinyimagenet")
onnxruntime = pytest.importorskip("onnxruntime")


def toy_model(name: str, threshold: float = 0.1) -> Model:
    model = model_of(name, calibrated(threshold, 0.5))
    model.__dict__["backbone"] = toy_backbone(dim=16)  # the width of the toy's features
    return model


def answers_of(path: Path, **given: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


def same(model: Model, found: dict[str, np.ndarray], wanted: focoop.Predictions) -> float:
    """Compare all outputs; returns the largest difference of scores, beyond 1 a relative one."""
    names = model.classes
    assert [names[place] for place in found["label"]] == [answer.top[0].label for answer in wanted]
    assert [VERDICTS[place] for place in found["verdict"]] == [a.verdict for a in wanted]
    best = found["probabilities"].max(axis=1)
    np.testing.assert_allclose(best, [a.probability for a in wanted], atol=1e-4)
    if "p_value" in found:
        np.testing.assert_allclose(found["p_value"], [a.p_value for a in wanted], atol=1e-9)
    if "class_set" in found:
        sets = [{names[place] for place in np.flatnonzero(row)} for row in found["class_set"]]
        assert sets == [set(a.class_set or ()) for a in wanted]
    scores = np.array([answer.score for answer in wanted])
    return float((np.abs(found["score"] - scores) / np.maximum(1.0, np.abs(scores))).max())


def test_the_graph_answers_as_the_model_at_every_position_of_the_dial() -> None:
    model = toy_model("focoop_plus")
    pixels = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    encoded = model.backbone.encode_images(pixels)
    for client in (0, "global"):
        graph = onnx_file.Graph(model, model.side(client), pixels=True)
        for share in (0.0, 0.3, 1.0):
            parts = [part.numpy() for part in graph(pixels, torch.tensor(share))]
            found = dict(zip(onnx_file.OUTPUTS, parts, strict=False))
            wanted = model.decide(encoded, client=client, open_share=share)
            assert same(model, found, wanted) < 1e-9


@pytest.mark.slow
def test_a_file_of_features_answers_as_its_model_at_every_position_of_the_dial(
    tmp_path: Path,
) -> None:
    asked = images("focoop_plus")
    middle = float(np.median([a.score for a in model_of("focoop_plus").decide(asked, client=0)]))
    model = toy_model("focoop_plus", middle)
    path = model.to_onnx(tmp_path / "new" / "model.onnx", client=0, pixels=False)
    assert [part.name for part in path.parent.iterdir()] == ["model.onnx"]
    features = asked.pooled.numpy()
    assert same(model, answers_of(path, features=features), model.decide(asked, client=0)) < 1e-9
    for share in (0.0, 0.2, 1.0):
        found = answers_of(path, features=features, open_share=np.array(share, np.float32))
        assert same(model, found, model.decide(asked, client=0, open_share=share)) < 1e-9
    session = onnxruntime.InferenceSession(str(path))
    facts = json.loads(session.get_modelmeta().custom_metadata_map["focoop"])
    assert facts["classes"] == list(model.classes) and facts["threshold"] == middle
    before = path.read_bytes()
    with pytest.raises(RunError, match="not kept"):
        onnx_file._check(
            onnxruntime,
            path,
            model,
            model.side(0),
            onnx_file._sample(model, onnx_file.Graph(model, model.side(0), pixels=False)),
            far=-1.0,
        )
    assert path.read_bytes() == before


def test_a_graph_of_features_takes_as_many_patches_as_the_backbone_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = toy_model("fedotp")
    plain = model.backbone.encode_images

    def nine(pixels: torch.Tensor, patches: str | None = None) -> ImageFeatures:
        found = plain(pixels, patches)
        assert found.patches is not None
        return ImageFeatures(found.pooled, found.patches.repeat(1, 3, 1)[:, :9])

    monkeypatch.setattr(model.backbone, "encode_images", nine)
    graph = onnx_file.Graph(model, model.side(0), pixels=False)
    assert onnx_file._sample(model, graph).inputs["patches"].shape[1:] == (9, 16)


def test_without_the_packages_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(MissingExtra, match=r"focoop\[export\]"):
        toy_model("zeroshot").to_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    folder = model_of("promptfl").save(tmp_path / "model")
    with pytest.raises(MissingExtra, match=r"focoop\[export\]"):
        focoop.export(folder, tmp_path / "other", onnx=True)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(available()))
def test_every_method_from_pixels_to_verdicts(name: str, tmp_path: Path) -> None:
    model, path = toy_model(name), tmp_path / "model.onnx"
    model.to_onnx(path, client=1)
    pixels = torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    kind = "grid" if model.method.patch_kind else None
    encoded = model.backbone.encode_images(pixels, patches=kind)
    wanted = model.decide(encoded, client=1, open_share=0.4)
    found = answers_of(path, pixels=pixels.numpy(), open_share=np.array(0.4, np.float32))
    assert same(model, found, wanted) < 1e-5


@pytest.mark.slow
def test_the_packaged_tower_gives_the_same_features_in_onnxruntime(tmp_path: Path) -> None:
    backbone = focoop.load_backbone("mini")
    tower = OnnxTower(backbone, "grid", tmp_path)
    draw = torch.Generator().manual_seed(0)
    coarse = [torch.rand(3, 3, size, size, generator=draw) for size in (4, 32, 224)]
    pixels = torch.cat([torch.nn.functional.interpolate(part, 224) for part in coarse]) * 2 - 1
    found, wanted = tower(pixels), backbone.encode_images(pixels, patches="grid")
    assert found.patches is not None and wanted.patches is not None
    # Equal bits with AVX2 and AVX-512. Where a processor's kernels add in another order, float32
    # leaves about 3e-7.
    torch.testing.assert_close(found.pooled, wanted.pooled, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.patches, wanted.patches, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_transport_of_too_many_iterations_is_refused(tmp_path: Path) -> None:
    model = toy_model("fedotp")
    config = dataclasses.replace(model.method.config, max_iterations=1000)  # type: ignore[type-var]
    model.method = type(model.method)(config)
    with pytest.raises(MethodError, match=r"max_iterations is 1000, .* export it without ONNX"):
        model.to_onnx(tmp_path / "model.onnx", client=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(900)
def test_a_run_its_export_and_its_onnx_file_agree(tmp_path: Path) -> None:
    shared = Path(__file__).parents[3] / "shared" / "images"
    settings = {"method.name": "focoop_plus", "federation.rounds": 1, "data.corrupted": []}
    focoop.run("demo", {**settings, "partition.shots": 8}, out=tmp_path / "run")
    focoop.calibrate(tmp_path / "run")
    out = focoop.export(tmp_path / "run", tmp_path / "model", client=3)
    own, saved = focoop.load_model(tmp_path / "run", client=3), focoop.load_model(out)
    # The decision, of 10,000 images.
    stored = load_file(shared.parent / "features" / "cifar100.safetensors")["pooled"]
    pooled = torch.nn.functional.normalize(stored[::3].float(), dim=-1)
    assert len(pooled) == 10_000
    wanted = own.decide(pooled)
    again = saved.decide(pooled)
    assert [a.top[0].label for a in wanted] == [a.top[0].label for a in again]
    assert [a.score for a in wanted] == [b.score for b in again]
    decision = saved.to_onnx(tmp_path / "decision.onnx", pixels=False)
    assert same(own, answers_of(decision, features=pooled.numpy()), wanted) < 1e-9
    # The whole path from image files; `tools/check_export.py` does it for 10,000 and more.
    files = [file for name in SETS for file in sorted((shared / name).rglob("*.*g"))[::8]]
    asked = Asked(tmp_path / "run", 3, tmp_path / "again", whole=True)
    done = list(compared([asked], tmp_path, files, whole=160))[-1]
    assert asked.found.whole, asked.found
    assert asked.features_apart < 1e-6 and asked.found.score["ONNX"] < 1e-5
    assert done == len(files) > 1000 and len(asked.found.verdicts) == 3
    assert asked.found.images == dict.fromkeys(asked.found.images, done) | {"ONNX file": 160}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"), [("ViT", "promptfl"), ("ViT", "fedlocoop"), ("ResNet", "promptfl")]
)
def test_towers_of_open_clip_take_bytes(family: str, name: str, tmp_path: Path) -> None:
    clip = pytest.importorskip("tests.clip.test_openclip")
    backbone = clip.backbone(clip.tiny(embed_dim=16, **clip.FAMILIES[family]))
    model = model_of(name)
    model.__dict__["backbone"] = backbone
    path = model.to_onnx(tmp_path / "model.onnx", client=0)
    side = backbone.image_size
    pixels = torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8)
    encoded = backbone.encode_images(pixels, patches="lf_b" if name == "fedlocoop" else None)
    found = answers_of(path, pixels=pixels.numpy())
    assert same(model, found, model.decide(encoded, client=0)) < 1e-4
