"""What the paper to the letter does: table and drawing are those of the committed runs."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import plot_letter  # noqa: E402 (a script, found by its folder)


def test_page_and_drawing_are_those_of_the_committed_runs() -> None:
    runs = json.loads(plot_letter.EVIDENCE.read_text(encoding="utf-8"))
    assert sorted(runs) == ["0", "1", "2"]
    assert all(len(values) == 25 for run in runs.values() for values in run.values())
    assert plot_letter.table(runs) in plot_letter.PAGE.read_text(encoding="utf-8")
    assert plot_letter.DRAWING.read_text(encoding="utf-8") == plot_letter.drawing(runs)


def test_runs_of_the_paper_alone_are_taken(tmp_path: Path) -> None:
    server = {name: [1.0, 0.123456789] for name in plot_letter.NUMBERS}
    cells = [
        {"setting": setting, "label": label, "seed": 3, "server": server}
        for setting, label in (("cifar100", "focoop-paper"), ("cifar100", "focoop"))
    ]
    path = tmp_path / "grid-1.json"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    runs = plot_letter.read_grid(path)
    assert list(runs) == ["3"]
    assert runs["3"]["spread"] == [1.0, 0.123457]
