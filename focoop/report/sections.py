"""The parts of a report's page as HTML; what is drawn by its script is in `drawings.py`."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from focoop.experiments import tables
from focoop.functional import paired
from focoop.report.detection import Detection
from focoop.report.drawings import steady_numbers
from focoop.report.pictures import bar, matrix_image, strip
from focoop.report.records import RunRecord

Rows = Mapping[str, Sequence[RunRecord]]
Values = Mapping[str, Mapping[int, Mapping[str, float]]]  # by method, seed and column
Gaps = Mapping[tuple[str, str], paired.Difference]  # by column and method
LIKE_BEST = 0.05  # p-value from which on a method is not told apart from the best
MEGABYTE = 1e6
ROUND = ("MB sent by clients a round", "MB sent to clients a round", "seconds a round", "rounds")
MEAN = " mean of OOD sets"  # the end of a column over several sets
DAMAGED = "could not be asked again"


def results_tables(rows: Rows, anchor: str) -> str:
    """Write the tables of one setting: methods by columns, over seeds.

    Args:
        rows: Runs by method.
        anchor: What links to the methods' runs begin with.

    Returns:
        A table of accuracies, with means over the OOD sets where there are several, and tables of
        the OOD sets. The best of a column is bold, the second best underlined, and what a paired
        test over seeds does not tell apart from the best has a ring.
    """
    values = {label: _by_seed(records) for label, records in rows.items()}
    names = list(
        dict.fromkeys(n for seeds in values.values() for row in seeds.values() for n in row)
    )
    ood = [name for name in names if " " in name and not name.endswith(MEAN)]
    general = [name for name in names if name not in ood]
    wide = len(tables.DETECTION) * tables.SETS_PER_TABLE
    parts = [ood[start : start + wide] for start in range(0, len(ood), wide)]
    shown = [of for of in (general, *parts) if of]
    ranks = {name: _ranked(name, values) for name in names}
    gaps = paired.corrected(_gaps(values, ranks))
    return "".join(
        _results(values, {name: ranks[name] for name in of}, gaps, anchor) for of in shown
    )


def _gaps(values: Values, ranks: Mapping[str, Sequence[str]]) -> Gaps:
    """What a paired test says of each column and method against the column's best."""
    gaps = {}
    for name, (best, *others) in ranks.items():
        for label in others:
            both = [
                s
                for s in values[label]
                if name in values[label][s] and name in values[best].get(s, {})
            ]
            if both:
                sides = ([values[of][seed][name] for seed in both] for of in (label, best))
                gaps[name, label] = paired.difference(*sides)
    return gaps


def _results(values: Values, ranks: Mapping[str, Sequence[str]], gaps: Gaps, anchor: str) -> str:
    names, body = list(ranks), {}
    for place, (label, seeds) in enumerate(values.items()):
        cells = [
            _cell(n, label, values, ranks[n], gaps.get((n, label)), f"#{anchor}-{place}")
            for n in names
        ]
        body[label] = [*cells, f"<td>{len(seeds)}</td>"]
    return _table("results", [*map(_column_title, names), "seeds"], body)


