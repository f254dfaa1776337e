"""Plots show the measured rows and leave out what was not measured."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
TOOL = Path(__file__).resolve().parents[2] / "tools" / "plot_performance.py"


def test_plots_of_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "clients": [
            {"K": 1, "s per client": 0.5},
            {"K": 10, "s per client": 0.1},
            {"K": 100, "error": "out of memory"},
        ],
        "tower": [{"contexts": "unified", "prompts": 200, "share of peak": 0.4}],
        "classes": [{"error": "Traceback"}],
    }
    source = tmp_path / "found.json"
    source.write_text(json.dumps(found))
    monkeypatch.setattr(sys, "argv", ["plot_performance.py", str(source), str(tmp_path / "out")])
    runpy.run_path(str(TOOL), run_name="__main__")
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(first) == {"clients.svg", "tower.svg"}
    assert b"ms per client" in first["clients.svg"]
    assert b"bar" in first["tower.svg"]
    runpy.run_path(str(TOOL), run_name="__main__")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == first
