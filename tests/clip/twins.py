"""One set of random weights in open_clip and in `transformers`, and in files of every kind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel

from focoop.clip.openclip import build
from focoop.seeds import torch_generator


@dataclass
class Twin:
    """One set of random weights in both libraries."""

    config: dict[str, Any]
    network: Any
    reference: Any

    def texts(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.reference.text_model(input_ids=tokens).pooler_output
            return F.normalize(self.reference.text_projection(hidden), dim=-1)

    def images(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            pooled = self.reference.vision_model(pixel_values=batch).pooler_output
            return F.normalize(self.reference.visual_projection(pooled), dim=-1)


def twin(config: dict[str, Any], quick_gelu: bool, seed: int = 0) -> Twin:
    """An open_clip model with no weight left at zero or one, and the CLIPModel of its weights."""
    network = build(config, quick_gelu).eval()
    generator = torch_generator(seed, "twin")
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            noise = 0.1 * torch.randn(tensor.shape, generator=generator)
            tensor += 10 * noise.abs() if name.endswith("running_var") else noise
    reference = CLIPModel(reference_config(config, quick_gelu)).eval()
    state = {name.removeprefix("text."): one for name, one in network.state_dict().items()}
    if not has_vit(config):  # transformers' CLIP has no such image tower: its text tower alone
        state = {name: one for name, one in state.items() if not name.startswith("visual.")}
    found = reference.load_state_dict(named_by_transformers(state), strict=has_vit(config))
    assert found.unexpected_keys == []
    assert all(name.startswith("vis") for name in found.missing_keys)
    return Twin(config, network, reference)


def has_vit(config: dict[str, Any]) -> bool:
    return isinstance(config["vision_cfg"].get("layers"), int)


def reference_config(config: dict[str, Any], quick_gelu: bool) -> CLIPConfig:
    text, vision = config["text_cfg"], config["vision_cfg"]
    if not has_vit(config):
        vision = {"width": 64, "layers": 1, "image_size": 32, "patch_size": 32}
    shared = {
        "hidden_act": "quick_gelu" if quick_gelu else "gelu",
        "projection_dim": config["embed_dim"],
    }
    return CLIPConfig(
        projection_dim=config["embed_dim"],
        text_config={
            **shared,
            "hidden_size": text["width"],
            "intermediate_size": 4 * text["width"],
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "max_position_embeddings": text["context_length"],
            "vocab_size": text["vocab_size"],
            "bos_token_id": 49406,
            "eos_token_id": 49407,
        },
        vision_config={
            **shared,
            "hidden_size": vision["width"],
            "intermediate_size": 4 * vision["width"],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision.get("head_width", 64),
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
        },
    )


def named_by_transformers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """open_clip's weights under the names of CLIPModel, renamed word by word."""
    words = {
        "visual.transformer.resblocks": "vision_model.encoder.layers",
        "transformer.resblocks": "text_model.encoder.layers",
        "visual.ln_pre": "vision_model.pre_layrnorm",
        "visual.ln_post": "vision_model.post_layernorm",
        "visual.conv1": "vision_model.embeddings.patch_embedding",
        "visual.class_embedding": "vision_model.embeddings.class_embedding",
        "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "token_embedding": "text_model.embeddings.token_embedding",
        "ln_final": "text_model.final_layer_norm",
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "attn.out_proj": "self_attn.out_proj",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    }
    out = {}
    for name, tensor in state.items():
        if name in ("visual.proj", "text_projection"):
            new = "visual_projection" if name == "visual.proj" else name
            out[f"{new}.weight"] = tensor.T.clone()
            continue
        for old, new in words.items():
            if new not in name:
                name = name.replace(old, new)
        if "in_proj_" in name:
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                out[name.replace("attn.in_proj_", f"self_attn.{part}_proj.")] = third.clone()
        else:
            out[name] = tensor.clone()
    return out


class Holder(nn.Module):
    """Named tensors as nested modules, so that TorchScript can store them."""

    def hold(self, name: str, tensor: Tensor) -> None:
        head, _, rest = name.partition(".")
        if not rest:
            self.register_buffer(head, tensor)
            return
        if head not in self._modules:
            self.add_module(head, Holder())
        child = self._modules[head]
        assert isinstance(child, Holder)
        child.hold(rest, tensor)


def save(made: Twin, kind: str, folder: Path) -> Path:
    state = made.network.state_dict()
    if kind.startswith("transformers"):
        made.reference.save_pretrained(folder)
        path = folder / "model.safetensors"
        if kind == "transformers":
            return path
        # As files of older releases: a pickle, with the numbers of the positions.
        old = {**load_file(path), "text_model.embeddings.position_ids": torch.arange(77)[None]}
        torch.save(old, folder / "pytorch_model.bin")
        return folder / "pytorch_model.bin"
    if kind == "archive":
        holder = Holder()
        for name, tensor in state.items():
            holder.hold(name, tensor)
        beside = {"input_resolution": 24, "context_length": 77, "vocab_size": 49408}
        quick = made.reference.config.text_config.hidden_act == "quick_gelu"
        for name, value in beside.items() if quick else ():  # as OpenAI's archives hold them
            holder.hold(name, torch.tensor(value))
        torch.jit.save(torch.jit.script(holder), folder / "tiny.pt")
        return folder / "tiny.pt"
    if kind == "open_clip":
        torch.save(state, folder / "open_clip.pt")
        return folder / "open_clip.pt"
    save_file(state, folder / "open_clip.safetensors")
    return folder / "open_clip.safetensors"
