"""The page's program reads an ONNX file without focoop and torch, and its scores are ours."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import focoop
from focoop.clip import Backbone
from focoop.clip.openclip import wrap
from focoop.data import read_rgb
from focoop.predict import Model, check_sums
from focoop.predict.onnx_facts import HEADING, describe_graph, tell_card
from tests.clip.test_openclip import VIT, tiny, tokenizer
from tests.predict.test_model import calibrated, model_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model-format.md"
CLIPS: dict[str, dict[str, Any]] = {
    "CLIP": {},
    "squashed": {"resize_mode": "squash", "interpolation": "bilinear"},
}
ALONE = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("focoop", "torch", "torchvision", "open_clip"):
            raise ImportError(name)
sys.meta_path.insert(0, Refused())
"""


def program() -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    return str(block)


def functions() -> dict[str, Callable[..., Any]]:
    pytest.importorskip("onnxruntime")
    names: dict[str, Any] = {}
    exec(compile(program().partition("\nsession = ")[0], PAGE.name, "exec"), names)
    return names


def clip(name: str) -> Backbone:
    model = tiny(vision_cfg=VIT, embed_dim=16)
    return wrap(model, tokenizer(model), {"size": 32, **CLIPS[name]}, "openclip:tiny:custom")


def write_images(folder: Path) -> list[Path]:
    """Photographs of many sizes, one on its side, one half transparent, one palette, one grey."""
    draw, files = np.random.default_rng(0), []
    for width, height in ((32, 32), (40, 30), (224, 224), (225, 300), (500, 333), (1001, 750)):
        coarse = draw.integers(0, 256, (6, 9, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        files.append(folder / f"{width}.png")
        image.save(files[-1])
    turned = Image.Exif()
    turned[0x0112] = 6
    for name, picture, options in (
        ("turned.jpg", image, {"exif": turned}),
        ("clear.png", image.convert("RGBA"), {}),
        ("palette.gif", image, {}),
        ("grey.png", image.convert("L"), {}),
    ):
        if picture.mode == "RGBA":
            picture.putalpha(image.convert("L"))
        files.append(folder / name)
        picture.save(files[-1], **options)
    return files


def test_the_page_prepares_images_as_the_backbones_do(tmp_path: Path) -> None:
    own, files = functions(), write_images(tmp_path)
    mini = focoop.load_backbone("mini")
    for file in files:
        image = own["read_image"](file)
        assert np.array_equal(np.asarray(image), np.asarray(read_rgb(file))), file
        pixels = own["prepare_mini"](image, mini.describe_pixels())
        assert pixels.dtype == np.float32
        np.testing.assert_allclose(pixels, mini.prepare(image).numpy(), rtol=0, atol=2e-5)
        for name in CLIPS:
            backbone = clip(name)
            pixels = own["prepare_clip"](image, backbone.describe_pixels())
            assert pixels.dtype == np.uint8
            assert np.array_equal(pixels, backbone.prepare(image).numpy()), (file, name)


@pytest.mark.parametrize("name", ["mini", *CLIPS])
def test_numbers_of_the_description_are_those_of_the_backbone(name: str) -> None:
    backbone = focoop.load_backbone("mini") if name == "mini" else clip(name)
    rule = backbone.describe_pixels()
    assert rule["size"] == backbone.image_size
    assert f"torch.{rule['dtype']}" == str(backbone.pixel_type)
    image = Image.new("RGB", (backbone.image_size,) * 2, (10, 100, 250))
    value = (np.array([10, 100, 250]) / rule["scale"] - rule["mean"]) / np.array(rule["std"])
    np.testing.assert_allclose(backbone.preprocess(image)[:, 0, 0].numpy(), value, atol=1e-6)
    before = rule["normalised"] == "before the graph"
    assert before == (rule["dtype"] == "float32") and rule["channels"] == "RGB"


def test_the_card_says_what_the_graph_takes_once(tmp_path: Path) -> None:
    model: Model = model_of("focoop", calibrated(0.1, 0.5))
    folder = model.save(tmp_path / "model")
    card = folder / "README.md"
    card.write_text(card.read_text().replace("license: other", "license: mit"))
    names = ["pixels", "open_share", "score", "verdict"]
    tree = describe_graph(model, 0, clip("CLIP"), names)
    assert tree["threshold"] == 0.1 and set(tree["outputs"]) == {"score", "verdict"}
    tell_card(folder, {**tree, "client": "of another time"})
    tell_card(folder, tree)
    text = card.read_text()
    assert text.count(HEADING) == 1 and "license: mit" in text and "another time" not in text
    (shown,) = re.findall(r"```json\n(.*?)\n```", text, re.S)
    assert json.loads(shown) == {key: value for key, value in tree.items() if key != "classes"}
    features = describe_graph(model, None, None, ["features", "score"])
    assert features["preprocessing"] is None and features["client"] == "global"


def ask_alone(folder: Path, files: list[Path]) -> list[list[str]]:
    text = program().replace('["photo.jpg"]', repr([str(file) for file in files]))
    done = subprocess.run(
        [sys.executable, "-c", ALONE + text],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return [line.rsplit(maxsplit=1) for line in done.stdout.splitlines()]


def compare(model: Model, client: int, folder: Path, files: list[Path]) -> None:
    told = ask_alone(folder, files)
    wanted = model.predict(files, client=client)
    assert [words for words, _ in told] == [f"{a.verdict} {a.top[0].label}" for a in wanted]
    scores = [float(score) for _, score in told]
    np.testing.assert_allclose(scores, [a.score for a in wanted], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_scores_of_the_packaged_backbone_without_focoop_are_ours(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    settings = {"method.name": "focoop_plus", "federation.rounds": 1, "data.corrupted": []}
    focoop.run("demo", {**settings, "partition.shots": 4}, out=tmp_path / "run")
    focoop.calibrate(tmp_path / "run")
    folder = focoop.export(tmp_path / "run", tmp_path / "model", client=3, onnx=True)
    assert "README.md" in check_sums(folder)
    compare(focoop.load_model(tmp_path / "run"), 3, folder, write_images(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIPS)
def test_scores_of_open_clip_without_focoop_are_ours(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    model = model_of("promptfl", calibrated(0.1, 0.5))
    model.__dict__["backbone"] = clip(name)
    folder = model.save(tmp_path / "model")
    model.to_onnx(folder / "model.onnx", client=0)
    assert "README.md" in check_sums(folder)
    compare(model, 0, folder, write_images(tmp_path))
