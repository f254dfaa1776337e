"""Every table and figure of the FOCoOp paper as runs of ours, with the paper's numbers beside them.

`items.py` reads the small files of `configs/paper`, one per table or figure, and the published
values. `planning.py` turns an item into runs and says what they lack. `numbers.py` puts our means
beside the paper's, `documents.py` keeps them as JSON, `writing.py` and `figures.py` show them,
`outputs.py` writes all files of an item, and `reproducing.py` does all of it.

May import: errors, lazy, fields, data, clip, methods, config, scenario, runs, tracking,
experiments.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.paper.documents import Numbers, read_numbers
    from focoop.paper.figures import draw_map, read_similarity
    from focoop.paper.items import Item, Part, choose_items, read_item, read_items
    from focoop.paper.numbers import Entry, seeds_span
    from focoop.paper.outputs import collect_numbers, draw_numbers, write_numbers
    from focoop.paper.planning import Choices, Planned, plan_item, way_to
    from focoop.paper.reproducing import (
        Progress,
        Reproduction,
        Surveyed,
        make_choices,
        reproduce,
        survey,
    )
    from focoop.paper.writing import Remarks, lower_is_better, markdown

__all__ = [
    "Choices",
    "Entry",
    "Item",
    "Numbers",
    "Part",
    "Planned",
    "Progress",
    "Remarks",
    "Reproduction",
    "Surveyed",
    "choose_items",
    "collect_numbers",
    "draw_map",
    "draw_numbers",
    "lower_is_better",
    "make_choices",
    "markdown",
    "plan_item",
    "read_item",
    "read_items",
    "read_numbers",
    "read_similarity",
    "reproduce",
    "seeds_span",
    "survey",
    "way_to",
    "write_numbers",
]

__getattr__ = lazy_names(__name__, __file__)
