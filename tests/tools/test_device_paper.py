"""Runs of the paper on another machine: made, packed, brought back, shown; and those committed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import device_features  # noqa: E402 (scripts, found by their folder)
import device_paper  # noqa: E402
import paper_results  # noqa: E402

import focoop  # noqa: E402
from focoop.experiments import Outcome  # noqa: E402
from focoop.paper import (  # noqa: E402
    collect_numbers,
    make_choices,
    plan_item,
    read_item,
    read_items,
)
from tests.paper.toy_items import write_items  # noqa: E402

RESULTS = ROOT / "docs" / "results"


@pytest.mark.slow
def test_what_comes_back_makes_the_page_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = write_items(tmp_path / "toy", ("promptfl", "fedncm"))
    monkeypatch.setattr(device_paper, "read_items", lambda: read_items(items))
    monkeypatch.setattr(device_features, "DAMAGED", {})
    monkeypatch.setenv("NO_MPS", "1")
    there, back = tmp_path / "there", tmp_path / "back"
    command = ["run", "--device", "cpu", "--jobs", "1", "--seeds", "2", "--items", "T1", "F5"]
    command += ["--folder", str(tmp_path), "--runs", str(there), "--out", str(back)]
    assert device_paper.main(command) == 0
    assert {path.name for path in back.iterdir()} == {
        "paper.json",
        "cells.json.xz",
        "runs-1.tar.xz",
        "report.html",
        "report-T1.html",
    }

    here = tmp_path / "here"
    assert device_paper.main(["unpack", str(back), str(here)]) == 0
    runs = sorted(path.parent for path in here.rglob("config.toml"))
    assert len(runs) == 16, "T1: two parts, F5: two points; two methods, two seeds"
    for path in runs:
        full = focoop.open_run(there / path.relative_to(here))
        assert focoop.open_run(path).summary == full.summary
    text = focoop.write_report(here / "runs", here / "again.html").read_text("utf-8")
    assert "16 runs" in text and "copies without models" in text
    assert "copies without models" not in (here / "report-T1.html").read_text("utf-8")

    made = focoop.reproduce(
        "T1", folder=items, seeds=2, out=here, device="cpu", run=False, formats="svg"
    )[0]
    (document,) = [
        one for one in json.loads((back / "paper.json").read_text())["items"] if one["item"] == "T1"
    ]
    ours = {
        (one.part, one.label, one.column): round(one.ours.mean, 4)
        for one in made.entries
        if one.ours is not None
    }
    assert {(row[0], row[2], row[3]): row[4] for row in document["numbers"]} == ours
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(paper_results, "read_items", lambda: read_items(items))
    assert paper_results.main([str(tmp_path / "docs"), str(back / "paper.json")]) == 0
    assert "toy, K=3" in (tmp_path / "docs" / "paper.md").read_text()

    again = [*command, "--done", str(back / "cells.json.xz"), "--runs", str(tmp_path / "fresh")]
    assert device_paper.main(again) == 0, "nothing is left to run"
    assert not list((tmp_path / "fresh").rglob("config.toml"))

    kept = device_paper.read_cells(back / "cells.json.xz")
    (gone,) = [name for name in kept if name.startswith("runs/toy/") and "fedncm/seed1" in name]
    fewer, last = tmp_path / "fewer.json", tmp_path / "last"
    fewer.write_text(json.dumps({"runs": {n: kept[n] for n in kept if "fedncm/seed1" not in n}}))
    some = [*command[:-1], str(last), "--runs", str(tmp_path / "some"), "--done", str(fewer)]
    assert device_paper.main([*some, "--only", "runs/toy/"]) == 3, "others are left"
    (made_now,) = (tmp_path / "some").rglob("config.toml")
    assert made_now.parent == tmp_path / "some" / gone
    found = device_paper.read_cells(last / "cells.json.xz")
    assert found.keys() == {n for n in kept if "fedncm/seed1" not in n} | {gone}
    assert found[gone]["accuracy_own"] == pytest.approx(kept[gone]["accuracy_own"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["T1", "T2", "T4", "T8", "T13", "T14", "F5", "F7", "ablation"]
)  # those of the others depend on the OOD sets that are here
def test_committed_numbers_are_the_means_of_the_committed_runs(name: str) -> None:
    item = read_item(ROOT / "configs" / "paper" / f"{name}.toml")
    cells = device_paper.read_cells(RESULTS / "paper" / "cells.json.xz")
    choices: Any = make_choices(
        backbone="mini",
        seeds=3,
        methods=(),
        overrides=None,
        out="made",
        packaged=False,
        presets=None,
        device="cuda",
    )
    plans = plan_item(item, choices, ask=False)
    outcomes = {}
    for cell in (cell for part in plans for cell in part.cells):
        kept = cells.get(cell.folder.relative_to("made").as_posix())
        if kept is not None:
            outcomes[str(cell.folder)] = Outcome(cell, "finished", cell.rounds, kept)
    made = collect_numbers(item, plans, outcomes, choices).document()["numbers"]
    committed = paper_results.read(RESULTS / "paper" / "numbers.json")["items"][name]["numbers"]
    assert {tuple(row[:4]) for row in made} == {tuple(row[:4]) for row in committed}
    found = {tuple(row[:4]): row[4:] for row in made}
    for row in committed:
        assert found[tuple(row[:4])] == pytest.approx(row[4:], abs=2e-4)
