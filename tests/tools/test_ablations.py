"""The table of ablations: its statistics, its settings and what it draws."""

import json
import shutil
import statistics
from pathlib import Path

import pytest

from focoop.experiments.variants import parse_methods
from focoop.features.storage import load_split
from focoop.functional import paired
from focoop.methods import lookup
from focoop.scenario.partition import pathological
from tools import ablations


def test_differences_show_mean_interval_and_p_value() -> None:
    steps = [1.0, 2.0, 1.5, 0.5, 1.0]
    error = statistics.stdev(steps) / 5**0.5
    # 2.776: Student's t for 4 degrees of freedom and 95%, from printed tables.
    p = paired.two_sided(statistics.mean(steps) / error, 4)
    assert ablations.difference(steps) == f"+1.2 ± {2.776 * error:.1f} ({p:.2f})"


def test_every_variant_is_a_setting_of_the_method() -> None:
    for table in ablations.TABLES.values():
        text = ",".join(f"focoop:{changes}" for changes in table.values() if changes)
        variants = parse_methods(text) or []
        assert len(variants) == len([one for one in table.values() if one])
        known = {one.removeprefix("method.").split("=")[0] for v in variants for one in v.overrides}
        assert known <= set(vars(lookup("focoop").Config()))


def test_some_variants_can_be_asked_for() -> None:
    asked = "no GOC, full,local_only"
    assert ablations.methods_of("apart", asked) == {
        "full": "focoop", "no GOC": "focoop:goc=false", "local_only": "local_only",
    }  # fmt: skip
    assert set(ablations.methods_of("siblings", asked)) == {"full", "no GOC"}
    assert set(ablations.methods_of("apart")) >= {"promptfl", "no ascent", "pool of means"}
    with pytest.raises(SystemExit, match="no variant 'no goc'; there are full, "):
        ablations.methods_of("apart", "no goc")


def test_siblings_are_at_other_clients(tmp_path: Path) -> None:
    found = load_split(ablations.siblings(tmp_path), "train")
    above = {
        name: i for i, part in enumerate(ablations.SUPERCLASSES.split(";")) for name in part.split()
    }
    assert len(above) == 100
    for held in pathological(100, ablations.CLIENTS, ablations.SEED).holds():
        groups = [above[found.classes[c]] for c in held.nonzero()[0]]
        assert len(groups) == len(set(groups)) == 10
    assert sorted(found.classes) == sorted(above)


def test_differences_are_taken_in_pairs(tmp_path: Path) -> None:
    rounds = [{"server": {"spread": 3.0, "row_entropy": 0.2}}, {"server": {"spread": 4.0}}]
    for seed in (0, 1):
        folder = tmp_path / f"run{seed}"
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"rounds": rounds}))
        cells = [
            {"setting": "apart", "label": label, "seed": seed, "status": "finished",
             "folder": str(folder), "summary": {"accuracy_own": own, "accuracy_all": 0.1}}
            for label, own in (("focoop", 0.7 + 0.1 * seed), ("focoop:goc=false", 0.6 + 0.1 * seed))
        ]  # fmt: skip
        target = tmp_path / f"seeds{seed}" / "apart"
        target.mkdir(parents=True)
        (target / "results.json").write_text(json.dumps({"cells": cells}))
    out = tmp_path / "out"
    out.mkdir()
    ablations.write(tmp_path, out)
    page = (out / "ablations.md").read_text()
    assert "| full | 2 | 75.0 ± 7.1 |" in page
    assert "| no GOC | 2 | -10.0 ± 0.0" in page
    assert json.loads((out / "curves.json").read_text())["apart"]["full"]["spread"] == [3.0, 4.0]
    assert len(ablations.read_rows(out / "ablations.json", ("setting", "variant"))) == 4


def test_the_page_has_the_tables_of_the_committed_runs(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[2] / "docs" / "results" / "focoop"
    for name in ("parts.md", "ablations.json", "curves.json"):
        shutil.copy(folder / name, tmp_path / name)
    ablations.write_page(tmp_path)
    assert (tmp_path / "parts.md").read_bytes() == (folder / "parts.md").read_bytes()
    assert {row["setting"] for row in json.loads((folder / "ablations.json").read_text())} == {
        "apart", "siblings", "mixed"
    }  # fmt: skip
