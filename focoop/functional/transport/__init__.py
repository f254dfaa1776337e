"""Optimal transport: semi-unbalanced with two solvers, and partial for many small problems."""

from focoop.functional.transport.costs import rescale, squared_cost
from focoop.functional.transport.dual import DualPlan, semi_unbalanced_dual
from focoop.functional.transport.marginals import chunks
from focoop.functional.transport.open_loop import Plan, semi_unbalanced_open_loop
from focoop.functional.transport.partial_transport import balanced, partial
from focoop.functional.transport.selection import barycentre, select_by_mass

__all__ = [
    "DualPlan",
    "Plan",
    "balanced",
    "barycentre",
    "chunks",
    "partial",
    "rescale",
    "select_by_mass",
    "semi_unbalanced_dual",
    "semi_unbalanced_open_loop",
    "squared_cost",
]
