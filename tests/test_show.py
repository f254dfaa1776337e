"""Tables and pictures: the right number in the right column, the right shade in the right cell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from focoop import show
from focoop.errors import DataError

SUMMARY: dict[str, Any] = {
    "accuracy_own": 0.5,
    "accuracy_all": 0.25,
    "accuracy_corrupted": None,
    "cross_alarm": float("nan"),
    "ood": {"dtd": {"fpr95": 0.123, "auroc": 0.987}},
}


def rendered(table: Any, width: int = 200) -> list[list[str]]:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return [line.split() for line in captured.get().splitlines() if line.strip()]


def test_headline_in_percent() -> None:
    assert show.headline(SUMMARY) == {
        "own classes": "50.0",
        "all classes": "25.0",
        "corrupted": "-",
        "fpr95 dtd": "12.3",
        "auroc dtd": "98.7",
        "cross-client alarm": "-",
    }


def test_results_table_aligns_methods_with_different_ood_sets() -> None:
    other = {**SUMMARY, "ood": {"sun": {"fpr95": 0.5, "auroc": 0.6}}}
    lines = rendered(show.results_table([("one", SUMMARY), ("two", other)]))
    assert ["one", "two"] in lines
    assert ["own", "classes", "50.0", "50.0"] in lines
    assert ["corrupted", "-", "-"] in lines
    assert ["fpr95", "dtd", "12.3", "-"] in lines
    assert ["auroc", "sun", "-", "60.0"] in lines


def test_clients_table_averages_corruptions() -> None:
    row = {
        **SUMMARY,
        "client": 3,
        "num_classes": 10,
        "num_test": 200,
        "corrupted": {"fog@1": {"accuracy": 0.2}, "fog@2": {"accuracy": 0.4}},
    }
    lines = rendered(show.clients_table([row]))
    assert lines[-1] == ["3", "10", "200", "50.0", "25.0", "30.0", "12.3", "98.7", "-"]


def test_partition_picture_shades_counts() -> None:
    counts = np.array([[8, 0, 4, 1], [0, 8, 0, 0]])
    table = show.partition_table(counts, width=80, unicode=False, held_out=[5, 6])
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    first = next(line for line in lines if line.split()[:1] == ["0"])
    second = next(line for line in lines if line.split()[:1] == ["1"])
    assert first.split()[:4] == ["0", "13", "3", "5"] and "# :." in first
    assert second.split()[:4] == ["1", "8", "1", "6"] and " #  " in second


def test_many_classes_are_grouped_to_the_width() -> None:
    counts = np.ones((2, 1000), dtype=np.int64)
    pictures = list(show._pictures(counts, 60))
    assert [len(row) for row in pictures] == [60, 60]
    assert all(level > 0 for row in pictures for level in row)


def test_plot_writes_a_picture_and_refuses_bad_places(tmp_path: Path) -> None:
    counts = np.array([[3, 0], [0, 3]])
    show.plot_partition(counts, ["cat", "dog"], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(DataError, match="cannot write the plot"):
        show.plot_partition(counts, ["cat", "dog"], tmp_path / "absent" / "p.png")
    with pytest.raises(DataError, match="cannot write the plot"):
        show.plot_partition(counts, ["cat", "dog"], tmp_path / "p.nonsense")
