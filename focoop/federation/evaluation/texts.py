"""Text sides of many clients' models: prompts that clients share pass through the tower once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from focoop.methods import Method, Params, Prompt, Task, Text
from focoop.threads import side_by_side

if TYPE_CHECKING:
    from torch import Tensor

# Features of prompts, by where these lie in memory.
Encoded = dict[object, tuple[Prompt, "Tensor"]]
PROMPTS = 4096  # in one pass of the tower


@torch.no_grad()
def encoded(
    method: Method, models: Sequence[Params], task: Task, known: Encoded
) -> tuple[list[Text], Encoded]:
    """Encode the text side of several clients' models on a core each, equal prompts only once.

    Args:
        method: The method.
        models: The models.
        task: The task.
        known: What was encoded for the models before these.

    Returns:
        Their text sides, and what was encoded for them.
    """
    if type(method).encode is not Method.encode:

        @torch.no_grad()
        def encode(place: int) -> Text:
            return method.encode(models[place], task)

        return side_by_side(encode, len(models), task.device), {}
    prompts = [method.prompts(model, task) for model in models]
    distinct = {key_of(p): p for wanted in prompts for p in wanted.values()}
    fresh = [key for key in distinct if key not in known]

    @torch.no_grad()
    def features(place: int) -> Tensor:
        prompt = distinct[fresh[place]]
        return task.encode(prompt.contexts, prompt.names)

    new = side_by_side(features, len(fresh), task.device)
    # The prompt is kept beside its features: its memory must not become another's.
    now = {key: known[key] for key in distinct if key in known}
    now |= {key: (distinct[key], value) for key, value in zip(fresh, new, strict=True)}
    texts = [
        method.text(model, {name: now[key_of(p)][1] for name, p in wanted.items()}, task)
        for model, wanted in zip(models, prompts, strict=True)
    ]
    return texts, now


def encoded_together(method: Method, models: Sequence[Params], task: Task) -> list[Text]:
    """Encode the text side of many models: equal prompts once, those of the same names in a batch.

    Args:
        method: The method.
        models: The models.
        task: The task.

    Returns:
        Their text sides.
    """
    if type(method).encode is not Method.encode:
        return [method.encode(model, task) for model in models]
    prompts = [method.prompts(model, task) for model in models]
    distinct: dict[object, Prompt] = {}
    for wanted in prompts:
        for prompt in wanted.values():
            distinct.setdefault(key_of(prompt), prompt)
    groups: dict[object, list[object]] = {}
    for key, prompt in distinct.items():
        groups.setdefault((names_of(prompt), prompt.contexts.shape), []).append(key)
    features: dict[object, Tensor] = {}
    for keys in groups.values():
        names, shape = distinct[keys[0]].names, distinct[keys[0]].contexts.shape
        size = max(1, PROMPTS // max(1, len(names)))
        for first in range(0, len(keys), size):
            part = keys[first : first + size]
            contexts = torch.stack([distinct[key].contexts for key in part])
            contexts = contexts[:, None] if len(shape) == 2 else contexts
            features.update(zip(part, task.encode(contexts, names), strict=True))
    return [
        method.text(model, {name: features[key_of(p)] for name, p in wanted.items()}, task)
        for model, wanted in zip(models, prompts, strict=True)
    ]


def key_of(prompt: Prompt) -> object:
    """Return a key that prompts share which have the same names and the same contexts in memory.

    Args:
        prompt: Contexts and names.

    Returns:
        A key.
    """
    contexts = prompt.contexts
    place = (contexts.data_ptr(), tuple(contexts.shape), contexts.stride(), contexts.dtype)
    return names_of(prompt), place


def names_of(prompt: Prompt) -> object:
    """Return a key that prompts of the same names share, without copying from the device.

    Args:
        prompt: Contexts and names.

    Returns:
        A key.
    """
    names = prompt.names
    chosen = None if names.index is None else (names.index.data_ptr(), len(names))
    return id(names.vocabulary), chosen
