"""Scores by name: focoop's own in `SCORES`, those of a plugin, and what they are computed from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

import torch

from focoop.errors import ConfigError, FocoopError, MethodError, nearest
from focoop.functional.scores.formulas import (
    energy,
    gl_mcm,
    id_mass,
    max_softmax_all,
    mcm,
    msp,
    neglabel,
    parity_msp,
)
from focoop.plugins import line_of, plugged
from focoop.plugins import names as plugin_names

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Score:
    """A named score: what it means, what it needs beside class cosines, and how it is computed."""

    meaning: str
    needs_ood: bool
    needs_patches: bool
    compute: Callable[[Inputs], Tensor]


@dataclass(frozen=True)
class Inputs:
    """What a score is computed from; a function of one's own reads what it needs.

    Attributes:
        id_cos: (N, C) cosines of N images with the classes.
        scale: Makes logits of cosines, such as 30 for `mini`.
        ood_cos: (N, U) cosines with OOD prompts; None where the method has none.
        patch_cos: (N, P, C) cosines of an image's patches with the classes, or None.
        temperature: T of scores that divide cosines by it.
        groups: Groups of OOD prompts, for the grouped NegLabel.
        seed: Draws which OOD prompts form a group.
        weight: Weight of the patches, for GL-MCM.
        ood_weight: Weight of the OOD prompts, for ID mass.
    """

    id_cos: Tensor
    scale: float
    ood_cos: Tensor | None = None
    patch_cos: Tensor | None = None
    temperature: float = 1.0
    groups: int = 1
    seed: int = 0
    weight: float = 1.0
    ood_weight: float = 1.0

    @property
    def ood(self) -> Tensor:
        """Return the OOD cosines (N, U).

        Raises:
            MethodError: The method has no OOD prompts.
        """
        if self.ood_cos is None:
            raise MethodError("this score needs OOD prompts, which the method has not; use mcm")
        return self.ood_cos

    @property
    def patches(self) -> Tensor:
        """Return the patch cosines (N, P, C).

        Raises:
            MethodError: The data has no patch features.
        """
        if self.patch_cos is None:
            raise MethodError("this score needs patch features, which the data lack; use mcm")
        return self.patch_cos


SCORES: Mapping[str, Score] = MappingProxyType(
    {
        "mcm": Score(
            "maximum of the softmax of raw cosines (T=1)", False, False,
            lambda x: mcm(x.id_cos, x.temperature),
        ),
        "max_cosine": Score(
            "largest raw cosine", False, False,
            lambda x: -x.id_cos.double().amax(dim=1),
        ),
        "msp": Score(
            "maximum of the softmax at the logit scale", False, False,
            lambda x: msp(x.id_cos, x.scale),
        ),
        "energy": Score(
            "free energy of the ID logits", False, False,
            lambda x: energy(x.id_cos, x.scale),
        ),
        "id_mass": Score(
            "probability mass of all ID classes among C+U", True, False,
            lambda x: id_mass(x.id_cos, x.ood, x.scale, x.ood_weight),
        ),
        "max_softmax_all": Score(
            "largest ID entry of the softmax over C+U", True, False,
            lambda x: max_softmax_all(x.id_cos, x.ood, x.scale),
        ),
        "parity_msp": Score(
            "largest of all C+U entries, as the authors' code has it", True, False,
            lambda x: parity_msp(x.id_cos, x.ood, x.scale),
        ),
        "neglabel": Score(
            "ID mass against groups of OOD prompts, averaged", True, False,
            lambda x: neglabel(x.id_cos, x.ood, x.scale, x.groups, x.seed),
        ),
        "gl_mcm": Score(
            "MCM of the image plus that of its best patch", False, True,
            lambda x: gl_mcm(x.id_cos, x.patches, x.temperature, x.weight),
        ),
    }
)  # fmt: skip


def score(name: str, inputs: Inputs) -> Tensor:
    """Compute a score by its name.

    Args:
        name: As in `find`, such as `mcm`, `energy` or `./mine.py`.
        inputs: Cosines and constants.

    Returns:
        Scores (N,); higher means more OOD.

    Raises:
        ConfigError: There is no such score.

    >>> import torch
    >>> score("mcm", Inputs(torch.zeros(1, 4), scale=30.0)).exp().round(decimals=6).tolist()
    [4.0]
    """
    return find(name)(inputs)


def find(score: str | Callable[[Inputs], Tensor]) -> Callable[[Inputs], Tensor]:
    """Look up the function of a score.

    Args:
        score: A name in `SCORES`, one that was registered or installed, a file that defines
            `score(inputs)` or one function alone, `./mine.py`, or a function itself.

    Returns:
        A function of `Inputs` that gives (N,) scores; one from outside focoop is checked for what
        it returns, and raises a `MethodError` that names its line where it fails.

    Raises:
        ConfigError: No score has this name.
    """
    if not isinstance(score, str):
        return _checked(score, "the score")
    if score in SCORES:
        return SCORES[score].compute
    plugin = plugged("score", score)
    if inspect.ismodule(plugin):
        plugin = _function_of(plugin, score)
    if plugin is None:
        known = [*SCORES, *plugin_names("score")]
        raise ConfigError(f"unknown score {score!r}{nearest(score, known)}")
    if not callable(plugin):
        raise ConfigError(f"the score {score} must be a function of focoop.scores.Inputs")
    return _checked(plugin, f"the score {score}")


def _function_of(module: ModuleType, name: str) -> Callable[[Inputs], Tensor]:
    """The function of a user's file: `score`, or the only one that it defines for others."""
    functions = {
        key: thing
        for key, thing in vars(module).items()
        if inspect.isfunction(thing) and thing.__module__ == module.__name__ and key[0] != "_"
    }
    if "score" not in functions and len(functions) != 1:
        others = f", it defines {', '.join(functions)}" if functions else ""
        raise ConfigError(f"{name} must define a function score(inputs){others}")
    return functions.get("score") or next(iter(functions.values()))


def _checked(compute: Callable[[Inputs], Tensor], called: str) -> Callable[[Inputs], Tensor]:
    """A score from outside focoop that says in one line what is wrong with it."""

    def checked_score(inputs: Inputs) -> Tensor:
        images = len(inputs.id_cos)
        try:
            values = compute(inputs)
        except FocoopError:
            raise
        except Exception as error:  # a user's own code: whatever it raises
            place = line_of(error, getattr(compute, "__module__", ""))
            raise MethodError(f"{called} failed{place}: {type(error).__name__}: {error}") from error
        if not isinstance(values, torch.Tensor):
            raise MethodError(
                f"{called} must return a tensor, one number per image: it returned a "
                f"{type(values).__name__}"
            )
        if values.shape != (images,):
            raise MethodError(
                f"{called} returned the shape {tuple(values.shape)}: expected ({images},), one "
                "number per image, higher for what is more foreign"
            )
        return values

    return checked_score
