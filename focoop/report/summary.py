"""The first screen of a report: what was run, who is best in what, by how much, and how surely."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType

import numpy as np

from focoop.experiments import tables
from focoop.functional import paired
from focoop.report.records import Collection, RunRecord

Rows = Mapping[str, Sequence[RunRecord]]
ALIKE = 0.05  # p-value from which on two methods are not told apart
LEVEL = 0.05  # percent; a smaller lead would be shown as 0.0
SHOWN = 4  # methods that are named as not told apart
# Column of a table, or its beginning where OOD sets are averaged -> how it is called.
HEADLINES = {
    "own": "own classes",
    "all": "all classes",
    "auroc": "AUROC",
    "fpr95": "FPR95",
}


@dataclass(frozen=True)
class Winner:
    """The best method of a setting in one number.

    Attributes:
        metric: The number, a key of `HEADLINES`.
        label: The method.
        mean: Its mean over seeds, percent.
        second: The next method; empty: there is none.
        lead: How far the next one is behind, a positive number, as a paired test has it, with its p
            corrected for the number of tests of the setting; None:
            they share no seed, or there is no next one.
        alike: Methods that the test does not tell apart from the best.
    """

    metric: str
    label: str
    mean: float
    second: str = ""
    lead: paired.Difference | None = None
    alike: tuple[str, ...] = ()

    @property
    def tested(self) -> bool:
        """Return whether seeds vary, so that a test says something."""
        return self.lead is not None and bool(self.lead.half_width)

    @property
    def clear(self) -> bool:
        """Return whether a paired test tells the best apart from all others."""
        return self.tested and not self.alike


def headline(record: RunRecord) -> dict[str, float]:
    """Return the few numbers of a run that the first screen compares.

    Args:
        record: The run.

    Returns:
        Percent by key of `HEADLINES`; those of OOD sets are means over the sets.
    """
    found = tables.columns(record.last)
    values: dict[str, list[float]] = {}
    for name, value in found.items():
        values.setdefault(name.split(" ")[0], []).append(value)
    return {name: float(np.mean(values[name])) for name in HEADLINES if name in values}


def winners(rows: Rows) -> list[Winner]:
    """Return who is best in each headline number of a setting.

    Args:
        rows: Runs by method; only finished ones take part.

    Returns:
        One per number that two methods or more have.
    """
    seeds = {
        label: {record.seed: headline(record) for record in records}
        for label, records in rows.items()
        if all(record.finished for record in records)
    }
    values = {
        name: {
            label: {seed: row[name] for seed, row in found.items() if name in row}
            for label, found in seeds.items()
        }
        for name in HEADLINES
    }
    ranked = {name: _ranked(name, of) for name, of in values.items()}
    gaps = {
        (name, label): gap
        for name, labels in ranked.items()
        for label in labels[1:]
        if (gap := _lead(values[name][labels[0]], values[name][label], name)) is not None
    }
    gaps = paired.corrected(gaps)
    found = []
    for name, labels in ranked.items():
        if len(labels) > 1:
            best, second = labels[:2]
            tests = [(label, gaps[name, label]) for label in labels[1:] if (name, label) in gaps]
            alike = [label for label, gap in tests if gap.p is not None and gap.p >= ALIKE]
            mean = float(np.mean(list(values[name][best].values())))
            lead = gaps.get((name, second))
            found.append(Winner(name, best, mean, second, lead, tuple(alike)))
    return found


def _ranked(name: str, values: Mapping[str, Mapping[int, float]]) -> list[str]:
    means = {label: float(np.mean(list(of.values()))) for label, of in values.items() if of}
    return sorted(means, key=means.__getitem__, reverse=not tables.lower_is_better(name))


def _lead(
    best: Mapping[int, float], other: Mapping[int, float], name: str
) -> paired.Difference | None:
    shared = [seed for seed in best if seed in other]
    if not shared:
        return None
    sides = [best[seed] for seed in shared], [other[seed] for seed in shared]
    return paired.difference(*(reversed(sides) if tables.lower_is_better(name) else sides))


def summary(
    collection: Collection,
    settings: Mapping[str, Rows],
    sweeps: Mapping[str, tuple[str, Mapping[float, str]]] = MappingProxyType({}),
) -> str:
    """Write the first screen.

    Args:
        collection: All runs.
        settings: Runs by setting and method, in the order of the page.
        sweeps: Title of every sweep and its settings by value, by the anchor of its section.

    Returns:
        A sentence on what was run, one on who wins, and a card for each sweep and for each setting
        that is in none; of a sweep's settings those with something to compare have one, folded.
    """
    found = {name: winners(rows) for name, rows in settings.items()}
    cards = {
        name: _card(f"s{number}", name, rows, found[name])
        for number, (name, rows) in enumerate(settings.items())
    }
    swept = {name for _, points in sweeps.values() for name in points.values()}
    first = []
    for anchor, (title, points) in sweeps.items():
        note, lines = _won([found[name] for name in points.values()])
        if not lines:
            note, lines = _best_values({value: settings[name] for value, name in points.items()})
        first.append(_sweep_card(anchor, title, note, lines))
    first += [card for name, card in cards.items() if name not in swept]
    folded = [card for name, card in cards.items() if name in swept and found[name]]
    told = f"{_run(collection, settings)}{_verdict(found)}<div class='cards'>{''.join(first)}</div>"
    if not folded:
        return told
    head = f"{_counted(len(folded), 'setting')} of {_counted(len(sweeps), 'sweep')}, one by one"
    inner = "".join(folded)
    return f"{told}<details><summary>{head}</summary><div class='cards'>{inner}</div></details>"


def _sweep_card(anchor: str, title: str, note: str, lines: Sequence[str]) -> str:
    """A sweep in a few words."""
    items = "".join(f"<li>{line}</li>" for line in lines)
    return (
        f'<div class="card"><h2><a href="#{anchor}">{escape(title)}</a></h2>'
        f"<p class='note'>{note}</p><ul>{items}</ul></div>"
    )


def _metric(key: str) -> str:
    arrow = "↓" if tables.lower_is_better(key) else "↑"
    return f"<span class='metric'>{HEADLINES[key]} {arrow}</span>"


def _won(found: Sequence[Sequence[Winner]]) -> tuple[str, list[str]]:
    """Who is best at how many points of a sweep; no lines where nothing can be compared."""
    lines = []
    for metric in HEADLINES:
        won = [one for of_point in found for one in of_point if one.metric == metric]
        counts = Counter(one.label for one in won).most_common(SHOWN)
        if counts:
            told = ", ".join(f"<b>{escape(label)}</b> {count}" for label, count in counts)
            lines.append(f"{_metric(metric)} {told}")
    return f"Best at how many of {_counted(len(found), 'point')}:", lines


def _best_values(points: Mapping[float, Rows]) -> tuple[str, list[str]]:
    """At which value a method is best that has the sweep for itself."""
    label, *others = dict.fromkeys(label for rows in points.values() for label in rows)
    count = _counted(len(points), "point")
    if others:
        return f"{count}: nothing to compare.", []
    values = {
        value: [headline(run) for records in rows.values() for run in records if run.finished]
        for value, rows in points.items()
    }
    lines = []
    for metric in HEADLINES:
        means = {
            value: float(np.mean([run[metric] for run in runs]))
            for value, runs in values.items()
            if runs and all(metric in run for run in runs)
        }
        if means:
            lower = tables.lower_is_better(metric)
            ranked = sorted(means, key=means.__getitem__, reverse=not lower)
            best, worst = means[ranked[0]], means[ranked[-1]]
            told = f"<b>{best:.1f}</b> at {ranked[0]:g}, {worst:.1f} at {ranked[-1]:g}"
            is_level = abs(best - worst) < LEVEL
            lines.append(f"{_metric(metric)} {f'<b>{best:.1f}</b> at all' if is_level else told}")
    return f"{escape(label)} at {count}, the best and the worst:", lines


def _run(collection: Collection, settings: Mapping[str, Rows]) -> str:
    """What was run, in one sentence."""
    configs = [record.folder.config for record in collection.records]
    methods = {record.label for record in collection.records}
    seeds = sorted({config.seed for config in configs})
    names = sorted({config.backbone.name for config in configs})
    told = (
        f"{_counted(len(configs), 'run')}: {_counted(len(methods), 'method')} on "
        f"{_counted(len(settings), 'setting')}, seed{'s'[: len(seeds) > 1]} "
        f"{', '.join(map(str, seeds))}; backbone {', '.join(names)}."
    )
    open_ones = sum(not record.finished for record in collection.records)
    if open_ones:
        are = "is" if open_ones == 1 else "are"
        told += f" {open_ones} {are} not finished: shown below, not compared here."
    return f"<p>{escape(told)}</p>"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _verdict(found: Mapping[str, Sequence[Winner]]) -> str:
    """How often which method is the best, and how often a test tells it apart from all others."""
    listed = [one for of in found.values() for one in of]
    if not listed:
        return ""
    counts: dict[str, list[Winner]] = {}
    for one in listed:
        counts.setdefault(one.label, []).append(one)
    ranked = sorted(counts.items(), key=lambda pair: -len(pair[1]))
    told = []
    for label, won in ranked[:SHOWN]:
        clear = sum(one.clear for one in won)
        told.append(f"<b>{escape(label)}</b> {len(won)}{f' ({clear} clearly)' if clear else ''}")
    rest = len(listed) - sum(len(won) for _, won in ranked[:SHOWN])
    more = f", others {rest}" if rest else ""
    means = (
        f"a paired t-test over seeds tells it apart from every other method (p &lt; {ALIKE}, "
        "corrected by Holm's method for the number of tests of its setting)"
    )
    clearly = (
        f"Clearly: {means}."
        if any(one.clear for one in listed)
        else f"No win is clear, that is, in none {means}."
    )
    return (
        f"<p>Best in how many of the {len(listed)} comparisons below: {', '.join(told)}{more}. "
        f"{clearly} ± behind a lead is its 95% interval.</p>"
    )


def _card(anchor: str, name: str, rows: Rows, found: Sequence[Winner]) -> str:
    """A setting in a few words, and its winners."""
    config = next(iter(rows.values()))[0].folder.config
    partition = config.partition
    facts = [
        config.data.id,
        partition.kind + (f" ({partition.alpha})" if partition.kind == "dirichlet" else ""),
        ""
        if partition.kind == "domain" or partition.clients < 1
        else f"{partition.clients} clients",
        _counted(partition.shots, "shot") if partition.shots > 0 else "",
        f"{config.federation.rounds} rounds",
        _counted(len(rows), "method"),
    ]
    places = {label: f"#{anchor}-runs-{place}" for place, label in enumerate(rows)}
    lines = "".join(f"<li>{_line(one, places[one.label])}</li>" for one in found)
    body = f"<ul>{lines}</ul>" if lines else "<p>One method alone: nothing to compare.</p>"
    return (
        f'<div class="card"><h2><a href="#{anchor}">{escape(name)}</a></h2>'
        f"<p class='note'>{escape(', '.join(filter(None, facts)))}</p>{body}</div>"
    )


def _line(one: Winner, link: str) -> str:
    """One winner, linked to its runs: by how much, and what the test says."""
    told = f'{_metric(one.metric)} <b><a href="{link}">{escape(one.label)} {one.mean:.1f}</a></b>, '
    if one.lead is None:
        return f"{told}no seed in common with {escape(one.second)}"
    spread = f" ± {one.lead.half_width:.1f}" if one.lead.half_width else ""
    ahead = f"{one.lead.mean:.1f}{spread} ahead of" if one.lead.mean >= LEVEL else "level with"
    told += f"{ahead} {escape(one.second)}"
    if one.lead.p is None:
        return f"{told} (one seed: no test)"
    if not one.lead.half_width:
        return f"{told} (the same in every seed: no test)"
    if one.clear:
        return f"{told} (p = {one.lead.p:.3f})"
    names = ", ".join(one.alike[:SHOWN]) + (" …" if len(one.alike) > SHOWN else "")
    return f"{told}; <span class='alike'>not told apart: {escape(names)}</span>"
