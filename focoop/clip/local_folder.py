"""Backbones of a local folder in open_clip's convention: `open_clip_config.json` beside weights.

Weights without an image tower make a backbone for features that somebody else computed. It needs no
open_clip.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from focoop.caching import parse_json
from focoop.clip.base import Backbone, ImageFeatures
from focoop.clip.text.tower import TextTower
from focoop.clip.text_weights import FAMILIES, make_tower, refusal_of
from focoop.clip.tokenizer import EOT, SOT, Tokenizer
from focoop.clip.transformers_weights import from_transformers, is_transformers
from focoop.clip.weight_files import RECORD, shapes_of, weight_file
from focoop.errors import BackboneError

VOCABULARY = EOT + 1
ROWS = "token_rows"  # names the tokens of a table that lacks others (tools/device_features.py)
BYTES = 512  # tokens that every such table has


class TextBackbone(Backbone):
    """A text tower without an image tower."""

    text_alone = True

    def __init__(
        self, name: str, tower: TextTower, tokenize: Callable[[Sequence[str]], Tensor], scale: float
    ) -> None:
        self.name, self.text, self.tokenize, self.logit_scale = name, tower, tokenize, scale
        self.patch_kinds, self.image_size = (), 0
        self.fingerprint = self.image_fingerprint = fingerprint(tower, scale)

    def preprocess(self, image: Any) -> Tensor:
        """Refuse an image."""
        raise self.no_image_tower()

    def describe_pixels(self) -> dict[str, Any]:
        """Refuse: no pixels are read."""
        raise self.no_image_tower()

    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        """Refuse images."""
        raise self.no_image_tower()


def load_folder(folder: Path, name: str, device: str = "cpu") -> Backbone:
    """Load a backbone of a folder that has a configuration and weights under open_clip's names.

    Args:
        folder: The folder.
        name: How a user names the backbone.
        device: Where the towers live.

    Returns:
        The backbone; one without an image tower where the weights have none.

    Raises:
        BackboneError: The folder or what it holds cannot be used.
    """
    folder = folder.expanduser()
    record, path = read_record(folder), weight_file(folder)
    if not any(key.startswith(("visual.", "vision_model.")) for key in shapes_of(path)):
        return _text_alone(name, record["model_cfg"], path, device)
    from focoop.clip.openclip import load_record

    return load_record(name, record, path, device)


def read_record(folder: Path) -> dict[str, Any]:
    """Read the configuration of a folder.

    Args:
        folder: The folder.

    Returns:
        open_clip's record: `model_cfg`, and `preprocess_cfg` where images are read.

    Raises:
        BackboneError: There is none, or prompts cannot go through its text tower.
    """
    path = folder / RECORD
    if not folder.is_dir():
        raise BackboneError(
            f"there is no folder {folder}: check backbone.name = local-dir:FOLDER, or say by "
            "--weights FOLDER where it is now"
        )
    try:
        record: dict[str, Any] = parse_json(path.read_text("utf-8"))
        reason = refusal_of(record["model_cfg"])
    except FileNotFoundError as error:
        raise BackboneError(
            f"{folder} has no {RECORD}, which says how the weights beside it are used: copy it "
            "from the model's page on the hub, or write it as docs/reference/backbones.md shows"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackboneError(
            f"{path} is no configuration of open_clip: it needs model_cfg with embed_dim and "
            f"text_cfg ({type(error).__name__}: {error})"
        ) from error
    if reason:
        raise BackboneError(f"the model of {folder} cannot be prompted: {reason}; {FAMILIES}")
    return record


def _text_alone(name: str, config: Mapping[str, Any], path: Path, device: str) -> TextBackbone:
    """A backbone of weights without an image tower."""
    text = config["text_cfg"]
    try:
        state = _read(path)
        scale = float(state.get("logit_scale", torch.tensor(100.0).log()).float().exp())
        rows = state.pop(ROWS, None)
        if rows is not None:
            part = state["token_embedding.weight"].float()
            table = torch.full((VOCABULARY, part.shape[1]), float("nan"))
            state["token_embedding.weight"] = table.index_copy(0, rows.long(), part)
        tanh = (text.get("act_kwargs") or {}).get("approximate") == "tanh"
        activation = "quick_gelu" if config.get("quick_gelu") else "gelu_tanh" if tanh else "gelu"
        eps = (text.get("norm_kwargs") or {}).get("eps", 1e-5)
        tower = make_tower(state, text.get("heads", 8), activation, eps)
    except BackboneError:
        raise
    except Exception as error:  # whatever a wrong or damaged file makes the readers raise
        raise BackboneError(
            f"{path} does not hold the text tower of {RECORD} beside it, or is damaged "
            f"({type(error).__name__}: {error}): get both files again"
        ) from error
    _refuse_other_shape(path, config, tower)
    tokenize: Callable[[Sequence[str]], Tensor] = Tokenizer(tower.shape.context_length)
    if rows is not None:
        tokenize = _Part(tokenize, rows, path)
    return TextBackbone(name, tower.to(device), tokenize, scale)


def _read(path: Path) -> dict[str, Tensor]:
    """The text side of a weight file, under open_clip's names."""
    if path.suffix == ".safetensors":
        state = load_file(path)
    else:
        state = torch.load(path, "cpu", weights_only=True)
        state = state.get("state_dict", state)
    if is_transformers(state):
        state = from_transformers(state)
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise BackboneError(
                f"{path} holds numbers that are none (NaN or infinity) in {name}: it is damaged; "
                "compare its sha256 and fetch it again"
            )
    return {key.removeprefix("module.").removeprefix("text."): state[key] for key in state}


