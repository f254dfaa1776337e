"""Coverage room by room, from a report as coverage.py writes it."""

import json
import sys
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import coverage_by_room  # noqa: E402 (a script, found by its folder)


def test_files_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summaries = {
        "focoop/errors.py": (10, 10),
        "focoop/data/images.py": (30, 15),
        "focoop/data/datasets/dtd.py": (10, 5),
    }
    files = {
        path: {"summary": {"num_statements": lines, "covered_lines": run}}
        for path, (lines, run) in summaries.items()
    }
    report = tmp_path / "coverage.json"
    report.write_text(json.dumps({"files": files}))
    assert coverage_by_room.main([str(report), "--least", "1"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert told[1:] == [
        ["(loose", "files)", "10", "10", "100.0"],
        ["data", "40", "20", "50.0"],
        ["all", "50", "30", "60.0"],
        ["most", "lines", "that", "are", "not", "run"],
        ["15", "of", "30", "focoop/data/images.py"],
    ]


def test_a_report_of_coverage_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "focoop" / "room" / "three_lines.py"
    module.parent.mkdir(parents=True)
    module.write_text("def ask():\n    return 1\nanswer = 2\n")
    monkeypatch.chdir(tmp_path)
    measured = coverage.CoverageData(basename=str(tmp_path / ".coverage"))
    measured.add_lines({str(module): [1, 3]})
    measured.write()
    reporter = coverage.Coverage(data_file=str(tmp_path / ".coverage"), config_file=False)
    reporter.load()
    reporter.json_report(outfile=str(tmp_path / "report.json"))
    files = coverage_by_room.read_report(tmp_path / "report.json")
    assert coverage_by_room.by_room(files) == [("room", 3, 2)]
