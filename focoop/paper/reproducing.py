"""Make tables and figures of the paper: run what is missing, write what is there."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from focoop.config import Override
from focoop.experiments import (
    FORMATS,
    Cell,
    Outcome,
    comparison,
    parse_formats,
    parse_methods,
    seeds_of,
)
from focoop.methods import available
from focoop.paper.items import Item, choose_items, read_items
from focoop.paper.numbers import Entry
from focoop.paper.outputs import collect_numbers, write_numbers
from focoop.paper.planning import MINI, Choices, Planned, plan_item
from focoop.tracking import OnRound, split_hooks

OUT = Path("runs/paper")


@dataclass(frozen=True)
class Progress:
    """How far the runs are, whenever one starts, commits a round, finishes or fails.

    Attributes:
        item: The item that is made.
        outcome: The run that changed.
        done: Runs that are finished or failed, of all items.
        total: All runs.
        seconds_left: About how long the rest takes; None: not known yet.
    """

    item: str
    outcome: Outcome
    done: int
    total: int
    seconds_left: float | None


@dataclass(frozen=True)
class Reproduction:
    """One table or figure of the paper, made by us.

    Attributes:
        item: What was made.
        entries: Every number, ours beside the paper's.
        files: What was written; nothing where no run is finished.
        lacking: What parts that could not run lack and how to get it, a line each, by their names.
        without: OOD sets that are missing and which parts run without, by the parts' names.
        failures: Why runs failed, by their folders.
        left: Runs that are not finished.
    """

    item: Item
    entries: Sequence[Entry]
    files: Sequence[Path]
    lacking: Mapping[str, str]
    without: Mapping[str, Sequence[str]]
    failures: Mapping[str, str]
    left: int


@dataclass(frozen=True)
class Surveyed:
    """What an item needs, and whether it is here.

    Attributes:
        item: The item.
        runs: Its runs.
        finished: Those that are finished.
        lacks: Names of datasets and weights that are not here.
        without: OOD sets that are not here, and which its runs do without.
    """

    item: Item
    runs: int
    finished: int
    lacks: tuple[str, ...]
    without: tuple[str, ...] = ()


def reproduce(
    items: str | Iterable[str] = "all",
    *,
    backbone: str = MINI,
    seeds: int | str | Sequence[int] = 3,
    methods: str | Sequence[str] = (),
    overrides: Mapping[str, Any] | Sequence[str] | None = None,
    out: str | Path = OUT,
    packaged: bool = False,
    presets: str | Path | None = None,
    folder: str | Path | None = None,
    jobs: int = 0,
    device: str | None = None,
    formats: str | Sequence[str] = FORMATS,
    on_progress: Callable[[Progress], None] | None = None,
    on_round: OnRound = None,
    run: bool = True,
) -> list[Reproduction]:
    """Make tables and figures of the paper, with the paper's numbers beside ours.

    Runs are kept below `out`; the same call again runs only what is not finished. A part whose
    data or weights are missing is left out and named, and the others run.

    Args:
        items: Names such as `"T1"` or `"F5"`, or `"all"`.
        backbone: `"mini"`, or `"openclip:ViT-B-16:openai"` as in the paper.
        seeds: How many seeds, 0 to n - 1, as in `3` or `"3"`; or which, as in `[0, 4]` or `"0,4"`.
        methods: Methods or variants in place of the items' own, such as `"focoop:bos=false"`.
        overrides: Settings that go above all others, as in `focoop.run`.
        out: The folder of runs, tables and figures.
        packaged: Whether packaged images stand in for public datasets, where some do.
        presets: A folder of tuned settings; by default those that come with focoop for `mini`, and
            CoOp's optimiser for other backbones.
        folder: A folder of items; by default the one that comes with focoop.
        jobs: Runs at a time, each in a process of its own; 0: one after the other in this process.
        device: A torch device, such as `"cuda"`; by default the settings'.
        formats: Kinds of figures: `"svg"`, `"png"`, `"pdf"`.
        on_progress: Called whenever a run starts, commits a round, finishes or fails.
        on_round: Hooks of every run that is made, as in `focoop.compare`: functions, trackers, or
            texts such as `"tensorboard:folder"`.
        run: Whether to run anything; else the outputs hold what is finished.

    Returns:
        One per item, in the order of the paper.

    Raises:
        ConfigError: An item, a setting, a method, a seed, a format or a hook cannot be used.
        MissingExtra: The package of a tracker is not installed.
        RunError: A folder holds a run of other settings.
    """
    split_hooks(on_round)  # refused before anything is run
    known = read_items(None if folder is None else Path(folder))
    wanted = choose_items([items] if isinstance(items, str) else list(items), known)
    choices = make_choices(
        backbone=backbone,
        seeds=seeds,
        methods=methods,
        overrides=overrides,
        out=out,
        packaged=packaged,
        presets=presets,
        device=device,
        formats=formats,
    )
    plans = {item.name: plan_item(item, choices, ask=run) for item in wanted}
    ready = {name: _ready(parts) for name, parts in plans.items()}
    comparison.refuse_changed([cell for cells in ready.values() for cell in cells])
    clock = _Clock(ready, on_progress or (lambda progress: None))
    made = []
    for item in wanted:
        cells = ready[item.name]
        if run and cells:
            found = comparison.run(cells, clock.watch(item.name), jobs=jobs, on_round=on_round)
        else:
            found = [comparison.outcome_of(cell) for cell in cells]
        made.append(_made(item, plans[item.name], found, choices))
    return made


def survey(items: Iterable[Item], choices: Choices) -> list[Surveyed]:
    """Say what items need and whether it is here; nothing is run and no network is asked.

    Args:
        items: The items.
        choices: What the user decided.

    Returns:
        One per item.
    """
    told = []
    for item in items:
        plans = plan_item(item, choices, ask=False)
        cells = [cell for one in plans for cell in one.cells]
        done = sum(comparison.outcome_of(cell).status == "finished" for cell in cells)
        lacks = dict.fromkeys(name for one in plans for name in one.short.split(", ") if name)
        without = dict.fromkeys(name for one in plans for name in one.left_out)
        told.append(Surveyed(item, len(cells), done, tuple(lacks), tuple(without)))
    return told


def make_choices(
    *,
    backbone: str,
    seeds: int | str | Sequence[int],
    methods: str | Sequence[str],
    overrides: Mapping[str, Any] | Sequence[str] | None,
    out: str | Path,
    packaged: bool,
    presets: str | Path | None,
    device: str | None,
    formats: str | Sequence[str] = FORMATS,
) -> Choices:
    """Return the arguments of `reproduce` as choices.

    Args:
        backbone: As in `reproduce`.
        seeds: As in `reproduce`.
        methods: As in `reproduce`.
        overrides: As in `reproduce`.
        out: As in `reproduce`.
        packaged: As in `reproduce`.
        presets: As in `reproduce`.
        device: As in `reproduce`.
        formats: As in `reproduce`; text is a list with commas.

    Returns:
        The choices.
    """
    given: list[Override] = [overrides] if isinstance(overrides, Mapping) else [*(overrides or ())]
    if device:
        given.append({"backbone.device": device})
    return Choices(
        out=Path(out),
        backbone=backbone,
        seeds=seeds_of(seeds),
        overrides=tuple(given),
        methods=_labels(methods),
        packaged=packaged,
        presets=None if presets is None else Path(presets),
        formats=parse_formats(formats if isinstance(formats, str) else ",".join(formats)),
    )


def _labels(methods: str | Sequence[str]) -> tuple[str, ...]:
    """Names of methods and variants, as a grid calls them; of `all` those that there are."""
    text = methods if isinstance(methods, str) else ",".join(methods)
    if not text.strip():
        return ()
    variants = parse_methods(text)
    return tuple(available()) if variants is None else tuple(one.label for one in variants)


def _ready(plans: Sequence[Planned]) -> list[Cell]:
    """The runs of all parts that lack nothing, and what is finished of the others."""
    cells = []
    for one in plans:
        cells += [
            cell
            for cell in one.cells
            if not one.lacks or comparison.outcome_of(cell).status == "finished"
        ]
    return cells


class _Clock:
    """Counts the runs of all items, each once, and estimates how long the rest takes."""

    def __init__(
        self, ready: Mapping[str, Sequence[Cell]], tell: Callable[[Progress], None]
    ) -> None:
        cells = {str(cell.folder): cell for cells in ready.values() for cell in cells}
        self.left = {
            name for name, cell in cells.items() if comparison.outcome_of(cell).status != "finished"
        }
        self.total, self.tell = len(cells), tell
        self.began, self.ended = time.monotonic(), 0

    def watch(self, item: str) -> Callable[[Outcome], None]:
        """Return what a grid of runs tells its changes to."""

        def changed(outcome: Outcome) -> None:
            name = str(outcome.cell.folder)
            if outcome.status in ("finished", "failed") and name in self.left:
                self.left.discard(name)
                self.ended += 1
            passed = time.monotonic() - self.began
            rest = passed / self.ended * len(self.left) if self.ended else None
            done = self.total - len(self.left)
            self.tell(Progress(item, replace(outcome), done, self.total, rest))

        return changed


def _made(
    item: Item, plans: Sequence[Planned], found: Sequence[Outcome], choices: Choices
) -> Reproduction:
    """Write the files of an item, where it has a number."""
    outcomes = {str(outcome.cell.folder): outcome for outcome in found}
    numbers = collect_numbers(item, plans, outcomes, choices)
    done = {name for name, outcome in outcomes.items() if outcome.status == "finished"}
    folders = {
        one.part.name: cell.folder
        for one in plans
        for cell in reversed(one.cells)  # the first one stays
        if str(cell.folder) in done
    }
    return Reproduction(
        item=item,
        entries=numbers.entries,
        files=write_numbers(numbers, choices, folders),
        lacking={one.part.name: one.lacks for one in plans if one.lacks},
        without={one.part.name: one.left_out for one in plans if one.left_out},
        failures={
            str(outcome.cell.folder): outcome.error
            for outcome in found
            if outcome.status == "failed"
        },
        left=sum(outcome.status != "finished" for outcome in found),
    )
