"""Backbones of open_clip: its image towers as they are, its text weights in our own text tower."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from open_clip.transform import PreprocessCfg, image_transform_v2, merge_preprocess_dict
from torch import Tensor, nn

from focoop.clip import patches as patch_features
from focoop.clip.base import Backbone, ImageFeatures
from focoop.clip.openclip_text import text_tower
from focoop.clip.pixels import levels, normalised, side_of
from focoop.clip.text.tower import TextTower
from focoop.clip.text_weights import FAMILIES, refusal_of
from focoop.clip.transformers_weights import check_activation
from focoop.clip.weight_files import refuse_other_record
from focoop.clip.weights import Source, check_local, fetch, of_transformers, read_into, source_of
from focoop.errors import BackboneError, ConfigError, closest

CUSTOM = "custom"  # the tag of weights that open_clip does not list


class OpenClipBackbone(Backbone):
    """A frozen open_clip model.

    Its patches of kind `lf_c` are not normalised and lack the last projection: put them through a
    method's own matrix, then through `patch_projection`.
    """

    pixel_type = torch.uint8

    def __init__(
        self,
        name: str,
        visual: nn.Module,
        text: TextTower,
        tokenize: Callable[[list[str]], Tensor],
        preprocessing: Mapping[str, Any],
        logit_scale: float,
        device: str = "cpu",
    ) -> None:
        self.name = name
        self.preprocessing = dict(preprocessing)
        self.transform = image_transform_v2(PreprocessCfg(**self.preprocessing), is_train=False)
        self.image_size = side_of(self.preprocessing["size"])
        self.tokenize = lambda texts: tokenize(list(texts))
        self.logit_scale = logit_scale
        self.patch_kinds = patch_features.offered(visual)
        self.fingerprint = fingerprint(visual, text, self.preprocessing, name)
        self.image_fingerprint = self.fingerprint  # its towers were trained together
        self.visual = visual.eval().requires_grad_(False).to(device)
        self.text = text.freeze().to(device)

    @property
    def patch_projection(self) -> Tensor | None:
        """Return the frozen matrix (width of `lf_c`, D) that follows GalLoP's own matrix."""
        if "lf_c" not in self.patch_kinds:
            return None
        return patch_features.projection(self.visual)

    def preprocess(self, image: Any) -> Tensor:
        """PIL image -> (3, image_size, image_size) by open_clip's transform for this model."""
        out: Tensor = self.transform(image)
        return out

    def prepare(self, image: Any) -> Tensor:
        """PIL image -> (3, image_size, image_size) uint8: all of `preprocess` but the scaling."""
        for step in self.transform.transforms[:-2]:  # the last two: to a tensor, normalise
            image = step(image)
        return levels(image)

    def describe_pixels(self) -> dict[str, Any]:
        """Say how `prepare` makes pixels of an image."""
        size, given = self.image_size, self.preprocessing
        scaling = self.transform.transforms[-1]
        resize, crop = {
            "shortest": (
                f"the shorter side to {size}, the longer to int({size} * longer / shorter)",
                f"after: {size} x {size} of the middle, left round((width - {size}) / 2), "
                f"top round((height - {size}) / 2)",
            ),
            "longest": (
                f"the longer side to {size}, the shorter to round(shorter / (longer / {size}))",
                f"none: padded to {size} x {size} with {given.get('fill_color', 0)}, "
                f"left ({size} - width) // 2, top ({size} - height) // 2",
            ),
            "squash": (f"both sides to {size}", "none"),
        }[given.get("resize_mode") or "shortest"]
        return {
            "size": size,
            "channels": "RGB",
            "layout": "NCHW",
            "dtype": "uint8",
            "crop": crop,
            "resize": f"{resize}, with Pillow's Image.resize",
            "filter": {"name": given.get("interpolation") or "bicubic"},
            "scale": 255,
            "mean": list(scaling.mean),
            "std": list(scaling.std),
            "normalised": "in the graph",
        }

    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        """(N, 3, H, W) -> unit pooled (N, D) and patches (N, P, D), on the CPU in float32."""
        if patches is not None and self.patch_kinds and patches not in self.patch_kinds:
            raise ConfigError(
                f"unknown patch features {patches!r}: {self.name} offers "
                + ", ".join(self.patch_kinds)
            )
        self.visual.eval()  # BatchNorm uses its running statistics, whoever called train()
        with torch.no_grad():
            scaling = self.transform.transforms[-1]
            batch = normalised(batch.to(self.device), scaling.mean, scaling.std)
            pooled, local = patch_features.encode(self.visual, batch, patches)
        if local is not None and patches != "lf_c":
            local = F.normalize(local, dim=-1)
        return ImageFeatures(
            F.normalize(pooled, dim=-1).cpu(), None if local is None else local.cpu()
        )


def load_openclip(
    model: str, pretrained: str, *, weights: Path | None = None, device: str = "cpu"
) -> Backbone:
    """Load an open_clip model.

    A tag also says how images are prepared and which activation its weights were trained with, so
    it matters for files too; `custom` stands for weights that open_clip does not list.

    Args:
        model: The model's name, such as `ViT-B-16`.
        pretrained: The tag of its weights, such as `openai`.
        weights: A local file to read the weights from.
        device: Where the towers live.

    Returns:
        The backbone.
    """
    model = model.replace("/", "-")
    config = config_of(model)
    source = resolve_tag(model, pretrained, weights)
    path = check_local(weights, source) if weights else fetch(source)
    name = f"openclip:{model}:{pretrained}"
    quick_gelu = bool(source.config.get("quick_gelu") or config.get("quick_gelu"))
    if of_transformers(path):
        check_activation(path, quick_gelu, name)
    else:
        refuse_other_record(path, quick_gelu, name)
    network = build(config, quick_gelu)
    read_into(network, path, name, quick_gelu)
    return _wrapped(network, model, source.config, name, device)


