"""What a client expects to see: its own classes, and with some share any class of the federation.

A client with counts n_c of its training labels expects class c with probability
    pi_c = (1 - lambda) n_c / n + lambda / C,            lambda -> `open_share`
and answers argmax_c z_c + log pi_c, z_c the log-odds of the model. At lambda = 1 there is no prior.
At lambda = 0 the client answers its own classes alone ("only local labels" of Fani et al. 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from focoop.methods.base import Logits, Params, Task, Text

if TYPE_CHECKING:
    from torch import Tensor

# The part of a `Text`, and of shifted `Logits`, that holds the shift (C,) of a client's cosines.
PRIOR = "prior"
# Log probability of a class that is not expected at all: finite, and below every evidence.
NEVER = -1e4


def log_prior(counts: Tensor, open_share: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Log of a client's prior over classes, up to a constant.

    Args:
        counts: (C,) the client's own training images of each class.
        open_share: share of images that the client expects from any class, 0 to 1.
        dtype: floating type of the result.

    Returns:
        (C,) log pi_c, the largest 0; `NEVER` for a class that is not expected. All 0 for a client
        without images.
    """
    held = counts.to(dtype)
    total = held.sum()
    prior = (1.0 - open_share) * held / total.clamp(min=1.0) + open_share / len(counts)
    prior = torch.where(total > 0, prior, torch.ones_like(prior))
    return (prior / prior.amax(dim=-1, keepdim=True)).log().clamp(min=NEVER)


def prior_part(params: Params, open_share: float, task: Task) -> Params:
    """The part of a client's `Text` that shifts its cosines.

    Args:
        params: the client's tensors; `counts` (C,) among them where it knows its own labels.
        open_share: share of images that the client expects from any class; 1: no prior.
        task: gives s, which makes log-odds of cosines.

    Returns:
        `prior` (C,), log pi_c / s; nothing where there is no prior.
    """
    if open_share == 1 or "counts" not in params:
        return {}
    prior = log_prior(params["counts"], open_share, task.anchors.dtype)
    return {PRIOR: prior / task.logit_scale}


def expected(logits: Logits, text: Text) -> Logits:
    """Cosines shifted by the client's prior, where the text side of its model has one.

    Args:
        logits: the cosines of images (N, D) with all prompts.
        text: the client's model; its part `prior` (C,) is log pi_c / s.

    Returns:
        The same logits with shifted `id`, or those given where there is no prior.
    """
    return shifted(logits, text.parts)


def split_prior(text: Text) -> tuple[Text, Params]:
    """Take a client's model apart: the model without its prior, and what `shifted` adds to it.

    Args:
        text: the client's model.

    Returns:
        The model without a prior, and the prior; nothing where the model has none.
    """
    if PRIOR not in text.parts:
        return text, {}
    parts = {name: part for name, part in text.parts.items() if name != PRIOR}
    return Text(text.id, text.ood, parts), {PRIOR: text.parts[PRIOR]}


def shifted(logits: Logits, prior: Params) -> Logits:
    """Cosines shifted by what `prior_part` made.

    Args:
        logits: the cosines of images with all prompts.
        prior: `prior` (C,), log pi_c / s; nothing where there is no prior.

    Returns:
        The shifted logits, with the shift as their part `prior` for scores that read other parts;
        or those given.
    """
    if PRIOR not in prior:
        return logits
    parts = {**logits.parts, PRIOR: prior[PRIOR]}
    return Logits(logits.id + prior[PRIOR], logits.ood, logits.patches, parts)
