"""Find weight files of open_clip models, fetch them and read them."""

import hashlib
import re
import threading
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import open_clip
import torch
from huggingface_hub.errors import EntryNotFoundError
from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME
from open_clip.factory import load_state_dict
from safetensors import safe_open
from torch import Tensor, nn

from focoop.clip.transformers_weights import from_transformers, is_transformers
from focoop.clip.weight_files import (
    OPENAI,
    is_torchscript,
    refuse_no_numbers,
    refuse_other_activation,
    refuse_other_size,
    shapes_of,
    weight_file,
)
from focoop.errors import BackboneError

PATIENCE = 8.0  # seconds to wait for a first answer of the hub
BESIDE = (*OPENAI, "attn_mask")  # what archives hold beside weights
URL_CACHE = Path("~/.cache/clip")  # where OpenAI's and open_clip's own downloads lie


@dataclass(frozen=True)
class Source:
    """Where open_clip says the weights of `model` with `tag` are.

    Attributes:
        repo: repository on the hub.
        files: names there, the preferred first.
        url: the same weights elsewhere, or empty.
        sha256: hash of the file at `url` or its first digits, or empty.
        config: open_clip's record: mean, std, resize mode, activation.
    """

    model: str
    tag: str
    repo: str
    files: tuple[str, ...]
    url: str
    sha256: str
    config: Mapping[str, Any]


def source_of(model: str, tag: str) -> Source:
    """Return what open_clip records for a model and a tag; empty where it knows no such tag.

    Args:
        model: The model's name.
        tag: The tag of its weights.

    Returns:
        The record.
    """
    config = open_clip.get_pretrained_cfg(model, tag)
    repo, _, name = str(config.get("hf_hub", "")).rpartition("/")
    files = (
        (f"{Path(name).stem}.safetensors", name)
        if name
        else (HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME)
    )
    url = str(config.get("url", ""))
    digest_match = re.search(r"/([0-9a-f]{64})/[^/]+$|-([0-9a-f]{8})\.\w+$", url)
    digest = (digest_match[1] or digest_match[2]) if digest_match else ""
    return Source(model, tag, repo, files, url, digest, config)


def fetch(source: Source, patience: float = PATIENCE) -> Path:
    """Find the weight file of a source: in a cache, else from the hub.

    Args:
        source: Where the weights are.
        patience: Seconds the hub has to answer.

    Returns:
        The file.

    Raises:
        BackboneError: It cannot be had; the message says what to do.
    """
    if cached := find_cached(source):
        return cached
    name = reach(source, patience)
    try:
        return Path(huggingface_hub.hf_hub_download(source.repo, name))
    except Exception as error:
        raise missing(source, f"the hub gave no file: {brief(error)}") from error


def reach(source: Source, patience: float = PATIENCE) -> str:
    """Ask the hub for the name of a source's file.

    Args:
        source: Where the weights are.
        patience: Seconds the hub has to answer.

    Returns:
        The file's name.

    Raises:
        BackboneError: It cannot be had; the message says what to do.
    """
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise missing(source, "HF_HUB_OFFLINE forbids downloads")
    reason: object = f"none of {', '.join(source.files)} is there"
    for name in source.files:
        try:
            probe(huggingface_hub.hf_hub_url(source.repo, name), patience)
            return name
        except EntryNotFoundError:
            continue
        except Exception as error:
            reason = error
            break
    raise missing(source, f"the hub gave no file: {brief(reason)}")


def find_cached(source: Source) -> Path | None:
    """Find a file that an earlier download left on this machine.

    Args:
        source: Where the weights are.

    Returns:
        The file, or None.
    """
    for name in source.files:
        path = huggingface_hub.try_to_load_from_cache(source.repo, name)
        if isinstance(path, str):
            return Path(path)
    if source.url and source.sha256:
        path = URL_CACHE.expanduser() / source.url.rpartition("/")[2]
        if path.is_file() and sha256_of(path).startswith(source.sha256):
            return path
    return None


def probe(url: str, patience: float = PATIENCE) -> None:
    """Raise within some seconds where a hub file cannot be had.

    The hub's own download repeats failed requests for half a minute, and no timeout of its client
    bounds a name server that does not answer.

    Args:
        url: The file's address.
        patience: Seconds to wait.
    """
    errors: list[Exception] = [TimeoutError(f"no answer within {patience:.0f} seconds")]

    def ask() -> None:
        try:
            huggingface_hub.get_hf_file_metadata(url, timeout=patience)
            errors.clear()
        except Exception as error:
            errors[:] = [error]

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    if errors:
        raise errors[0]


