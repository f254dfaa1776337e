"""Optimal transport: semi-unbalanced with three solvers, and partial for many small problems."""

from focoop.functional.transport.costs import rescale, squared_cost
from focoop.functional.transport.dual import DualPlan, semi_unbalanced_dual
from focoop.functional.transport.frank_wolfe import (
    Plan,
    barycentre,
    row_entropy,
    select_by_mass,
    semi_unbalanced,
    semi_unbalanced_entropic,
    two_means,
)
from focoop.functional.transport.marginals import chunks
from focoop.functional.transport.partial_transport import balanced, partial

__all__ = [
    "DualPlan",
    "Plan",
    "balanced",
    "barycentre",
    "chunks",
    "partial",
    "rescale",
    "row_entropy",
    "select_by_mass",
    "semi_unbalanced",
    "semi_unbalanced_dual",
    "semi_unbalanced_entropic",
    "squared_cost",
    "two_means",
]