def _refuse_other_shape(path: Path, config: Mapping[str, Any], tower: TextTower) -> None:
    """Refuse weights of another size than the configuration's, or of another vocabulary."""
    text, shape = config["text_cfg"], tower.shape
    told = {key: text.get(key) for key in ("width", "layers", "context_length", "vocab_size")}
    told["embed_dim"] = config.get("embed_dim")
    rows = len(tower.state_dict()["tok.weight"])
    is_so = {"width": shape.width, "layers": shape.layers, "context_length": shape.context_length}
    is_so |= {"vocab_size": rows, "embed_dim": shape.dim}
    for key, value in told.items():
        if value not in (None, is_so[key]):
            raise BackboneError(
                f"{path} has {key} = {is_so[key]}, and {RECORD} beside it says {value}: they are "
                "not of one model"
            )
    if rows != VOCABULARY:
        raise BackboneError(
            f"{path} has a vocabulary of {rows} tokens, and CLIP's has {VOCABULARY}: {FAMILIES}"
        )


class _Part:
    """A tokeniser that refuses texts with tokens which a smaller table lacks."""

    def __init__(self, whole: Callable[[Sequence[str]], Tensor], rows: Tensor, path: Path) -> None:
        self.whole, self.path = whole, path
        self.there = torch.zeros(VOCABULARY, dtype=torch.bool)
        self.there[rows.long()] = self.there[0] = True  # 0 fills rows up

    def __call__(self, texts: Sequence[str]) -> Tensor:
        tokens = self.whole(texts)
        lacking = (~self.there[tokens]).any(dim=1)
        if bool(lacking.any()):
            text = texts[int(lacking.nonzero()[0])]
            raise BackboneError(
                f"{self.path} holds a part of the vocabulary, which {text!r} is not written with: "
                "take the whole file, or make the part again with the words of this run"
            )
        return tokens


def fingerprint(tower: TextTower, scale: float) -> str:
    """Hash a text tower; of its token table, the rows that every part of it has.

    Args:
        tower: The tower.
        scale: Its logit scale.

    Returns:
        Hexadecimal digits.
    """
    digest = hashlib.sha256(json.dumps([asdict(tower.shape), scale]).encode())
    for key, tensor in sorted(tower.state_dict().items()):
        some = tensor[[*range(BYTES), SOT, EOT]] if key == "tok.weight" else tensor
        digest.update(f"{key} {tuple(tensor.shape)}".encode())
        digest.update(memoryview(some.contiguous().cpu().numpy()))
    return digest.hexdigest()