def missing(source: Source, reason: str) -> BackboneError:
    """Make the error for weights that are not here.

    What to fetch, how to check it, where to name it.

    Args:
        source: Where the weights are.
        reason: Why they could not be fetched.

    Returns:
        The error, to be raised.
    """
    preferred, other = source.files
    hub = (
        f"  {huggingface_hub.hf_hub_url(source.repo, preferred)}\n"
        f"    (or, if that is not there, {other} beside it)\n"
        "    sha256: as the file's page on the hub shows; compare with `sha256sum FILE`"
    )
    choices = [hub]
    if source.url:
        begins = "begins with " if len(source.sha256) == 8 else ""
        known = f"{begins}{source.sha256}" if source.sha256 else "not published"
        choices.insert(0 if source.sha256 else 1, f"  {source.url}\n    sha256: {known}")
    name = (source.url if source.sha256 else preferred).rpartition("/")[2]
    return BackboneError(
        f"no weights for openclip:{source.model}:{source.tag} ({reason}).\n"
        "Fetch this file on a machine with network:\n"
        + "\nor the same weights:\n".join(choices)
        + f"\nPut it anywhere on this machine, for example at weights/{name}, and name it with\n"
        f"  --weights weights/{name}   (backbone.weights in a configuration)"
    )


def check_local(path: Path, source: Source) -> Path:
    """Refuse a file that is absent, or that bears a known name and is not that file.

    Args:
        path: The file, or a folder of the hub that holds it.
        source: Where the weights should come from.

    Returns:
        The file.

    Raises:
        BackboneError: It cannot be used.
    """
    path = weight_file(path)
    if source.sha256 and path.name == source.url.rpartition("/")[2]:
        digest = sha256_of(path)
        if not digest.startswith(source.sha256):
            raise BackboneError(
                f"{path} is not the released {path.name}: its sha256 is {digest}, not "
                f"{source.sha256}: fetch {source.url} again, or, for weights of your own, "
                f"name the backbone openclip:{source.model}:custom"
            )
    return path


def read_into(
    model: nn.Module, path: Path, name: str = "this model", quick_gelu: bool = True
) -> None:
    """Load a weight file into an open_clip model.

    A file is a TorchScript archive (OpenAI's), or a state dict (.safetensors, .pt, .bin) with the
    names of open_clip or of `transformers`' CLIPModel. None of them runs code of the file: pickles
    are read with `weights_only`, archives by TorchScript.

    Args:
        model: The model.
        path: The file.
        name: The backbone's name, for messages.
        quick_gelu: Whether the model uses OpenAI's activation.

    Raises:
        BackboneError: The file is damaged, or its tensors are not the model's.
    """
    try:
        if is_torchscript(path):
            state = read_archive(path)
            refuse_other_activation(path, state, quick_gelu, name)
            model.load_state_dict({k: v for k, v in state.items() if k not in BESIDE})
        elif of_transformers(path):
            state = from_transformers(load_state_dict(str(path), weights_only=True))
            if not hasattr(model, "positional_embedding"):  # CustomTextCLIP keeps texts apart
                shared = ("visual.", "logit_scale")
                state = {k if k.startswith(shared) else f"text.{k}": v for k, v in state.items()}
            model.load_state_dict(state)
        else:
            refuse_other_size(path, shapes_of(path), model, name)
            open_clip.load_checkpoint(model, str(path), strict=True, weights_only=True)
    except BackboneError:
        raise
    except Exception as error:  # whatever a wrong or damaged file makes the readers raise
        raise BackboneError(
            f"{path} does not hold the weights of this model or is damaged "
            f"({brief(error)}): compare its sha256 and check the model's name"
        ) from error
    refuse_no_numbers(path, model)


def read_archive(path: Path) -> dict[str, Tensor]:
    """Read the weights of a TorchScript archive, and what it says of its shape.

    Args:
        path: The file.

    Returns:
        Tensors by name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; nobody can change old files
        archive = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    state: dict[str, Tensor] = archive.state_dict()
    return state


def of_transformers(path: Path) -> bool:
    """Say whether a state dict bears the names of `transformers`.

    Tensors are not read where that can be avoided. A file that cannot be looked into is left to its
    reader.

    Args:
        path: The file.

    Returns:
        Whether it does.
    """
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return is_transformers(file.keys())
        mapped = zipfile.is_zipfile(path)
        if is_torchscript(path):  # torch.load would warn of it
            return False
        return is_transformers(torch.load(path, "cpu", weights_only=True, mmap=mapped))
    except Exception:
        return False


def sha256_of(path: Path) -> str:
    """Hash a file.

    Args:
        path: The file.

    Returns:
        Hexadecimal digits.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def brief(reason: object) -> str:
    """Put an error's text on one line of bounded length.

    Args:
        reason: The error.

    Returns:
        The text.
    """
    text = " ".join(str(reason).split()) or type(reason).__name__
    return text if len(text) <= 200 else text[:197] + "..."
