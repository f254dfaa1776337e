"""Run a grid of methods, settings and seeds, resume it, and make its tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focoop.config import differences
from focoop.errors import RunError
from focoop.experiments import tables
from focoop.experiments.grid import Cell, safe
from focoop.experiments.workers import Job, News, run_jobs, short
from focoop.runs import CONFIG, RunFolder, plain, write
from focoop.scenario import require_data


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
    """Refuse folders that hold runs of other settings, before anything is run."""
    for cell in cells:
        if not (cell.folder / CONFIG).exists():
            continue
        found = RunFolder.open(cell.folder)
        changed = differences(found.config, cell.config)
        begun = found.last_round() >= 0 or found.status not in ("failed", "interrupted")
        if changed and begun:
            shown = "\n  ".join(changed[:8] + ["..."] * (len(changed) > 8))
            raise RunError(
                f"{cell.folder} holds a {found.status} run of other settings (there -> now):\n"
                f"  {shown}\ngo back to those settings, choose another --out, or remove the folder"
            )


def run(
    cells: Sequence[Cell],
    watch: Watch = lambda outcome: None,
    *,
    jobs: int = 1,
) -> list[Outcome]:
    """Run what is not finished, `jobs` at a time; `watch` is told of every change.

    Failed cells keep their error; the others go on.
    """
    refuse_changed(cells)
    outcomes = [found(cell) for cell in cells]
    for outcome in outcomes:
        if outcome.status == "finished":
            watch(outcome)
    left = [outcome for outcome in outcomes if outcome.status != "finished"]

    def report(news: News) -> None:
        outcome = left[news.job]
        outcome.status = "running" if news.kind == "round" else news.kind
        outcome.round = max(outcome.round, news.round)
        if news.summary is not None:
            outcome.summary = news.summary
        outcome.error, outcome.exit_code = news.error, news.exit_code
        watch(outcome)

    require_data(*(outcome.cell.config for outcome in left))
    todo = [Job(outcome.cell.config, outcome.cell.folder) for outcome in left]
    run_jobs(todo, report, workers=jobs)
    return outcomes


def found(cell: Cell) -> Outcome:
    """What a cell's folder holds: finished or waiting, with the rounds that are done."""
    if not (cell.folder / CONFIG).exists():
        return Outcome(cell)
    folder = RunFolder.open(cell.folder)
    done = max(folder.last_round(), 0)
    if folder.status != "finished" or folder.config != cell.config:
        return Outcome(cell, round=done)
    return Outcome(cell, "finished", done, short(folder.metrics()[-1]))


def row(outcomes: Sequence[Outcome]) -> tuple[dict[str, tables.Stat], str]:
    """Columns of a table's row over its finished seeds, and how many of them there are."""
    done = [o.summary for o in outcomes if o.status == "finished" and o.summary is not None]
    count = f"{len(done)}" if len(done) == len(outcomes) else f"{len(done)} of {len(outcomes)}"
    return tables.over_seeds(done), count


def grouped(outcomes: Sequence[Outcome]) -> dict[str, dict[str, list[Outcome]]]:
    """Setting -> label -> outcomes, in the order given."""
    groups: dict[str, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        rows = groups.setdefault(outcome.cell.setting, {})
        rows.setdefault(outcome.cell.label, []).append(outcome)
    return groups


def markdown(setting: str, rows: Mapping[str, Sequence[Outcome]]) -> str:
    """The tables of one setting, with the errors of what failed."""
    seeds = dict.fromkeys(o.cell.config.seed for outcomes in rows.values() for o in outcomes)
    parts = [
        f"## {setting}",
        tables.markdown([(label, *row(outcomes)) for label, outcomes in rows.items()]),
        f"{tables.NOTE} Seeds {', '.join(map(str, seeds))}.",
    ]
    failed = [o for outcomes in rows.values() for o in outcomes if o.status == "failed"]
    if failed:
        parts.append("\n".join(f"- {failure(outcome)}" for outcome in failed))
    return "\n\n".join(parts) + "\n"


def failure(outcome: Outcome) -> str:
    """One line about a failed cell; the last line of a stack trace is what went wrong."""
    lines = outcome.error.splitlines() or ["unknown error"]
    reason = lines[-1] if lines[0].startswith("Traceback") else " ".join(lines)
    return f"{outcome.cell.folder} failed: {reason}"


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Every cell as plain values, for `results.json` and `--json`."""
    cells = [
        {
            "setting": outcome.cell.setting,
            "label": outcome.cell.label,
            "method": outcome.cell.config.method.name,
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
    """OUT/SETTING.md for every setting and OUT/results.json; the files written."""
    texts = {f"{safe(name)}.md": markdown(name, rows) for name, rows in grouped(outcomes).items()}
    texts["results.json"] = json.dumps(document(outcomes), indent=1, allow_nan=False) + "\n"
    for name, text in texts.items():
        write(out / name, text.encode())
    return [out / name for name in texts]


def line(outcome: Outcome) -> str:
    """Progress as one line of text, for logs and pipes."""
    where = f"{outcome.cell.setting} {outcome.cell.label} seed {outcome.cell.config.seed}"
    if outcome.status == "failed":
        return f"{where}: {failure(outcome)}"
    shown = [f"round {outcome.round}/{outcome.cell.rounds}"]
    if outcome.status == "finished":
        values = tables.columns(outcome.summary or {})
        shown = ["finished", *(f"{name} {value:.1f}" for name, value in values.items())]
    return f"{where}: {'  '.join(shown)}"
