"""The numbers that a report's script draws: learning curves, frontiers, histograms, ROC curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from focoop.report.detection import GRID, Detection
from focoop.report.records import RunRecord

Rows = Mapping[str, Sequence[RunRecord]]
Chart = dict[str, Any]
NOISE = 1e-12  # what a server reports below this is a rounding error of zero
MANY = 20  # clients that are drawn one by one, at most
# What a server's report calls a number -> how the chart is titled.
SERVER = {
    "spread": "spread of the global class prompts",
    "row_entropy": "entropy of the plan's rows (1: uniform)",
    "distinct_words": "distinct OOD words",
    "seemly_overlap": "share of seemly words kept since the last round",
    "transport_gap": "gap of the transport",
    "transport_steps": "steps of the transport",
}


def learning_curves(rows: Rows) -> list[Chart]:
    """Return a chart for every metric that is followed over rounds: a line per method.

    Args:
        rows: Runs by method.

    Returns:
        Charts; means over seeds, with the lowest and the highest seed as a band.
    """
    wanted = {
        "own classes, %": lambda line: line.get("accuracy_own"),
        "all classes, %": lambda line: line.get("accuracy_all"),
        "mean AUROC of the OOD sets, %": _mean_auroc,
        "worst client, own classes, %": _worst,
    }
    charts = []
    for title, read in wanted.items():
        lines = [_over_seeds(label, records, read) for label, records in rows.items()]
        drawn = [line for line in lines if line["x"]]
        if any(len(line["x"]) > 1 for line in drawn):
            charts.append({"title": title, "x": "round", "methods": True, "lines": drawn})
    return charts


def _mean_auroc(line: Mapping[str, Any]) -> float | None:
    values = [value["auroc"] for value in line.get("ood", {}).values() if "auroc" in value]
    return float(np.mean(values)) if values else None


def _worst(line: Mapping[str, Any]) -> float | None:
    values = [row["accuracy_own"] for row in line.get("clients", [])]
    return min(values) if values else None


def _over_seeds(label: str, records: Sequence[RunRecord], read: Any) -> Chart:
    seeds = [{line["round"]: read(line) for line in record.metrics} for record in records]
    known = [{at: 100 * value for at, value in seed.items() if value is not None} for seed in seeds]
    rounds = sorted(set.intersection(*map(set, known))) if known else []
    stack = np.array([[seed[at] for at in rounds] for seed in known]).reshape(len(known), -1)
    line: Chart = {"name": label, "x": rounds, "y": short_numbers(stack.mean(axis=0))}
    if len(known) > 1 and rounds:
        line |= {"low": short_numbers(stack.min(axis=0)), "high": short_numbers(stack.max(axis=0))}
    return line


def client_curves(rows: Rows) -> list[Chart]:
    """Return a chart per method: own-class accuracy of every client of the first seed.

    Args:
        rows: Runs by method; those that do not train on after the first round have no chart.

    Returns:
        Charts: the clients in grey (of many the quartiles), their mean and the worst one.
    """
    charts = []
    for label, records in rows.items():
        metrics = [line for line in records[0].metrics if line.get("clients")]
        rounds = [line["round"] for line in metrics]
        numbers = [row["client"] for row in metrics[-1]["clients"]] if metrics else []
        values = 100 * np.array(
            [[_own(line).get(client, np.nan) for client in numbers] for line in metrics]
        ).reshape(len(rounds), -1)
        if len(rounds) < 2 or (len(rounds) > 2 and (values[1:] == values[1]).all()):
            continue
        names = records[0].folder.client_names if records[0].folder.names else ()
        worst = int(np.nanargmin(values[-1]))
        shown = str(names[numbers[worst]] if names else numbers[worst])
        if len(numbers) <= MANY:
            others = {f"client {client}": values[:, i] for i, client in enumerate(numbers)}
        else:
            quartiles = {"lower quartile": 25, "median": 50, "upper quartile": 75}
            others = {n: np.nanpercentile(values, q, axis=1) for n, q in quartiles.items()}
        lines = [
            {"name": name, "x": rounds, "y": short_numbers(column), "soft": True}
            for name, column in others.items()
        ]
        lines.append({"name": "mean", "x": rounds, "y": short_numbers(np.nanmean(values, axis=1))})
        lines.append(
            {"name": f"worst: client {shown}", "x": rounds, "y": short_numbers(values[:, worst])}
        )
        charts.append(
            {"title": f"{label}: every client's own classes, %", "x": "round", "lines": lines}
        )
    return charts


def _own(line: Mapping[str, Any]) -> dict[int, float]:
    return {row["client"]: row["accuracy_own"] for row in line["clients"]}


def frontier(rows: Rows) -> list[Chart]:
    """Return the frontier between own and other classes: a line per method.

    Args:
        rows: Runs by method.

    Returns:
        One chart, or none where clients hold all classes.
    """
    lines = []
    for label, records in rows.items():
        curves = [(record.last.get("frontier") or {}).get("curve") for record in records]
        known = [{float(x): 100 * y for x, y in curve.items()} for curve in curves if curve]
        if known:
            places = sorted(set.intersection(*map(set, known)))
            heights = np.mean([[curve[x] for x in places] for curve in known], axis=0)
            reached = [(x, y) for x, y in zip(places, heights, strict=True) if y > 0]
            lines.append(
                {
                    "name": label,
                    "x": [x for x, _ in reached],
                    "y": short_numbers([y for _, y in reached]),
                }
            )
    if not lines:
        return []
    title, axis = "own classes against other clients' classes, %", "other clients' classes, %"
    return [{"title": title, "x": axis, "methods": True, "lines": lines}]


def server_curves(rows: Rows) -> list[Chart]:
    """Return what the server reported of every round, such as the spread of class prompts.

    Args:
        rows: Runs by method; the first seed is drawn.

    Returns:
        A chart per number that the page knows and that changes.
    """
    charts = []
    for key, title in SERVER.items():
        lines = [
            {"name": label, "x": [x for x, _ in told], "y": short_numbers([y for _, y in told], 6)}
            for label, records in rows.items()
            if len(told := _reported(records[0], key)) > 1 and not _is_steady(told)
        ]
        if lines:
            charts.append({"title": title, "x": "round", "methods": True, "lines": lines})
    return charts


def steady_numbers(rows: Rows) -> list[tuple[str, str, float]]:
    """Return what the server reported as the same in every round.

    Args:
        rows: Runs by method; the first seed counts.

    Returns:
        What it is, the method, the number.
    """
    return [
        (title, label, told[0][1])
        for key, title in SERVER.items()
        for label, records in rows.items()
        if (told := _reported(records[0], key)) and _is_steady(told)
    ]


def _reported(record: RunRecord, key: str) -> list[tuple[int, float]]:
    """(round, number) of what a run's server reported."""
    told = [(e["round"], e["server"][key]) for e in record.rounds if key in (e.get("server") or {})]
    return [(at, 0.0 if abs(value) < NOISE else value) for at, value in told]


