"""The leaderboard is made from the committed runs, whole groups alone, with the required rows."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import leaderboard  # noqa: E402 (a script, found by its folder)
import results_cells  # noqa: E402


def test_the_page_is_that_of_the_committed_runs() -> None:
    cells = results_cells.read_cells(ROOT / "docs" / "results" / "cells.json")
    page = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    origins = leaderboard.read_origins(ROOT / "docs" / "results" / "origins.json")
    assert page == leaderboard.page(cells, origins), "run: python tools/leaderboard.py"


def test_patch_methods_have_a_group_and_every_origin_is_of_a_method_with_runs() -> None:
    cells = results_cells.read_cells(ROOT / "docs" / "results" / "cells.json")
    with_patches = [
        leaderboard.group(cells, settings, (0, 1, 2)) for _, settings in leaderboard.GROUPS.values()
    ][1]
    methods = {method for _, method, _ in cells}
    assert {"fedotp", "fedlocoop", "fedgallop", *leaderboard.REQUIRED} <= set(with_patches)
    for one in leaderboard.read_origins(ROOT / "docs" / "results" / "origins.json"):
        assert one["commit"] and one["machine"]
        assert isinstance(one["methods"], str) or set(one["methods"]) <= methods


def test_means_are_over_settings_and_incomplete_methods_are_left_out() -> None:
    cells = {
        ("a", "x", 0): {"own": 10.0, "auroc u": 50.0, "auroc v": 70.0},
        ("b", "x", 0): {"own": 30.0, "auroc u": 80.0},
        ("a", "y", 0): {"own": 90.0},
    }
    rows = leaderboard.group(cells, ("a", "b"), (0,))
    assert rows == {"x": {"own": [20.0], "auroc": [70.0]}}
    assert "| 1 | `x` | 20.0 | 70.0 |" in leaderboard.table(rows)


def test_required_rows_are_demanded() -> None:
    with pytest.raises(SystemExit, match="local_only, fedlda, zeroshot must be run"):
        leaderboard.page({("cifar100", "x", 0): {"own": 1.0}})
