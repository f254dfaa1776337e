"""Numbers that pages quote: between marks, from the committed runs, and nowhere else."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import quoted_results  # noqa: E402 (a script, found by its folder)
import results_cells  # noqa: E402

CELLS = {
    ("s", "promptfl", 0): {"own": 10.0, "fpr95 x": 50.0},
    ("s", "promptfl", 1): {"own": 20.0, "fpr95 x": 40.0},
    ("s", "focoop", 0): {"own": 30.04, "fpr95 x": 60.0},
}


def test_a_table_has_means_and_marks_the_best() -> None:
    columns = {
        "own": (("s", "own"),),
        "both": (("s", "own"), ("s", "fpr95 x")),
        "nobody": (("s", "auroc x"),),
    }
    methods = {"promptfl": "PromptFL", "focoop": "FOCoOp", "fedpgp": "FedPGP"}
    made = quoted_results.rendered(quoted_results.Table(columns, methods), CELLS)
    assert made.splitlines() == [
        "| | own | both |",
        "|---|---:|---:|",
        "| PromptFL | 15.0 | 15.0 / **45.0** |",
        "| FOCoOp | **30.0** | **30.0** / 60.0 |",
    ]


def test_numbers_between_marks_are_rewritten_and_nothing_else() -> None:
    text = "Own <!-- s promptfl own -->99<!-- end --> of 99.\n<!-- s fedpgp own -->7<!-- end -->\n"
    page, lacking = quoted_results.rewritten(text, CELLS)
    assert page.startswith("Own <!-- s promptfl own -->15.0<!-- end --> of 99.\n")
    assert "-->7<!--" in page and lacking == ["s fedpgp own"]
    assert quoted_results.rewritten(page, CELLS)[0] == page
    unknown = "<!-- table strange -->\nkept\n<!-- end -->"
    assert quoted_results.rewritten(unknown, CELLS) == (unknown, ["table strange"])


def test_pages_quote_the_committed_runs() -> None:
    cells = results_cells.read_cells(ROOT / "docs" / "results" / "cells.json")
    marked = 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        marked += len(quoted_results.MARK.findall(text))
        assert quoted_results.rewritten(text, cells) == (text, []), path
    assert marked >= len(quoted_results.TABLES)
