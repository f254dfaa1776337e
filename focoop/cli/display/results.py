"""Results as people read them: the numbers of an evaluation as tables and as one line."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from focoop.cli.display.sheet import Column, Sheet
from focoop.experiments import DETECTION

NOTE = (
    "percent; fpr95: OOD accepted when 95% of ID is kept, alarm: other clients' ID images "
    "flagged (both: lower is better)"
)
AREA = (
    "own-other area: under the curve of accuracy on other classes over that on own ones, as a "
    "bias on own classes varies (higher is better)"
)


def percent(value: float | None) -> str:
    """Write a share as a percentage with one decimal; a dash where there is none.

    Args:
        value: The share, or None.

    Returns:
        Text.
    """
    return "-" if value is None or value != value else f"{100 * value:.1f}"


def headline(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of a result as text, in the order of the tables.

    Args:
        summary: The summary of an evaluation.

    Returns:
        Texts by column.
    """
    columns = {
        "own classes": percent(summary.get("accuracy_own")),
        "all classes": percent(summary.get("accuracy_all")),
        "corrupted": percent(summary.get("accuracy_corrupted")),
    }
    if summary.get("frontier"):
        columns["own-other area"] = percent(summary["frontier"].get("ausuc"))
    for name, values in summary.get("ood", {}).items():
        columns[f"fpr95 {name}"] = percent(values.get("fpr95"))
        columns[f"auroc {name}"] = percent(values.get("auroc"))
    columns["cross-client alarm"] = percent(summary.get("cross_alarm"))
    return columns


def brief(summary: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of a result for one short line, the most important first.

    Args:
        summary: an evaluation's summary; fpr95 and auroc are means over its OOD sets.

    Returns:
        Short name -> percentage; what was not measured is left out.
    """
    numbers: dict[str, float | None] = {
        "own": summary.get("accuracy_own"),
        "all": summary.get("accuracy_all"),
    }
    for metric in ("auroc", "fpr95"):
        values = [metrics.get(metric) for metrics in summary.get("ood", {}).values()]
        known = [value for value in values if value is not None]
        numbers[metric] = math.fsum(known) / len(known) if known else None
    numbers["corrupted"] = summary.get("accuracy_corrupted")
    numbers["alarm"] = summary.get("cross_alarm")
    shown = {name: percent(value) for name, value in numbers.items()}
    return {name: value for name, value in shown.items() if value != "-"}


def results_table(rows: Sequence[tuple[str, Mapping[str, Any]]], title: str = "") -> Sheet:
    """Draw one line per metric and one column per run, in percent.

    Metrics outnumber the runs that are compared: this way up the table fits 80 columns.

    Args:
        rows: Label and evaluation summary of each run.
        title: The table's title.

    Returns:
        The table.
    """
    headlines = [headline(summary) for _, summary in rows]
    names = dict.fromkeys(name for numbers in headlines for name in numbers)
    return Sheet(
        [Column(""), *(Column(label, right=True) for label, _ in rows)],
        [[name, *(numbers.get(name, "-") for numbers in headlines)] for name in names],
        title,
    )


def dataset_of(name: str) -> str:
    """Return the OOD set of a column such as `fpr95 dtd`.

    Args:
        name: The column's name.

    Returns:
        The set; empty for other columns.
    """
    metric, _, dataset = name.partition(" ")
    return dataset if metric in DETECTION else ""


def clients_table(clients: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Sheet:
    """Draw one row per client of an evaluation.

    Args:
        clients: Rows of the evaluation.
        names: Names of the clients.

    Returns:
        The table.
    """
    rows = []
    for row in clients:
        corrupted = [entry["accuracy"] for entry in row.get("corrupted", {}).values()]
        mean = sum(corrupted) / len(corrupted) if corrupted else None
        numbers = headline({**row, "accuracy_corrupted": mean})
        alarm = {"alarm": numbers.pop("cross-client alarm")}
        ood = {name: value for name, value in numbers.items() if dataset_of(name)}
        numbers = {**{name: numbers[name] for name in numbers if name not in ood}, **alarm, **ood}
        number = int(row["client"])
        shown = names[number] if number < len(names) else number
        first = (shown, row["num_classes"], row["num_test"])
        rows.append((list(map(str, first)), numbers))
    columns = dict.fromkeys(name for _, numbers in rows for name in numbers)
    return Sheet(
        [
            Column(name, right=True, group=dataset_of(name))
            for name in ("client", "classes", "test images", *columns)
        ],
        [[*first, *(numbers.get(name, "-") for name in columns)] for first, numbers in rows],
    )
