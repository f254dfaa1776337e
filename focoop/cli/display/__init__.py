"""Results and partitions as people read them: tables that fit the screen, pictures, a plot."""

from focoop.cli.display.partition import partition_table, plot_partition
from focoop.cli.display.results import (
    AREA,
    NOTE,
    brief,
    clients_table,
    dataset_of,
    headline,
    percent,
    results_table,
)
from focoop.cli.display.sheet import PROSE, Column, Sheet, wrapped

__all__ = [
    "AREA",
    "NOTE",
    "PROSE",
    "Column",
    "Sheet",
    "brief",
    "clients_table",
    "dataset_of",
    "headline",
    "partition_table",
    "percent",
    "plot_partition",
    "results_table",
    "wrapped",
]
