"""Sweeps in a report: which settings belong together, and the lines over their values."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from focoop.config import RunConfig
from focoop.report.document import write_report
from focoop.report.records import Collection, RunRecord
from focoop.report.summary import Rows, summary
from focoop.report.swept import find_sweeps, sweep_charts


def run(folder: str, shots: int, seed: int, own: float, status: str = "finished") -> RunRecord:
    """A run of `compare` with one accuracy."""
    base = RunConfig(seed=seed)
    config = replace(base, partition=replace(base.partition, shots=shots))
    path = Path("/grid") / folder / "a" / f"seed{seed}"
    held: Any = SimpleNamespace(path=path, config=config, status=status)
    return RunRecord(0, held, folder, "a", [{"accuracy_own": own}])


SETTINGS: dict[str, Rows] = {
    "toy-shots=2": {"a": [run("toy-shots=2", 2, seed, 0.5 + seed / 10) for seed in (0, 1)]},
    "toy-shots=16": {"a": [run("toy-shots=16", 16, 0, 0.9), run("toy-shots=16", 16, 1, 0.7)]},
    "toy-shots=4": {
        "a": [run("toy-shots=4", 4, 0, 0.6), run("toy-shots=4", 4, 1, 0.1, "killed")],
        "b": [run("toy-shots=4", 4, 0, 0.2)],
    },
    "alone": {"a": [run("alone", 8, 0, 0.3)]},
    "other-shots=1": {"a": [run("other-shots=1", 1, 0, 0.3)]},
}


def test_settings_that_differ_in_one_number_are_a_sweep() -> None:
    (found,) = find_sweeps(SETTINGS)
    assert found.title == "toy over partition.shots"
    assert found.points == {2: "toy-shots=2", 4: "toy-shots=4", 16: "toy-shots=16"}
    assert list(found.points) == [2, 4, 16]
    (chart,) = sweep_charts(found, SETTINGS)
    assert chart["title"] == "own classes, %" and chart["x"] == "partition.shots"
    assert chart["log"] == 2, "16 is eight times 2"
    first, second = chart["lines"]
    assert (first["name"], first["x"]) == ("a", [2, 4, 16])
    assert first["y"] == pytest.approx([55, 60, 80]), "the killed run of 4 shots does not count"
    assert first["low"] == pytest.approx([50, 60, 70])
    assert first["high"] == pytest.approx([60, 60, 90])
    assert (second["x"], second["y"]) == ([4], [20])


def test_a_product_of_sweeps_has_a_sweep_for_each_value_of_the_others() -> None:
    names = [f"toy-shots={shots}-alpha={alpha}" for shots in (1, 2) for alpha in ("0.1", "1e-05")]
    settings = {name: {"a": [run(name, int(name[10]), 0, 0.5)]} for name in names}
    assert [(one.name, len(one.points)) for one in find_sweeps(settings)] == [
        ("toy, alpha=0.1", 2),
        ("toy, alpha=1e-05", 2),
    ]


def test_a_sweep_is_one_card_and_its_settings_are_folded() -> None:
    records = [record for rows in SETTINGS.values() for of in rows.values() for record in of]
    (found,) = find_sweeps(SETTINGS)
    text = summary(Collection(records, {}), SETTINGS, {"w0": (found.title, found.points)})
    assert '<a href="#w0">toy over partition.shots</a>' in text
    assert "3 points: nothing to compare." in text
    assert "alone" in text and "toy-shots=16" not in text
    rivals: dict[str, Rows] = {
        f"toy-shots={shots}": {
            name: [replace(run(f"toy-shots={shots}", shots, 0, own), label=name)]
            for name, own in (("a", 0.5), ("b", 0.1 * shots))
        }
        for shots in (2, 4, 8)
    }
    (found,) = find_sweeps(rivals)
    records = [record for rows in rivals.values() for of in rows.values() for record in of]
    text = summary(Collection(records, {}), rivals, {"w0": (found.title, found.points)})
    shown, folded = text.split("<details>")
    assert "Best at how many of 3 points:" in shown and "<b>a</b> 2, <b>b</b> 1" in shown
    assert folded.count('class="card"') == 3 and "3 settings of 1 sweep" in folded


def test_a_method_that_has_a_sweep_for_itself_is_told_at_its_best_and_worst_value() -> None:
    own = {2: (0.5, 0.6), 4: (0.9, 0.7), 16: (0.6, 0.6)}
    settings: dict[str, Rows] = {
        f"toy-shots={shots}": {
            "a": [run(f"toy-shots={shots}", shots, seed, value) for seed, value in enumerate(of)]
        }
        for shots, of in own.items()
    }
    (found,) = find_sweeps(settings)
    records = [record for rows in settings.values() for record in rows["a"]]
    text = summary(Collection(records, {}), settings, {"w0": (found.title, found.points)})
    assert "a at 3 points, the best and the worst:" in text
    assert "<b>80.0</b> at 4, 55.0 at 2" in text
    level = {name: {"a": rows["a"][:1]} for name, rows in settings.items()}
    for rows in level.values():
        rows["a"][0] = replace(rows["a"][0], metrics=[{"accuracy_own": 0.9}])
    text = summary(Collection(records, {}), level, {"w0": (found.title, found.points)})
    assert "<b>90.0</b> at all</li>" in text


@pytest.mark.slow
def test_the_page_has_the_sweep_before_its_settings(tmp_path: Path) -> None:
    import focoop
    from tests.toy_setting import write_setting

    setting = write_setting(tmp_path / "data")
    sweep = "partition.shots=5,6,12"
    focoop.compare(setting, ["fedncm"], seeds=[0, 1], sweep=sweep, out=tmp_path / "out", jobs=0)
    page = write_report(tmp_path / "out", tmp_path / "report.html").read_text(encoding="utf-8")
    heads = [part.split("</h2>")[0] for part in page.split("<h2>")[1:]]
    assert heads[-4:] == ["toy over partition.shots", "toy-shots=5", "toy-shots=6", "toy-shots=12"]
