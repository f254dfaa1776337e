"""An exported model: `model.safetensors` with everything a prediction needs, and its card.

The file holds checksums of its texts and of each tensor; `SHA256SUMS` those of all files.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from focoop.caching import SUM, is_intact, parse_json, sealed, tensor_sum, write_whole
from focoop.clip import Backbone, load_backbone
from focoop.errors import RunError, newer_format
from focoop.fields import build
from focoop.methods import Text, lookup
from focoop.predict.calibration import GLOBAL, Calibration
from focoop.predict.card import card
from focoop.predict.export_folder import AGAIN, CARD, CONFIG, FILE, forget_onnx, write_sums
from focoop.predict.facts import Client, Facts
from focoop.predict.model import Model
from focoop.predict.side import Side, folded_task

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2  # 1 had no checksums


def write_model(model: Model, folder: Path, clients: Sequence[Client] | None = None) -> Path:
    """Write a model into a folder.

    Args:
        model: The model.
        folder: The folder, absent or empty, or one that holds an exported model.
        clients: Whose models to keep; None: all.

    Returns:
        The folder.

    Raises:
        RunError: The folder holds something else, or cannot be written.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE).is_file():
        raise RunError(f"{folder} is not empty and holds no model: choose another folder")
    keys = list(model.keys) if clients is None else [model.key(client) for client in clients]
    keys = list(dict.fromkeys(keys))
    tensors = {"anchors": model.task.anchors}
    for key in keys:
        tensors |= _tensors_of(model.side(GLOBAL if key is None else key))
    kept = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    content = save(kept, _metadata(model, keys, kept))
    try:
        forget_onnx(folder)  # of the model before
        write_whole(folder / CARD, card(model, keys).encode())
        write_whole(folder / CONFIG, _config(model, keys).encode())
        write_whole(folder / FILE, content)
        write_sums(folder)
    except OSError as error:
        raise RunError(f"cannot write a model to {folder}: {error}") from error
    return folder


def read_model(
    folder: Path,
    client: Client = None,
    device: str | None = None,
    weights: str | Path | None = None,
) -> Model:
    """Read an exported model.

    Args:
        folder: The folder, or the file `model.safetensors` itself.
        client: The client that is asked where a call names none.
        device: A torch device; by default the CPU.
        weights: The backbone's weights, where they are not where they were.

    Returns:
        The model.

    Raises:
        RunError: The file is missing, damaged, or of a newer focoop.
    """
    path = folder / FILE if folder.is_dir() else folder
    where = device or "cpu"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tree: Mapping[str, Any] = parse_json(metadata["focoop"])
        _check(path, tree, tensors)
        tensors = {name: tensor.to(where) for name, tensor in tensors.items()}
        facts = _facts(tree["facts"])
        keys = [None if key == GLOBAL else int(key) for key in tree["sides"]]
        sides = {key: _side_of(key, tensors) for key in keys}
        calibration = None
        if tree["calibration"] is not None:
            calibration = Calibration.from_json(json.dumps(tree["calibration"]), str(path))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"cannot read the model {path} ({error}): {AGAIN}") from error
    method_class = lookup(facts.method)
    if facts.revision != method_class.revision:
        raise RunError(
            f"the model {path} was made by revision {facts.revision} of the method {facts.method}, "
            f"and this focoop has revision {method_class.revision}, whose scores are others: run "
            "the federation again and export its model, or use the focoop that made it"
        )
    method = method_class(build(method_class.Config, dict(facts.settings), "method."))
    task = folded_task(facts.classes, tensors["anchors"], facts.logit_scale)
    opened = _opener(facts, where, weights)
    return Model(facts, method, task, sides.__getitem__, keys, opened, calibration, client)


def _check(path: Path, tree: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Compare a file with its checksums; they come first, as a changed bit may be in the format."""
    if SUM not in tree and tree["format"] == 1:
        warnings.warn(
            f"{path} has no checksums, as an earlier focoop made it: what it holds is taken as "
            "right, and exporting it again writes them",
            stacklevel=3,
        )
        return
    if not is_intact(tree):
        raise ValueError("it is damaged: its checksum differs")
    if tree["format"] > FORMAT:
        raise RunError(newer_format(path, tree["format"], FORMAT))
    if tree["sums"] != _sums(tensors):
        raise ValueError("it is damaged: the checksum of its tensors differs")


def _sums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: tensor_sum(name, tensor) for name, tensor in sorted(tensors.items())}


def _opener(facts: Facts, device: str, weights: str | Path | None) -> Callable[[], Backbone]:
    chosen = Path(weights) if weights else Path(facts.weights) if facts.weights else None
    return lambda: load_backbone(facts.backbone, weights=chosen, device=device)


def _key(client: int | None) -> str:
    return GLOBAL if client is None else str(client)


def _tensors_of(side: Side) -> dict[str, Tensor]:
    """The tensors of a client's model by their names in the file."""
    own, text = _key(side.client), side.text
    tensors = {f"{own}/id": text.id, f"{own}/counts": side.counts}
    if text.ood is not None:
        tensors[f"{own}/ood"] = text.ood
    return tensors | {f"{own}/parts/{name}": part for name, part in text.parts.items()}


def _side_of(client: int | None, tensors: Mapping[str, Tensor]) -> Side:
    own = _key(client)
    start = f"{own}/parts/"
    parts = {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
    counts = tensors[f"{own}/counts"].to(torch.int64)
    return Side(client, Text(tensors[f"{own}/id"], tensors.get(f"{own}/ood"), parts), counts)


def _metadata(
    model: Model, keys: Sequence[int | None], tensors: Mapping[str, Tensor]
) -> dict[str, str]:
    calibration, kept = model.calibration, {_key(key) for key in keys}
    if calibration is not None:
        sites = {name: site for name, site in calibration.sites.items() if name in kept}
        calibration = replace(calibration, sites=sites)
    tree = {
        "format": FORMAT,
        "facts": asdict(model.facts),
        "sides": [_key(key) for key in keys],
        "calibration": None if calibration is None else json.loads(calibration.to_json()),
        "sums": _sums(tensors),
    }
    # One entry: safetensors writes several in any order, and equal models have equal bytes.
    return {"focoop": json.dumps(sealed(json.loads(json.dumps(tree))), ensure_ascii=False)}


def _config(model: Model, keys: Sequence[int | None]) -> str:
    """What the hub and its tools look for; focoop reads the tensors' file alone."""
    facts = model.facts
    names = [GLOBAL if key is None else facts.clients[key] for key in keys]
    tree = {
        "model_type": "focoop",
        "format": FORMAT,
        "method": facts.method,
        "backbone": facts.backbone,
        "image_fingerprint": facts.image_fingerprint,
        "answers_for": names,
        "id2label": {str(place): name for place, name in enumerate(facts.classes)},
        "label2id": {name: place for place, name in enumerate(facts.classes)},
    }
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _facts(tree: Mapping[str, Any]) -> Facts:
    lists = ("classes", "clients", "ood_names")
    return Facts(
        **{
            **tree,
            **{name: tuple(tree[name]) for name in lists},
            "holders": tuple(tuple(held) for held in tree["holders"]),
        }
    )