def _wrapped(network: Any, model: str, told: Mapping[str, Any], name: str, device: str) -> Backbone:
    """A backbone of a loaded network, with what is told of its preprocessing."""
    preprocessing = merge_preprocess_dict(asdict(PreprocessCfg()), told)
    preprocessing["size"] = side_of(network.visual.image_size)
    return wrap(network, open_clip.get_tokenizer(model), preprocessing, name, device)


def load_record(name: str, record: Mapping[str, Any], path: Path, device: str = "cpu") -> Backbone:
    """Load a model from a weight file and the record of the hub that lies beside it.

    Args:
        name: How a user names the backbone.
        record: open_clip's `model_cfg` and `preprocess_cfg`.
        path: The weight file.
        device: Where the towers live.

    Returns:
        The backbone.
    """
    config = record["model_cfg"]
    quick_gelu = bool(config.get("quick_gelu"))
    if of_transformers(path):
        check_activation(path, quick_gelu, name)
    network = build(config, quick_gelu)
    read_into(network, path, name, quick_gelu)
    return _wrapped(
        network, f"local-dir:{path.parent}", record.get("preprocess_cfg", {}), name, device
    )


def config_of(model: str) -> dict[str, Any]:
    """Return open_clip's configuration of a model whose text tower can be prompted.

    Args:
        model: The model's name.

    Returns:
        The configuration.

    Raises:
        BackboneError: There is no such model, or prompts cannot go through it.
    """
    if model not in open_clip.list_models():
        raise BackboneError(
            f"open_clip has no model {model!r}{nearest(model, open_clip.list_models())}"
        )
    config: dict[str, Any] = open_clip.get_model_config(model)
    if reason := refusal_of(config):
        raise BackboneError(f"{model} cannot be prompted: {reason}; {FAMILIES}")
    return config


def wrap(
    model: Any,
    tokenize: Callable[[list[str]], Tensor],
    preprocessing: Mapping[str, Any],
    name: str,
    device: str = "cpu",
) -> OpenClipBackbone:
    """Make a backbone of a built `CLIP` or `CustomTextCLIP`, which is taken over and frozen.

    Args:
        model: The open_clip model.
        tokenize: Texts to (N, context_length) token ids.
        preprocessing: Mean, deviation, size and resize mode.
        name: How a user names the backbone.
        device: Where the towers live.

    Returns:
        The backbone.
    """
    logit_scale = float(model.logit_scale.detach().exp())
    return OpenClipBackbone(
        name, model.visual.float(), text_tower(model), tokenize, preprocessing, logit_scale, device
    )


def resolve_tag(model: str, tag: str, weights: Path | None) -> Source:
    """Return open_clip's record of a tag; an empty one for `custom` with a file.

    Args:
        model: The model's name.
        tag: The tag of its weights.
        weights: A local file, where there is one.

    Returns:
        The record.

    Raises:
        BackboneError: open_clip knows no such tag.
    """
    custom = weights is not None and tag == CUSTOM
    if custom or open_clip.get_pretrained_cfg(model, tag):
        return source_of(model, tag)
    tags = open_clip.list_pretrained_tags_by_model(model)
    known = f"; {model} has: {', '.join(tags)}" if tags else f"; open_clip lists none for {model}"
    raise BackboneError(
        f"unknown pretrained tag {tag!r}{nearest(tag, tags)}{known}; for weights of your own use "
        f"openclip:{model}:{CUSTOM} with --weights FILE (backbone.weights)"
    )


def nearest(word: str, choices: Sequence[str]) -> str:
    """Return ` (did you mean a, b?)`, or nothing where no choice is alike.

    Args:
        word: What a user wrote.
        choices: What there is.

    Returns:
        The end of a message.
    """
    suggestions = closest(word, choices, 3, cutoff=0.5)
    return f" (did you mean {', '.join(suggestions)}?)" if suggestions else ""


def build(config: Mapping[str, Any], quick_gelu: bool) -> Any:
    """Build an open_clip model with random weights; nothing is drawn from the global generator.

    Args:
        config: open_clip's configuration of the model.
        quick_gelu: Use OpenAI's activation.

    Returns:
        The model.
    """
    config = dict(config)
    family = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
    config["quick_gelu"] = quick_gelu or config.get("quick_gelu", False)
    with torch.random.fork_rng(devices=[]):
        return family(**config)


def fingerprint(
    visual: nn.Module, text: TextTower, preprocessing: Mapping[str, Any], name: str
) -> str:
    """Hash all weights in the order of their names, the model's name and the preprocessing.

    Args:
        visual: The image tower.
        text: The text tower.
        preprocessing: How images are prepared.
        name: The model's name.

    Returns:
        Hexadecimal digits.
    """
    name = name if name.startswith("openclip:") else ""  # of a folder, the place does not matter
    architecture = {"name": name, "text": asdict(text.shape), "preprocessing": preprocessing}
    digest = hashlib.sha256(json.dumps(architecture, sort_keys=True, default=str).encode())
    for prefix, module in (("visual", visual), ("text", text)):
        for key, tensor in sorted(module.state_dict().items()):
            digest.update(f"{prefix}.{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(memoryview(tensor.contiguous().cpu().numpy()))
    return digest.hexdigest()
