"""The figure of the server's reports: drawn from the committed curves, with what a grid adds."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "results" / "focoop"
sys.path.insert(0, str(ROOT / "tools"))
import plot_consistency  # noqa: E402 (a script, found by its folder)


def test_the_figure_is_that_of_the_committed_curves() -> None:
    curves = json.loads((FOLDER / "curves.json").read_text(encoding="utf-8"))["apart"]
    assert (FOLDER / "consistency.svg").read_text("utf-8") == plot_consistency.drawing(curves)


def test_a_line_goes_where_its_values_are() -> None:
    drawn = plot_consistency.drawing({"full": {"spread": [0.0, 1.0, 4.0]}})
    (line,) = re.findall(r'class="full" points="((?:[\d.]+,[\d.]+ ){2}[^"]+)"', drawn)
    heights = [float(point.split(",")[1]) for point in line.split()]
    first, middle, last = (heights[0] - height for height in heights)
    assert first == 0 and last == plot_consistency.PANEL_H
    assert middle == pytest.approx(last / 4)  # of 4, one is a quarter of the way up
    assert [plot_consistency.short(v) for v in (100.0, 3.44, 5.2e-5, 0.0)] == [
        "100",
        "3.4",
        "5e-5",
        "0",
    ]


def test_reports_of_the_paper_are_averaged_over_seeds(tmp_path: Path) -> None:
    cells = [
        {"setting": "cifar100", "label": label, "server": {"spread": values, "gap": [None, 1.0]}}
        for label, values in (
            ("focoop-paper", [1.0, 2.0]),
            ("focoop-paper", [3.0, 2.0]),
            ("focoop", [9.0, 9.0]),
        )
    ]
    (tmp_path / "grid.json").write_text(json.dumps({"cells": cells}))
    assert plot_consistency.of_the_paper(tmp_path / "grid.json") == {"spread": [2.0, 2.0]}
