"""The numbers that a report's script draws: learning curves, frontiers, histograms, ROC curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from focoop.report.detection import GRID, Detection
from focoop.report.records import RunRecord

Rows = Mapping[str, Sequence[RunRecord]]
Chart = dict[str, Any]
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
    line: Chart = {"name": label, "x": rounds, "y": _short(stack.mean(axis=0))}
    if len(known) > 1 and rounds:
        line |= {"low": _short(stack.min(axis=0)), "high": _short(stack.max(axis=0))}
    return line


def client_curves(rows: Rows) -> list[Chart]:
    """Return a chart per method: own-class accuracy of every client of the first seed.

    Args:
        rows: Runs by method.

    Returns:
        Charts; of many clients the quartiles, the best and the worst.
    """
    charts = []
    for label, records in rows.items():
        metrics = [line for line in records[0].metrics if line.get("clients")]
        rounds = [line["round"] for line in metrics]
        if len(rounds) < 2:
            continue
        names = records[0].folder.client_names if records[0].folder.names else ()
        numbers = [row["client"] for row in metrics[-1]["clients"]]
        values = np.array(
            [
                [
                    {r["client"]: r["accuracy_own"] for r in line["clients"]}.get(k, np.nan)
                    for k in numbers
                ]
                for line in metrics
            ]
        )
        if len(numbers) <= MANY:
            lines = [
                {
                    "name": f"client {names[k] if names else k}",
                    "x": rounds,
                    "y": _short(100 * column),
                }
                for k, column in zip(numbers, values.T, strict=True)
            ]
        else:
            quantiles = {
                "worst": 0,
                "lower quartile": 25,
                "median": 50,
                "upper quartile": 75,
                "best": 100,
            }
            lines = [
                {"name": name, "x": rounds, "y": _short(100 * np.nanpercentile(values, q, axis=1))}
                for name, q in quantiles.items()
            ]
        charts.append(
            {"title": f"{label}: own classes of every client, %", "x": "round", "lines": lines}
        )
    return charts


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
                {"name": label, "x": [x for x, _ in reached], "y": _short([y for _, y in reached])}
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
        A chart per number that the page knows.
    """
    charts = []
    for key, title in SERVER.items():
        lines = []
        for label, records in rows.items():
            told = [
                (e["round"], e["server"][key])
                for e in records[0].rounds
                if key in (e.get("server") or {})
            ]
            if len(told) > 1:
                lines.append(
                    {"name": label, "x": [x for x, _ in told], "y": _short([y for _, y in told], 6)}
                )
        if lines:
            charts.append({"title": title, "x": "round", "methods": True, "lines": lines})
    return charts


def detection_charts(label: str, found: Detection) -> list[Chart]:
    """Return a method's score histograms, ROC and precision-recall curves.

    Args:
        label: The method.
        found: Its scores.

    Returns:
        Three charts.
    """
    middles = (found.edges[1:] + found.edges[:-1]) / 2
    middles[0], middles[-1] = found.edges[1], found.edges[-2]
    grid = _short(100 * GRID)
    charts: list[Chart] = [
        {
            "title": f"{label}: scores of client {found.client}; right of the line: unknown",
            "x": "score (higher: more OOD)",
            "kind": "steps",
            "mark": float(found.threshold),
            "lines": [
                {
                    "name": "own test images" if n == "own" else n,
                    "x": _short(middles, 5),
                    "y": _short(100 * h),
                }
                for n, h in found.histograms.items()
            ],
        }
    ]
    if found.roc:
        pairs = (
            ("ROC", "ID images flagged, %", found.roc),
            ("precision by recall", "OOD images found, %", found.precision),
        )
        charts += [
            {
                "title": f"{label}: {title}, mean of clients, %",
                "x": axis,
                "lines": [{"name": n, "x": grid, "y": _short(100 * y)} for n, y in curves.items()],
            }
            for title, axis, curves in pairs
        ]
    return charts


def _short(values: Any, digits: int = 4) -> list[float | None]:
    """Numbers with few digits: a report of hundred runs must stay small."""
    return [None if np.isnan(value) else float(f"{value:.{digits}g}") for value in values]
