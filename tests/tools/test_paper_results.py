"""The page of the paper's tables is what its tool makes of the committed numbers."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import paper_results  # noqa: E402 (a script, found by its folder)

from focoop.paper import read_items  # noqa: E402

RESULTS = ROOT / "docs" / "results"
TREE = paper_results.read(RESULTS / "paper" / "numbers.json")


def test_the_page_is_what_the_tool_makes_of_the_numbers() -> None:
    made = paper_results.page(TREE, RESULTS / "paper")
    assert made == (RESULTS / "paper.md").read_text(encoding="utf-8")
    assert paper_results.dumped(TREE) == (RESULTS / "paper" / "numbers.json").read_text("utf-8")


def test_every_item_is_there_with_its_numbers_or_what_it_lacks() -> None:
    assert set(TREE["items"]) == {item.name for item in read_items()}
    for one in TREE["items"].values():
        assert one["numbers"] or one["lacking"], one["item"]
        assert not one["failed"], one["failed"]
    page = (RESULTS / "paper.md").read_text(encoding="utf-8")
    figures = re.findall(r"\]\((paper/[^)]+\.svg)\)", page)
    assert figures and all((RESULTS / name).is_file() for name in figures)
    kept = sum(path.stat().st_size for path in (RESULTS / "paper").iterdir())
    assert kept < 350_000, "committed outputs stay small"
