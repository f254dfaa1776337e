"""The formulas of OOD scores: pure functions of cosines with an explicit temperature.

Shapes: ``id_cos`` (N,C), ``ood_cos`` (N,U), ``patch_cos`` (N,P,C); ``scale`` multiplies cosines
(the logit scale), ``temperature`` divides them. All scores are computed and returned in float64 and
in log form where probabilities would saturate: at a scale of 100 most maxima of a softmax round to
1.0 in float32 and tie, which changes FPR95; at temperature 1 they differ in the last digits only.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.errors import ConfigError, MethodError
from focoop.seeds import torch_generator

if TYPE_CHECKING:
    from torch import Tensor

# Images whose patch similarities are widened to float64 at a time.
_CHUNK = 256


def mcm(id_cos: Tensor, temperature: float = 1.0) -> Tensor:
    """Score images by maximum concept matching: -log max_c softmax_c(cos / T).

    Args:
        id_cos: Cosines of images and class prompts (N, C).
        temperature: T, which divides the cosines.

    Returns:
        Scores (N,) in [0, log C]; their order is that of 1 - MCM.

    Raises:
        ConfigError: The temperature is not positive and finite.

    >>> mcm(torch.tensor([[1.0, 1.0], [1.0, -1.0]])).round(decimals=4).tolist()
    [0.6931, 0.1269]
    """
    return _surprise(_logits(id_cos, 1.0 / _positive("temperature", temperature)))


def msp(id_cos: Tensor, scale: float) -> Tensor:
    """Score images by the maximum softmax probability: -log max_c softmax_c(s cos).

    Args:
        id_cos: Cosines of images and class prompts (N, C).
        scale: The logit scale s, which multiplies the cosines.

    Returns:
        Scores (N,) in [0, log C].

    Raises:
        ConfigError: The scale is not positive and finite.

    >>> msp(torch.tensor([[0.3, 0.1]]), 10.0).round(decimals=4).tolist()
    [0.1269]
    """
    return _surprise(_logits(id_cos, _positive("scale", scale)))


def max_softmax_all(id_cos: Tensor, ood_cos: Tensor, scale: float) -> Tensor:
    """Score images by -log of the largest class entry of the softmax over all C + U prompts.

    This is the paper's p(y=c|x).

    Args:
        id_cos: Cosines of images and class prompts (N, C).
        ood_cos: Cosines of images and OOD prompts (N, U).
        scale: The logit scale, which multiplies the cosines.

    Returns:
        Scores (N,).

    Raises:
        MethodError: There are no OOD prompts.

    >>> same = torch.full((1, 2), 0.1)
    >>> max_softmax_all(same, same, 30.0).exp().round(decimals=6).tolist()
    [4.0]
    """
    joint, classes = _joint(id_cos, ood_cos, scale), id_cos.shape[-1]
    return _surprise(joint, among=classes)


def parity_msp(id_cos: Tensor, ood_cos: Tensor, scale: float) -> Tensor:
    """Score images by -log of the largest of all C + U softmax entries, as the authors' code does.

    An image that matches one OOD prompt well counts as ID here: use this score only to compare with
    their numbers.

    Args:
        id_cos: Cosines of images and class prompts (N, C).
        ood_cos: Cosines of images and OOD prompts (N, U).
        scale: The logit scale, which multiplies the cosines.

    Returns:
        Scores (N,).

    Raises:
        MethodError: There are no OOD prompts.

    >>> id_cos, ood_cos = torch.tensor([[0.1]]), torch.tensor([[0.9]])
    >>> bool(parity_msp(id_cos, ood_cos, 100.0) < max_softmax_all(id_cos, ood_cos, 100.0))
    True
    """
    return _surprise(_joint(id_cos, ood_cos, scale))


def id_mass(id_cos: Tensor, ood_cos: Tensor, scale: float, ood_weight: float = 1.0) -> Tensor:
    """Score images by the log-odds of OOD: log((1 - p_ID) / p_ID) = lse(s ood) - lse(s id).

    The sigmoid of a score is 1 - p_ID, the probability mass of all OOD prompts.

    Args:
        id_cos: Cosines of images and class prompts (N, C).
        ood_cos: Cosines of images and OOD prompts (N, U).
        scale: The logit scale s, which multiplies the cosines.
        ood_weight: Factor of the OOD prompts' evidence; 0 gives the score `energy`.

    Returns:
        Scores (N,).

    Raises:
        MethodError: There are no OOD prompts.

    >>> score = id_mass(torch.tensor([[0.2, 0.2, 0.2]]), torch.tensor([[0.2]]), 30.0)
    >>> torch.sigmoid(score).round(decimals=6).tolist()
    [0.25]
    """
    joint, classes = _joint(id_cos, ood_cos, scale), id_cos.shape[-1]
    return ood_weight * joint[:, classes:].logsumexp(-1) - joint[:, :classes].logsumexp(-1)


def energy(id_cos: Tensor, scale: float) -> Tensor:
    """Score images by their free energy: -logsumexp_c(s cos).

    Args:
        id_cos: Cosines of images and class prompts (N, C).
        scale: The logit scale s, which multiplies the cosines.

    Returns:
        Scores (N,).

    Raises:
        ConfigError: The scale is not positive and finite.

    >>> energy(torch.tensor([[0.0, 0.0]]), 30.0).exp().tolist()
    [0.5]
    """
    return -_logits(id_cos, _positive("scale", scale)).logsumexp(-1)


def mahalanobis(distances: Tensor) -> Tensor:
    """Least squared Mahalanobis distance (N,) from any class (Lee et al. 2018).

    Args:
        distances: (N, C) squared distances; infinite for a class of which nothing is known.

    Returns:
        (N,) float64; 0 for every image where nothing is known of any class.

    >>> mahalanobis(torch.tensor([[4.0, 1.0], [9.0, float("inf")]])).tolist()
    [1.0, 9.0]
    """
    if distances.ndim != 2 or not distances.shape[-1]:
        raise ValueError(f"distances must be (N,C) with C > 0, got {tuple(distances.shape)}")
    return distances.double().amin(dim=-1).nan_to_num(posinf=0.0)


def neglabel(
    id_cos: Tensor, ood_cos: Tensor, scale: float, groups: int = 1, seed: int = 0
) -> Tensor:
    """Score images by grouped NegLabel: the log-odds of 1 - mean_g p_ID(ID against group g).

    The OOD prompts are shuffled and cut into groups of equal size; what is left over is dropped.
    One group gives the score `id_mass`.

    Args:
        id_cos: Cosines of images and class prompts (N, C).
        ood_cos: Cosines of images and OOD prompts (N, U).
        scale: The logit scale, which multiplies the cosines.
        groups: Number of groups.
        seed: Seed of the shuffle.

    Returns:
        Scores (N,).

    Raises:
        ConfigError: There are fewer OOD prompts than groups.

    >>> id_cos, ood_cos = torch.tensor([[0.2, 0.1]]), torch.tensor([[0.1, 0.3, 0.0]])
    >>> torch.testing.assert_close(
    ...     neglabel(id_cos, ood_cos, 30.0), id_mass(id_cos, ood_cos, 30.0)
    ... )
    """
    joint, classes = _joint(id_cos, ood_cos, scale), id_cos.shape[-1]
    count = ood_cos.shape[-1]
    if not 1 <= groups <= count:
        raise ConfigError(f"cannot form {groups} groups of {count} OOD prompts; use 1 to {count}")
    size = count // groups
    negatives = joint[:, classes:][:, _drawn_order(count, seed)[: groups * size].to(joint.device)]
    grouped = negatives.reshape(-1, groups, size).logsumexp(-1)
    odds = grouped - joint[:, :classes].logsumexp(-1, keepdim=True)
    return F.logsigmoid(odds).logsumexp(-1) - F.logsigmoid(-odds).logsumexp(-1)


def gl_mcm(
    id_cos: Tensor, patch_cos: Tensor, temperature: float = 1.0, weight: float = 1.0
) -> Tensor:
    """Score images by GL-MCM: (1 - MCM) + weight * (1 - L-MCM).

    L-MCM is the largest softmax entry over all patches and classes.

    Args:
        id_cos: Cosines of images and class prompts (N, C).
        patch_cos: Cosines of patches and class prompts (N, P, C).
        temperature: Divides the cosines.
        weight: Share of the patches' term, 0 or more.

    Returns:
        Scores (N,).

    Raises:
        ConfigError: The weight is negative or not finite.
        ValueError: The shapes do not fit each other.

    >>> id_cos, patch_cos = torch.zeros(1, 2), torch.zeros(1, 3, 2)
    >>> gl_mcm(id_cos, patch_cos, weight=0.5).tolist()
    [0.75]
    """
    if patch_cos.ndim != 3 or patch_cos.shape[::2] != id_cos.shape or not patch_cos.shape[1]:
        raise ValueError(
            f"patch cosines must be (N,P,C) with P > 0 for ID cosines {tuple(id_cos.shape)}, "
            f"got {tuple(patch_cos.shape)}"
        )
    if not 0.0 <= weight < float("inf"):
        raise ConfigError(f"weight must be 0 or more and finite, got {weight}; try 1.0")
    whole = mcm(id_cos, temperature)
    pieces = [patch_cos]
    if not torch.compiler.is_exporting():  # a graph is for any number of images: no loop over them
        pieces = list(torch.split(patch_cos, _CHUNK))
    local = [_surprise(_logits(piece, 1.0 / temperature)).amin(-1) for piece in pieces]
    return -torch.expm1(-whole) - weight * torch.expm1(-torch.cat([whole[:0], *local]))


def _surprise(logits: Tensor, among: int | None = None) -> Tensor:
    """-log of the largest softmax entry (of the first ``among``), exact also where it is near 1."""
    top, index = logits[..., :among].max(-1, keepdim=True)
    others = logits.scatter(-1, index, float("-inf")).logsumexp(-1)
    odds = others - top[..., 0]
    return torch.logaddexp(torch.zeros_like(odds), odds)


def _logits(cosines: Tensor, scale: float) -> Tensor:
    if cosines.ndim < 2 or not cosines.shape[-1]:
        raise ValueError(f"cosines must be (N,C) with C > 0, got {tuple(cosines.shape)}")
    return cosines.double() * scale


def _joint(id_cos: Tensor, ood_cos: Tensor, scale: float) -> Tensor:
    """Logits of ID then OOD entries (N,C+U)."""
    if ood_cos.ndim != 2 or ood_cos.shape[0] != id_cos.shape[0]:
        raise ValueError(f"cosines {tuple(id_cos.shape)}, {tuple(ood_cos.shape)} do not fit")
    if not ood_cos.shape[1]:
        raise MethodError("this score needs OOD prompts, got none; use mcm, msp or energy")
    _positive("scale", scale)
    return torch.cat([_logits(id_cos, scale), _logits(ood_cos, scale)], dim=-1)


@cache
def _drawn_order(count: int, seed: int) -> Tensor:
    """The order (count,) in which OOD prompts form groups."""
    return torch.randperm(count, generator=torch_generator(seed, "neglabel"))


def _positive(name: str, value: float) -> float:
    if not 0.0 < value < float("inf"):
        raise ConfigError(f"{name} must be positive and finite, got {value}")
    return value