def _is_steady(told: Sequence[tuple[int, float]]) -> bool:
    return len({value for _, value in told}) == 1


def histograms(found: Mapping[str, Detection]) -> list[Chart]:
    """Return the score histograms of every method.

    Args:
        found: Scores by method.

    Returns:
        A chart per method.
    """
    return [_histogram(label, one) for label, one in found.items()]


def detection_curves(found: Mapping[str, Detection]) -> list[Chart]:
    """Return ROC and precision-recall curves of every OOD set.

    Args:
        found: Scores by method.

    Returns:
        Two charts per OOD set with a line per method.
    """
    charts = []
    sets = dict.fromkeys(name for one in found.values() for name in one.roc)
    grid = short_numbers(100 * GRID)
    for name in sets:
        for title, axis, kind in (
            ("ROC", "ID images flagged, %", "roc"),
            ("precision by recall", "OOD images found, %", "precision"),
        ):
            lines = [
                {"name": label, "x": grid, "y": short_numbers(100 * curves[name])}
                for label, one in found.items()
                if name in (curves := getattr(one, kind))
            ]
            charts.append(
                {"title": f"{name}: {title}, %", "x": axis, "methods": True, "lines": lines}
            )
    return charts


def _histogram(label: str, found: Detection) -> Chart:
    """Steps over the bins; the outer bins, which hold far scores, are drawn as wide as the next."""
    edges = found.edges.copy()
    edges[0], edges[-1] = 2 * edges[1] - edges[2], 2 * edges[-2] - edges[-3]
    lines = [
        {
            "name": "own test images" if name == "own" else name,
            "x": short_numbers(edges, 5),
            "y": short_numbers(100 * np.append(heights, heights[-1])),
            "own": name == "own",
        }
        for name, heights in found.histograms.items()
    ]
    return {
        "title": f"{label}: scores of client {found.client}; right of the line: unknown",
        "x": "score (higher: more OOD)",
        "kind": "steps",
        "mark": float(found.threshold),
        "lines": lines,
    }


def short_numbers(values: Any, digits: int = 4) -> list[float | None]:
    """Return numbers with few digits: a report of hundred runs must stay small.

    Args:
        values: Numbers, some of them perhaps NaN.
        digits: How many count.

    Returns:
        The numbers; None for NaN.
    """
    return [None if np.isnan(value) else float(f"{value:.{digits}g}") for value in values]
