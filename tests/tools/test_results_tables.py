"""The page of results: means over seeds, settings against methods, and what is missing."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import results_tables  # noqa: E402 (a script, found by its folder)


def cell(setting: str, label: str, seed: int, own: float, auroc: float) -> dict[str, object]:
    ood = {"far": {"auroc": 0.1}, "near_32px": {"auroc": auroc, "fpr95": 0.5}}
    summary = {"accuracy_own": own, "accuracy_all": own / 2, "cross_alarm": 0.1, "ood": ood}
    status = "finished" if own else "failed"
    found = {"setting": setting, "label": label, "seed": seed, "status": status}
    return {**found, "summary": summary}


def test_results_of_two_machines_make_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [cell("small", "zeroshot", seed, 0.2, 0.6) for seed in range(3)]
    second = [
        cell("small", "focoop", 0, 0.7, 0.8),
        cell("small", "focoop", 1, 0.8, 0.9),
        cell("small", "focoop", 2, 0.0, 0.9),  # failed
        cell("pacs-photo", "focoop", 0, 0.4, 0.5),
        cell("small", "zeroshot", 0, 0.5, 0.6),  # the file named last counts
    ]
    for name, cells in (("a", first), ("b", second)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"cells": cells}))
    for files in (["a", "b"], []):  # the second time from cells.json alone
        given = [str(tmp_path / "out"), *(str(tmp_path / f"{name}.json") for name in files)]
        monkeypatch.setattr(sys, "argv", ["results_tables.py", *given])
        assert results_tables.main() == 0
        page = (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
        assert "| small | 30.0 / 15.0 / 10.0 | 75.0 / 37.5 / 10.0 (2) |" in page
        assert "| small | 50.0 / 60.0 | 50.0 / 85.0 (2) |" in page  # the set at the ID size
        assert "| pacs-photo | 40.0 (1) |" in page
        assert "| pacs-photo | - | 50.0 / 50.0 (1) |" in page
        assert "| focoop | **75.0 ± 7.1** |" in page
    assert "6 runs" in capsys.readouterr().out
