"""Run a grid of methods, settings and seeds, resume it, and make its tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from focoop.caching import sealed
from focoop.config import differences
from focoop.errors import RunError
from focoop.experiments import tables
from focoop.experiments.answering import read_answers
from focoop.experiments.grid import Cell, describe_seeds, safe
from focoop.experiments.typeset import BOOKTABS
from focoop.experiments.workers import UNDER_WAY, Job, News, run_jobs, short
from focoop.runs import CONFIG, RunFolder, answers_from_outside, plain, write
from focoop.scenario import require_data
from focoop.tracking import Listener, OnRound, RoundEvent, split_hooks


@dataclass
class Outcome:
    """How far a cell is: waiting, running, finished or failed; `summary` of its last evaluation."""

    cell: Cell
    status: str = "waiting"
    round: int = 0
    summary: dict[str, Any] | None = None
    error: str = ""
    exit_code: int = 0


Watch = Callable[[Outcome], None]


def refuse_changed(cells: Sequence[Cell]) -> None:
    """Refuse folders that hold runs of other settings, before anything is run.

    Args:
        cells: The cells of a grid.

    Raises:
        RunError: A folder holds another run.
    """
    for cell in cells:
        if not (cell.folder / CONFIG).exists():
            continue
        folder = RunFolder.open(cell.folder)
        changed = differences(folder.config, cell.config)
        begun = folder.last_round() >= 0 or folder.status not in ("failed", "interrupted")
        if changed and begun:
            shown = "\n  ".join(changed[:8] + ["..."] * (len(changed) > 8))
            raise RunError(
                f"{cell.folder} holds a {folder.status} run of other settings (there -> now):\n"
                f"  {shown}\ngo back to those settings, choose another --out, or remove the folder"
            )


def run(
    cells: Sequence[Cell],
    watch: Watch = lambda outcome: None,
    *,
    jobs: int = 1,
    on_round: OnRound = None,
) -> list[Outcome]:
    """Run what is not finished; failed cells keep their error, and the others go on.

    Args:
        cells: The cells of a grid.
        watch: Is told of every change.
        jobs: Runs at a time.
        on_round: Hooks of every run that is made. Trackers named by text are made where the run is
            made; objects are called in this process.

    Returns:
        What became of each cell.
    """
    track, listeners = split_hooks(on_round)
    refuse_changed(cells)
    outcomes = [outcome_of(cell) for cell in cells]
    for outcome in outcomes:
        if outcome.status == "finished":
            watch(outcome)
    left = [outcome for outcome in outcomes if outcome.status != "finished"]

    def report(news: News) -> None:
        teller.hear(news)
        if news.event is not None and news.event.moment != "round":
            return
        outcome = left[news.job]
        outcome.status = "running" if news.kind == UNDER_WAY else news.kind
        outcome.round = max(outcome.round, news.round)
        if news.summary is not None:
            outcome.summary = news.summary
        outcome.error, outcome.exit_code = news.error, news.exit_code
        watch(outcome)

    require_data(*(outcome.cell.config for outcome in left))
    todo = [
        Job(cell.config, cell.folder, cell.answers, track, bool(listeners), cell.notes)
        for cell in (outcome.cell for outcome in left)
    ]
    with _HookTeller(listeners) as teller:
        run_jobs(todo, report, workers=jobs)
    return outcomes


class _HookTeller:
    """Tells hooks of this process what is reported of runs, and the end of each that began."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self._open: dict[int, RoundEvent] = {}  # by job, what was told last

    def hear(self, news: News) -> None:
        """Tell one piece of news; a run whose process died has failed."""
        if news.event is not None:
            self._tell(news.job, news.event)
        elif news.kind == "failed":
            self._end(news.job, "failed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for job in list(self._open):  # of workers that were stopped, who are not listened to
            self._end(job, "stopped")

    def _end(self, job: int, status: str) -> None:
        if job in self._open:
            self._tell(job, replace(self._open[job], moment="end", status=status, metrics={}))

    def _tell(self, job: int, event: RoundEvent) -> None:
        self._open[job] = event
        if event.moment == "end":
            del self._open[job]
        for listener in self._listeners:
            listener.tell(event)


def outcome_of(cell: Cell) -> Outcome:
    """Read what a cell's folder holds: finished or waiting, with the rounds that are done.

    Args:
        cell: The cell.

    Returns:
        What became of it.
    """
    if not (cell.folder / CONFIG).exists():
        return Outcome(cell)
    folder = RunFolder.open(cell.folder)
    done = max(folder.last_round(), 0)
    if folder.status != "finished" or folder.config != cell.config:
        return Outcome(cell, round=done)
    summary = short(folder.metrics()[-1]) or {}
    if cell.answers:
        found_answers = read_answers(folder, cell.answers)
        if found_answers is None:
            return Outcome(cell, round=done)
        summary["answers"] = found_answers
    return Outcome(cell, "finished", done, summary)


def row(outcomes: Sequence[Outcome]) -> tuple[dict[str, tables.Stat], str]:
    """Make a table's row over the finished seeds.

    Args:
        outcomes: The runs of one method on one setting.

    Returns:
        Columns, and how many runs there are.
    """
    done = [o.summary for o in outcomes if o.status == "finished" and o.summary is not None]
    count = f"{len(done)}" if len(done) == len(outcomes) else f"{len(done)} of {len(outcomes)}"
    return tables.over_seeds(done), count


def grouped(outcomes: Sequence[Outcome]) -> dict[str, dict[str, list[Outcome]]]:
    """Group outcomes by setting and label, in the order given.

    Args:
        outcomes: The outcomes.

    Returns:
        Setting -> label -> outcomes.
    """
    groups: dict[str, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        rows = groups.setdefault(outcome.cell.setting, {})
        rows.setdefault(outcome.cell.label, []).append(outcome)
    return groups


def by_seed(outcomes: Sequence[Outcome]) -> dict[int, dict[str, float]]:
    """Return the numbers of finished runs by their seed.

    Args:
        outcomes: Outcomes of one method on one setting.

    Returns:
        Seed -> number by column, in percent.
    """
    done = [outcome for outcome in outcomes if outcome.status == "finished" and outcome.summary]
    return {one.cell.config.seed: tables.columns(one.summary or {}) for one in done}


def markdown(setting: str, rows: Mapping[str, Sequence[Outcome]]) -> str:
    """Write the tables of one setting, with the errors of what failed.

    Args:
        setting: The setting's name.
        rows: Outcomes by label.

    Returns:
        Markdown.
    """
    seeds = dict.fromkeys(o.cell.config.seed for outcomes in rows.values() for o in outcomes)
    parts = [
        f"## {setting}",
        tables.markdown([(label, *row(outcomes)) for label, outcomes in rows.items()]),
        f"{tables.NOTE} Seeds {', '.join(map(str, seeds))}.",
    ]
    notes = _notes(rows)
    outcomes = [outcome for some in rows.values() for outcome in some]
    notes += [failure(outcome) for outcome in outcomes if outcome.status == "failed"]
    for label, some in rows.items():
        doubts = [tables.doubt_sign(o.summary or {}) for o in some if o.status == "finished"]
        if any(doubts) and answers_from_outside(some[0].cell.config):
            notes.append(f"{label}: {next(filter(None, doubts))}")
    if notes:
        parts.append("\n".join(f"- {line}" for line in notes))
    return "\n\n".join(parts) + "\n"


def _notes(rows: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """What finished runs told when they began, each sentence of a row once with its seeds."""
    notes = []
    for label, outcomes in rows.items():
        seeds: dict[str, list[int]] = {}
        for outcome in outcomes:
            if outcome.status == "finished":
                for note in RunFolder.open(outcome.cell.folder).notes:
                    seeds.setdefault(note, []).append(outcome.cell.config.seed)
        notes += [f"{label}, {describe_seeds(found)}: {note}" for note, found in seeds.items()]
    return notes


def latex(
    setting: str,
    rows: Mapping[str, Sequence[Outcome]],
    columns: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> str:
    """Write the table of one setting in LaTeX.

    Args:
        setting: The setting's name.
        rows: Outcomes by label.
        columns: The columns to show; empty: all.
        labels: How methods, columns and the setting are written, by their names.

    Returns:
        LaTeX.
    """
    lines = [(label, *row(outcomes)) for label, outcomes in rows.items()]
    return tables.latex(lines, setting, columns, labels)


def failure(outcome: Outcome) -> str:
    """Describe a failed cell in one line; the last line of a stack trace is what went wrong.

    Args:
        outcome: The outcome.

    Returns:
        The line.
    """
    lines = outcome.error.splitlines() or ["unknown error"]
    reason = lines[-1] if lines[0].startswith("Traceback") else " ".join(lines)
    return f"{outcome.cell.folder} failed: {reason}"


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return every cell as plain values, for `results.json` and `--json`.

    Args:
        outcomes: The outcomes.

    Returns:
        Plain values.
    """
    cells = [
        {
            "setting": outcome.cell.setting,
            "label": outcome.cell.label,
            "method": outcome.cell.config.method.label,
            "seed": outcome.cell.config.seed,
            "folder": str(outcome.cell.folder),
            "status": outcome.status,
            "round": outcome.round,
            "error": outcome.error,
            "summary": outcome.summary if outcome.status == "finished" else None,
        }
        for outcome in outcomes
    ]
    return {"cells": plain(cells)}


def write_results(out: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Write OUT/SETTING.md and .tex for every setting, and OUT/results.json with its checksum.

    Args:
        out: The folder.
        outcomes: The outcomes.

    Returns:
        The files written.
    """
    texts = {}
    for name, rows in grouped(outcomes).items():
        texts[f"{safe(name)}.md"] = markdown(name, rows)
        texts[f"{safe(name)}.tex"] = f"{BOOKTABS}\n\n{latex(name, rows)}"
    whole = sealed(json.loads(json.dumps(document(outcomes))))
    texts["results.json"] = json.dumps(whole, indent=1, allow_nan=False) + "\n"
    for name, text in texts.items():
        write(out / name, text.encode())
    return [out / name for name in texts]


def line(outcome: Outcome) -> str:
    """Describe progress as one line of text, for logs and pipes.

    Args:
        outcome: The outcome.

    Returns:
        The line.
    """
    where = f"{outcome.cell.setting} {outcome.cell.label} seed {outcome.cell.config.seed}"
    if outcome.status == "failed":
        return f"{where}: {failure(outcome)}"
    shown = [f"round {outcome.round}/{outcome.cell.rounds}"]
    if outcome.status == "finished":
        values = tables.columns(outcome.summary or {})
        shown = ["finished", *(f"{name} {value:.1f}" for name, value in values.items())]
    return f"{where}: {'  '.join(shown)}"
