"""Every table and figure of the FOCoOp paper as runs of ours, with the paper's numbers beside them.

`items.py` reads the small files of `configs/paper`, one per table or figure, and the published
values. `planning.py` turns an item into runs and says what they lack. `numbers.py` puts our means
beside the paper's, `writing.py` and `figures.py` write them, and `reproducing.py` does all of it.

May import: errors, lazy, data, clip, methods, config, scenario, runs, experiments.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.paper.items import Item, Part, choose_items, read_item, read_items
    from focoop.paper.numbers import Entry
    from focoop.paper.planning import Choices, Planned, plan_item
    from focoop.paper.reproducing import (
        Progress,
        Reproduction,
        Surveyed,
        make_choices,
        reproduce,
        survey,
    )

__all__ = [
    "Choices",
    "Entry",
    "Item",
    "Part",
    "Planned",
    "Progress",
    "Reproduction",
    "Surveyed",
    "choose_items",
    "make_choices",
    "plan_item",
    "read_item",
    "read_items",
    "reproduce",
    "survey",
]

__getattr__ = lazy_names(__name__, __file__)
