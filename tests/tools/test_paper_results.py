"""The page of the paper's tables is what its tool makes of the committed numbers."""

import re
import shutil
import sys
from pathlib import Path

import pytest

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
    assert kept < 900_000, "committed outputs stay small"


@pytest.mark.slow
def test_the_figures_are_drawn_from_the_numbers(tmp_path: Path) -> None:
    for path in (RESULTS / "paper").glob("*.csv"):
        shutil.copy(path, tmp_path / path.name)
    paper_results.draw_all(TREE, tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_text("utf-8") for path in (RESULTS / "paper").glob("*.svg")}
    assert drawn.keys() == kept.keys()
    for name, text in kept.items():
        ours, theirs = (re.findall(r">([^<>\s][^<>]*)</text>", one) for one in (drawn[name], text))
        assert ours == theirs, f"{name}: run python tools/paper_results.py docs/results"
        places = [
            [
                float(x)
                for path in re.findall(r' d="([^"]+)"', one)
                for x in re.findall(r"-?[\d.]+", path)
            ]
            for one in (drawn[name], text)
        ]
        # In points: another version of matplotlib may set a label a little wider.
        assert places[0] == pytest.approx(places[1], abs=2.0), name
