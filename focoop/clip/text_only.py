"""A backbone whose text side is ready at once; its image side is loaded when images are encoded.

A Flower site starts a process for every message, with its images encoded long before. Loading an
open_clip model takes seconds there, for towers that nobody asks. So its text tower is kept on disk
in our own form, with what else is known of the model, and open_clip is not even imported.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from focoop import __version__
from focoop.caching import cache_folder, checksum, parse_json, tensor_sum, write_whole
from focoop.clip import load_backbone
from focoop.clip.base import Backbone, ImageFeatures
from focoop.clip.text.tower import TextShape, TextTower
from focoop.clip.tokenizer import Tokenizer

FORMAT = 2
PROJECTION = "patch projection"
PLAIN = ("name", "logit_scale", "fingerprint", "image_fingerprint", "patch_kinds", "image_size")
# Our tokenizer must agree on these before it stands in for the model's own.
PROBES = ("a photo of a cat.", "The nice St. Bernard's dog,", "it's 3,000 ft &amp; <b>up</b>!  x_y")


class LightBackbone(Backbone):
    """The text side of a model that was loaded whole before, with the rest on demand."""

    def __init__(
        self,
        description: dict[str, Any],
        tensors: dict[str, Tensor],
        weights: Path | None,
        device: str,
    ) -> None:
        projection = tensors.pop(PROJECTION, None)
        self._projection = None if projection is None else projection.to(device)
        self._weights, self._device = weights, device
        self.name, self.logit_scale = description["name"], description["logit_scale"]
        self.fingerprint = description["fingerprint"]
        self.image_fingerprint = description["image_fingerprint"]
        self.patch_kinds = tuple(description["patch_kinds"])
        self.image_size = description["image_size"]
        self.pixel_type = getattr(torch, description["pixel_type"])
        shape = TextShape(**description["shape"])
        rows, width = tensors["tok.weight"].shape
        with torch.device("meta"):
            tower = TextTower(shape, nn.Embedding(rows, width))
        tower.load_state_dict(tensors, assign=True)
        self.text = tower.freeze().to(device)
        self._own = Tokenizer(shape.context_length)
        self.tokenize = self._tokens

    @cached_property
    def whole(self) -> Backbone:
        """Return the model itself, loaded on first use."""
        return load_backbone(self.name, weights=self._weights, device=self._device)

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        # Beyond ASCII the released tokenizer repairs some texts that ours leaves alone.
        plain = all(text.isascii() for text in texts)
        return self._own(texts) if plain else self.whole.tokenize(texts)

    @property
    def patch_projection(self) -> Tensor | None:
        """Return the whole model's projection."""
        return self._projection

    def preprocess(self, image: Any) -> Tensor:
        """As the whole model does."""
        return self.whole.preprocess(image)

    def describe_pixels(self) -> dict[str, Any]:
        """As the whole model does."""
        return self.whole.describe_pixels()

    def prepare(self, image: Any) -> Tensor:
        """As the whole model does."""
        return self.whole.prepare(image)

    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        """As the whole model does."""
        return self.whole.encode_images(batch, patches)


def load_light(
    name: str,
    *,
    weights: Path | None = None,
    device: str = "cpu",
    cache_dir: Path | None = None,
    probes: Sequence[str] = PROBES,
) -> Backbone:
    """Load a backbone without its image side where the model was loaded here before.

    `mini` is packaged in our own form: it is as quick as can be. Of other models the text side is
    kept only if our tokenizer and theirs agree on `probes`.

    Args:
        name: The backbone's name, as `load_backbone` takes it.
        weights: A local checkpoint for an open_clip model.
        device: Where the towers live.
        cache_dir: The folder of the cache; None: the default one.
        probes: Texts on which both tokenizers must agree.

    Returns:
        The backbone.
    """
    if not name.startswith("openclip:"):
        return load_backbone(name, weights=weights, device=device)
    path = cache_folder(cache_dir, "text") / f"{_key(name, weights)}.safetensors"
    try:
        with safe_open(path, "pt") as file:
            told = (file.metadata() or {})["told"]
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if (file.metadata() or {})["sum"] != _sum(path, told, tensors):
                raise ValueError("its checksum differs")
        description = parse_json(told)
        return LightBackbone(description, tensors, weights, device)
    except FileNotFoundError:
        pass
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        warnings.warn(f"{path} is damaged ({error}): it is made again", stacklevel=2)
    backbone = load_backbone(name, weights=weights, device=device)
    _keep(backbone, path, probes)
    return backbone


def _key(name: str, weights: Path | None) -> str:
    """What the kept tower depends on; a tag's own weights are fixed by its name."""
    parts: list[object] = [FORMAT, __version__, name]
    if weights is not None and weights.is_file():
        stat = weights.stat()
        parts += [str(weights.resolve()), stat.st_size, stat.st_mtime_ns]
        parts += [stat.st_ctime_ns, stat.st_ino]  # a file replaced with its old time and size
    return sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _keep(backbone: Backbone, path: Path, probes: Sequence[str]) -> None:
    """Write the text side, where our tokenizer agrees with the model's."""
    shape = backbone.text.shape
    own = Tokenizer(shape.context_length)
    if not torch.equal(own(probes), backbone.tokenize(probes)):
        return
    description = {key: getattr(backbone, key) for key in PLAIN}
    description |= {"shape": asdict(shape), "pixel_type": str(backbone.pixel_type).split(".")[-1]}
    tensors = {key: value.cpu().contiguous() for key, value in backbone.text.state_dict().items()}
    if backbone.patch_projection is not None:
        tensors[PROJECTION] = backbone.patch_projection.detach().cpu().contiguous()
    try:
        told = json.dumps(description)
        write_whole(path, save(tensors, {"told": told, "sum": _sum(path, told, tensors)}))
    except OSError:
        return  # the next process loads the whole model again


def _sum(path: Path, told: str, tensors: Mapping[str, Tensor]) -> str:
    """A checksum of all that is kept, and of the name of the file."""
    return checksum(path.stem, told, *(tensor_sum(key, tensors[key]) for key in sorted(tensors)))
