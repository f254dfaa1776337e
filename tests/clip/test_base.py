"""The backbone interface and how backbones are named."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from focoop.clip import load_backbone
from focoop.clip.base import Backbone
from focoop.errors import BackboneError, MissingExtra
from tests.helpers import toy_backbone


@pytest.mark.parametrize("which", ["toy", "mini"])
def test_a_written_context_equals_the_text(which: str, mini: Backbone) -> None:
    backbone = mini if which == "mini" else toy_backbone()
    names = ["dog", "aquarium_fish", "hot air balloon"]
    words = backbone.tokenize(["a photo of a"])[0, 1:5]
    context = backbone.text.tok(words)
    prompted = backbone.encode_prompts(context, backbone.names(names))
    written = backbone.encode_texts([f"a photo of a {n.replace('_', ' ')}." for n in names])
    torch.testing.assert_close(prompted, written, atol=1e-6, rtol=0)
    torch.testing.assert_close(written.norm(dim=1), torch.ones(3))


def test_sizes_come_from_the_text_tower() -> None:
    backbone = toy_backbone(width=8, dim=6, layers=1)
    assert (backbone.width, backbone.dim, backbone.device.type) == (8, 6, "cpu")


def test_toy_backbones_differ_by_seed_only() -> None:
    same, other = toy_backbone(0).encode_texts(["dog"]), toy_backbone(1).encode_texts(["dog"])
    torch.testing.assert_close(toy_backbone(0).encode_texts(["dog"]), same, atol=0, rtol=0)
    assert (same - other).abs().max() > 0.01


@pytest.mark.parametrize(
    "name", ["", "maxi", "mini:x", "openclip", "openclip:ViT-B-16", "clip:a:b"]
)
def test_unknown_backbones_are_refused_with_the_valid_forms(name: str) -> None:
    with pytest.raises(
        BackboneError, match=r"'mini', 'openclip:<model>:<pretrained>'.* or 'local-dir:<folder>'"
    ):
        load_backbone(name)


def test_mini_takes_no_weights() -> None:
    with pytest.raises(BackboneError, match="drop --weights"):
        load_backbone("mini", weights=Path("weights.pt"))


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_devices_that_are_not_there_are_refused(device: str) -> None:
    with pytest.raises(BackboneError, match=f"'{device}'.*cpu"):
        load_backbone("mini", device=device)


@pytest.mark.slow
def test_mini_needs_only_torch_numpy_and_safetensors() -> None:
    code = """
import sys
for name in ("PIL", "open_clip", "timm", "typer", "rich", "matplotlib", "regex", "ftfy", "scipy"):
    sys.modules[name] = None
import torch
from focoop.clip import load_backbone
backbone = load_backbone("mini")
assert backbone.encode_texts(["a dog."]).shape == (1, 256)
assert backbone.encode_images(torch.zeros(1, 3, 224, 224), "grid").patches.shape == (1, 16, 256)
"""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)


def test_without_open_clip_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.delitem(sys.modules, "focoop.clip.openclip", raising=False)
    monkeypatch.delitem(sys.modules, "focoop.clip.weights", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'focoop\[openclip\]'"):
        load_backbone("openclip:ViT-B-16:openai")
