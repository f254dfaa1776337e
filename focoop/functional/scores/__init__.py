"""OOD scores: pure functions of cosines, each also found by its name. HIGHER MEANS MORE OOD."""

from focoop.functional.scores.formulas import (
    energy,
    gl_mcm,
    id_mass,
    mahalanobis,
    max_softmax_all,
    mcm,
    msp,
    neglabel,
    parity_msp,
)
from focoop.functional.scores.named import SCORES, Inputs, Score, find, score

__all__ = [
    "SCORES",
    "Inputs",
    "Score",
    "energy",
    "find",
    "gl_mcm",
    "id_mass",
    "mahalanobis",
    "max_softmax_all",
    "mcm",
    "msp",
    "neglabel",
    "parity_msp",
    "score",
]
