"""Say what a weight file is before it is read: whose it is, for which model, or no weights."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from focoop.caching import parse_json
from focoop.errors import BackboneError

# Names of weight files in a folder of the hub, the preferred first.
NAMES = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "model.safetensors",
    "open_clip_pytorch_model.bin",
    "pytorch_model.bin",
)
POINTER = b"version https://git-lfs"
# Numbers that OpenAI's archives hold beside their weights.
OPENAI = ("input_resolution", "context_length", "vocab_size")
RECORD = "open_clip_config.json"  # what the hub keeps beside weights of open_clip
CHECK = "check --weights (backbone.weights)"
Shapes = dict[str, tuple[int, ...]]


def weight_file(path: Path) -> Path:
    """Find the weight file that a user means.

    Args:
        path: A file, or a folder as the hub has it.

    Returns:
        The file.

    Raises:
        BackboneError: There is none, or it is something else, which the message names.
    """
    path = path.expanduser()
    if path.is_dir():
        return _in_folder(path)
    if not path.is_file():
        raise BackboneError(f"there is no weight file {path}: {CHECK}")
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise BackboneError(
            f"{path} does not hold the weights of this model: it is empty; compare its sha256 and "
            "fetch it again"
        )
    if head.startswith(POINTER):
        raise BackboneError(
            f"{path} is a pointer of Git LFS and holds no weights: run `git lfs pull` beside it, "
            "or fetch the file itself"
        )
    if head.lstrip()[:1] in (b"{", b"<") and path.suffix != ".safetensors":
        raise _no_weights(path)
    return path


def _in_folder(folder: Path) -> Path:
    """The weight file of a folder."""
    for name in NAMES:
        if (folder / name).is_file():
            return weight_file(folder / name)
    index = sorted(folder.glob("*.index.json"))
    if index:
        raise _no_weights(index[0])
    held = sorted(path.name for path in folder.iterdir())[:8]
    raise BackboneError(
        f"{folder} holds none of {', '.join(NAMES)} (it holds: {', '.join(held) or 'nothing'}): "
        "name the weight file itself"
    )


def _no_weights(path: Path) -> BackboneError:
    """The error about a text file in the place of weights."""
    try:
        content = parse_json(path.read_text("utf-8"))
        shards = sorted(set(content["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return BackboneError(f"{path} is a text and holds no weights: {CHECK}")
    return BackboneError(
        f"{path} is the index of weights in {len(shards)} files ({', '.join(shards[:3])}, ...), "
        "which are not read in parts: write them into one file with `transformers` "
        "(CLIPModel.from_pretrained(FOLDER).save_pretrained(OTHER, max_shard_size='100GB')) and "
        "name that"
    )


def is_torchscript(path: Path) -> bool:
    """Say whether a file is an archive such as OpenAI's `ViT-B-16.pt`.

    Args:
        path: The file.

    Returns:
        Whether it is.
    """
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def refuse_other_activation(path: Path, state: Mapping[str, Any], quick: bool, name: str) -> None:
    """Refuse an archive for a model with another activation: its features would be wrong.

    An archive holds the code of its model, where OpenAI's activation is a sigmoid.

    Args:
        path: The archive.
        state: What it holds, by name.
        quick: Whether the model uses OpenAI's activation.
        name: The backbone's name, for the message.

    Raises:
        BackboneError: The archive was trained with another activation than the model's.
    """
    with zipfile.ZipFile(path) as archive:
        code = b"".join(archive.read(one) for one in archive.namelist() if one.endswith(".py"))
    trained = b"sigmoid(" in code
    if not trained and b"gelu(" not in code:
        trained = all(key in state for key in OPENAI)
    if trained == quick:
        return
    model = name.split(":")[1] if ":" in name else name
    if trained:
        raise BackboneError(
            f"{path} was trained with QuickGELU, as OpenAI's archives are, which is not the "
            f"activation of {name}: name the backbone openclip:{model}:openai"
        )
    raise BackboneError(
        f"{path} was trained with GELU, which is not the activation of {name}: name the backbone "
        f"openclip:{model}:custom"
    )


def refuse_other_record(path: Path, quick: bool, name: str) -> None:
    """Refuse weights whose own record (`open_clip_config.json`) names another activation.

    Args:
        path: The weight file.
        quick: Whether the model uses OpenAI's activation.
        name: The backbone's name, for the message.

    Raises:
        BackboneError: The record names another activation; one that names none is passed over.
    """
    try:
        record = parse_json(path.with_name(RECORD).read_text("utf-8"))
        trained = record["model_cfg"]["quick_gelu"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if trained is (not quick):
        kinds = {True: "QuickGELU", False: "GELU"}
        raise BackboneError(
            f"{path} was trained with {kinds[trained]} ({RECORD} beside it), which is not the "
            f"activation of {name}: name the backbone by the tag the weights were released under"
        )


def shapes_of(path: Path) -> Shapes:
    """Read the names and shapes of a state dict without its numbers, where that is possible.

    Args:
        path: The file.

    Returns:
        Shapes by name; nothing where the file cannot be looked into.
    """
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        mapped = zipfile.is_zipfile(path)
        state = torch.load(path, "cpu", weights_only=True, mmap=mapped)
        state = state.get("state_dict", state)
        return {
            key.removeprefix("module."): tuple(value.shape)
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        }
    except Exception:  # its reader says what is wrong with it
        return {}


def refuse_other_size(path: Path, shapes: Shapes, model: nn.Module, name: str) -> None:
    """Refuse weights for images or texts of another size, which open_clip would stretch silently.

    Args:
        path: The file.
        shapes: The shapes it holds, under open_clip's names.
        model: The model.
        name: The backbone's name, for the message.

    Raises:
        BackboneError: Positions are as many as another model has.
    """
    wanted = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    for key in ("visual.positional_embedding", "positional_embedding", "text.positional_embedding"):
        if key in shapes and key in wanted and shapes[key][0] != wanted[key][0]:
            raise BackboneError(
                f"{path} has {shapes[key][0]} positions ({key}) and {name} has {wanted[key][0]}: "
                "these are the weights of another model (ViT-B-32 and ViT-B-32-256 differ in the "
                "size of their images); name that one"
            )


def refuse_no_numbers(path: Path, model: nn.Module) -> None:
    """Refuse weights with NaN or infinity.

    Args:
        path: The file they came from.
        model: The model that holds them.

    Raises:
        BackboneError: A weight is no number.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        masks = name.endswith("attn_mask")  # minus infinity is its purpose
        if not masks and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BackboneError(
                f"{path} holds numbers that are none (NaN or infinity) in {name}: it is damaged; "
                "compare its sha256 and fetch it again"
            )