def _table(kind: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table of methods that scrolls on its own where the page is narrow."""
    head = "".join(f'<th scope="col">{column}</th>' for column in ("method", *columns))
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(cells)}</tr>'
        for label, cells in rows.items()
    )
    return (
        f'<div class="wide" tabindex="0"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _by_seed(records: Sequence[RunRecord]) -> dict[int, dict[str, float]]:
    """Columns of every seed; with several OOD sets also their means, before the sets."""
    rows = {}
    for record in records:
        found = tables.columns(record.last)
        for metric in ("auroc", "fpr95"):
            values = [value for name, value in found.items() if name.startswith(f"{metric} ")]
            if len(values) > 1:
                found[f"{metric}{MEAN}"] = float(np.mean(values))
        rows[record.seed] = found
    return rows


def _column_title(name: str) -> str:
    arrow = "↓" if tables.lower_is_better(name) else "↑"
    metric, _, images = name.partition(" ")
    return f"{escape(metric)} {arrow}" + (f"<small>{escape(images)}</small>" if images else "")


def _ranked(name: str, values: Values) -> list[str]:
    """Methods that have a column, best mean first."""
    means = {
        label: float(np.mean([row[name] for row in seeds.values() if name in row]))
        for label, seeds in values.items()
        if any(name in row for row in seeds.values())
    }
    return sorted(means, key=lambda label: means[label], reverse=not tables.lower_is_better(name))


def _cell(
    name: str,
    label: str,
    values: Values,
    ranked: Sequence[str],
    gap: paired.Difference | None,
    link: str,
) -> str:
    """One number of the table, with the numbers of its seeds and what a paired test says."""
    seeds = {seed: row[name] for seed, row in values[label].items() if name in row}
    if not seeds:
        return "<td>–</td>"
    stat = tables.stat(list(seeds.values()))
    told, ring = [f"seed {seed}: {value:.2f}" for seed, value in seeds.items()], ""
    if gap is not None:
        told.append(_told(gap, ranked[0]))
        if gap.p is not None and gap.p >= LIKE_BEST:
            ring = '<abbr title="not told apart from the best by a paired test">°</abbr>'
    spread = "" if stat.spread is None else f"<small>±{stat.spread:.1f}</small>"
    kind = {0: ' class="best"', 1: ' class="second"'}.get(ranked.index(label), "")
    if len(ranked) < 2:
        kind = ""
    title = escape("; ".join(told))
    return f'<td{kind}><a href="{link}" title="{title}">{stat.mean:.1f}</a>{ring}{spread}</td>'


def _told(gap: paired.Difference, best: str) -> str:
    text = f"{gap.mean:+.2f} against {best}"
    return text if gap.p is None else f"{text} (± {gap.half_width:.2f}, p = {gap.p:.3f})"


def bars_table(rows: Rows, key: str, anchor: str) -> str:
    """Write accuracies by corruption, or AUROC and FPR95 by OOD set, as bars.

    Args:
        rows: Runs by method.
        key: `corrupted_by_type` or `ood`.
        anchor: What links to the methods' runs begin with.

    Returns:
        A table, or nothing where there are no such images.
    """
    columns: dict[str, dict[str, float]] = {}
    for label, records in rows.items():
        for record in records:
            for name, value in record.last.get(key, {}).items():
                shown = (
                    {name: value}
                    if key != "ood"
                    else {f"AUROC {name}": value.get("auroc"), f"FPR95 {name}": value.get("fpr95")}
                )
                for column, number in shown.items():
                    if number is not None:
                        sums = columns.setdefault(column, {})
                        sums[label] = sums.get(label, 0.0) + 100 * number / len(records)
    if not columns:
        return ""
    body = {}
    for place, label in enumerate(rows):
        cells = [column.get(label) for column in columns.values()]
        body[label] = [
            _bar_cell(None if value is None else f"{value:.1f}", bar(value or 0.0), anchor, place)
            for value in cells
        ]
    return _table("bars", [escape(name) for name in columns], body)


def _bar_cell(shown: str | None, drawn: str, anchor: str, place: int) -> str:
    """A number before its bar, with a link to the runs it is of."""
    if shown is None:
        return "<td>–</td>"
    return f'<td>{drawn}<a href="#{anchor}-{place}">{shown}</a></td>'


def fairness(rows: Rows) -> str:
    """Draw the own-class accuracy of every client, method by method.

    Args:
        rows: Runs by method; the first seed is drawn.

    Returns:
        A picture.
    """
    groups = {
        label: [100 * row["accuracy_own"] for row in records[0].last.get("clients", [])]
        for label, records in rows.items()
    }
    return strip(groups, "accuracy on own classes of every client, by method; the worst has a ring")


def traffic(rows: Rows, anchor: str) -> str:
    """Write bytes and seconds of a round, method by method.

    Args:
        rows: Runs by method.
        anchor: What links to the methods' runs begin with.

    Returns:
        A table of means over rounds and seeds.
    """
    found: list[tuple[str, list[float | None]]] = []
    for label, records in rows.items():
        rounds = [entry for record in records for entry in record.rounds]
        found.append(
            (
                label,
                [
                    _mean(rounds, "bytes_up"),
                    _mean(rounds, "bytes_down"),
                    _mean(rounds, "seconds"),
                    _most(records),
                ],
            )
        )
    tops = [max((v[i] or 0.0 for _, v in found), default=0.0) for i in range(4)]
    body = {}
    for row, (label, values) in enumerate(found):
        cells = []
        for place, value in enumerate(values):
            number = 0.0 if value is None else value / MEGABYTE if place < 2 else value
            drawn = "" if place == 3 or value is None else bar(value, tops[place])
            shown = None if value is None else f"{number:.3g}"
            cells.append(_bar_cell(shown, drawn, anchor, row))
        body[label] = cells
    return _table("bars", ROUND, body)


def _mean(rounds: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [float(entry[key]) for entry in rounds if entry.get(key) is not None]
    return float(np.mean(values)) if values else None


def _most(records: Sequence[RunRecord]) -> float:
    return float(max((entry["round"] for r in records for entry in r.rounds), default=0))


def partition(record: RunRecord) -> str:
    """Draw who holds how many training images of which class.

    Args:
        record: A run of the setting.

    Returns:
        A picture with a caption; a note where the run folder does not say.
    """
    names = record.folder.names
    if names is None or not names.counted:
        return '<p class="note">The run folder does not say who holds what.</p>'
    place = {name: i for i, name in enumerate(names.classes)}
    counts = np.zeros((len(names.clients), len(names.classes)))
    for row, client in enumerate(names.clients):
        for name, count in (client.train or client.test).items():
            if name in place:
                counts[row, place[name]] = count
    ends = f"from {escape(names.clients[0].name)} to {escape(names.clients[-1].name)}"
    if counts.min() == counts.max():
        return (
            f'<p class="note">Each of the {counts.shape[0]} clients ({ends}) has '
            f"{int(counts.max())} images of each of the {counts.shape[1]} classes.</p>"
        )
    alt = f"training images of {counts.shape[1]} classes at {counts.shape[0]} clients"
    caption = (
        f"{counts.shape[0]} clients (rows, {ends}) by {counts.shape[1]} classes (columns); "
        f"dark: up to {int(counts.max())} images, light grey: none."
    )
    return f"<figure>{matrix_image(counts, alt)}<figcaption>{caption}</figcaption></figure>"


def told(rows: Mapping[str, Sequence[RunRecord]]) -> str:
    """List what runs told when they began, such as what they leave out.

    Args:
        rows: Runs by method.

    Returns:
        A list, a line per run and sentence; nothing where there is none.
    """
    lines = [
        f"<li>{escape(label)}, seed {record.seed}: {escape(note)}</li>"
        for label, records in rows.items()
        for record in records
        for note in record.folder.notes
    ]
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def transport_plan(record: RunRecord) -> str:
    """Draw the last round's transport plan of FOCoOp's server, words by classes.

    Args:
        record: A run.

    Returns:
        A picture with the words judged seemly; nothing where the run keeps no plan.
    """
    committed = record.folder.resume_point()
    if committed is None or "plan_by_word" not in committed.memory:
        return ""
    plan = committed.memory["plan_by_word"].double().numpy()
    words = record.folder.negative_words
    seemly = np.zeros(plan.shape[1], dtype=bool)
    if "seemly" in committed.memory:
        seemly |= committed.memory["seemly"].numpy().astype(bool)
    order = np.lexsort((-plan.sum(axis=0), ~seemly))  # seemly words first, by their mass
    count = int(seemly.sum())
    listed = [words[place] for place in order[:count] if place < len(words)]
    named = f"{escape(', '.join(listed[:40]))}{' …' if len(listed) > 40 else ''}"
    told = f"Left of the line: the {count} words judged seemly (like a class): {named}"
    told = told if count else "No word was judged seemly (like a class)"
    alt = "mass that each class sends to each OOD word"
    caption = (
        f"{plan.shape[0]} classes (rows) by {plan.shape[1]} OOD words (columns), copies of a "
        "word at all clients together, the words with most mass first; dark: much mass. "
        f"{told}."
    )
    picture = matrix_image(plan[:, order], alt, count)
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def steady(rows: Rows) -> str:
    """Say what the server reported as the same in every round, which needs no chart.

    Args:
        rows: Runs by method; the first seed counts.

    Returns:
        A note, or nothing.
    """
    labels: dict[str, list[str]] = {}
    for title, label, value in steady_numbers(rows):
        labels.setdefault(f"{title}: {value:g}", []).append(escape(label))
    told = [
        f"{number} ({', '.join(of)})" if len(rows) > 1 else number for number, of in labels.items()
    ]
    return f'<p class="note">The same in every round: {"; ".join(told)}.</p>' if told else ""


def nearest(details: Mapping[str, Detection | str]) -> str:
    """Write the names nearest to learned prompts, method by method.

    Args:
        details: Detections by method.

    Returns:
        A closed box per method.
    """
    boxes = []
    for label, found in details.items():
        if isinstance(found, str) or not found.near:
            continue
        items = "".join(
            f'<tr><th scope="row">{escape(prompt)}</th><td>'
            + ", ".join(f"{escape(name)} {value:.2f}" for name, value in names)
            + "</td></tr>"
            for prompt, names in found.near.items()
        )
        boxes.append(
            f"<details><summary>{escape(label)}</summary>"
            f'<table class="words"><tbody>{items}</tbody></table></details>'
        )
    return "".join(boxes)
