"""The command `paper`: tables and figures of the paper, ours beside the published values."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focoop.cli import interruption
from focoop.cli.display import PROSE, Column, Sheet
from focoop.cli.display.sheet import joined
from focoop.cli.fetch import Features
from focoop.cli.grid_notes import note_seeds
from focoop.cli.grid_options import Jobs, Methods, NoRun, Presets, Seeds, count_jobs
from focoop.cli.screen import Device, Overrides, Track, Weights, messages, out, with_weights
from focoop.errors import DataError

if TYPE_CHECKING:
    from focoop.paper import Choices, Item, Progress, Reproduction


def paper(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ITEM]...",
            help="T1, T2, ..., F5, ablation, or all; without any, they are listed.",
        ),
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="mini, or openclip:ViT-B-16:openai as in the paper.")
    ] = "mini",
    seeds: Seeds = "3",
    methods: Methods = None,
    packaged: Annotated[
        bool, typer.Option("--packaged", help="Use the packaged images: nothing to download.")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of runs, tables and figures.")
    ] = Path("runs/paper"),
    items_folder: Annotated[
        Path | None,
        typer.Option(
            "--items", metavar="DIR", help="Folder with items of your own, like configs/paper."
        ),
    ] = None,
    presets: Presets = None,
    formats: Annotated[str, typer.Option(help="Kinds of figures.")] = "svg,png,pdf",
    jobs: Jobs = None,
    features: Features = None,
    device: Device = None,
    overrides: Overrides = None,
    weights: Weights = None,
    track: Track = None,
    no_run: NoRun = False,
) -> None:
    """Make tables and figures of the FOCoOp paper, the published numbers beside ours."""
    from focoop.api import reproduce
    from focoop.paper import make_choices, read_items

    given: dict[str, Any] = {
        "backbone": backbone,
        "seeds": seeds,
        "methods": methods or (),
        "overrides": with_weights(overrides, weights),
        "out": folder,
        "packaged": packaged,
        "presets": presets,
        "device": device,
        "formats": formats,
    }
    if not items:
        _list(read_items(items_folder), make_choices(**given))
        return
    if not no_run:
        note_seeds(seeds)
    try:
        made = reproduce(
            items,
            **given,
            folder=items_folder,
            jobs=count_jobs(jobs, [device or "cpu"]),
            on_progress=_Teller(),
            on_round=track,
            run=not no_run,
        )
    except KeyboardInterrupt:
        messages().print("stopped: the same command goes on where it stopped")
        interruption.mark_announced()
        raise
    _report(made, packaged)


def _list(items: "Sequence[Item]", choices: "Choices") -> None:
    """All items, what each needs and whether it is here."""
    from focoop.paper import survey

    rows = []
    for one in survey(items, choices):
        names = ", ".join([one.item.name, *one.item.also])
        but = f", but for {', '.join(one.without)}" if one.without else ""
        here = f"no: {', '.join(one.lacks)}" if one.lacks else f"yes{but}"
        rows.append([names, one.item.title, f"{one.finished}/{one.runs}", here])
    columns = [Column("item"), Column("what", prose=PROSE), Column("runs", right=True)]
    out().print(Sheet([*columns, Column("data and weights here", prose=PROSE)], rows))
    messages().print(
        "make one: focoop paper T1; with the packaged images: focoop paper T1 --packaged"
    )


class _Teller:
    """Says how many runs there are to make when the first one starts, then a line for each."""

    def __init__(self) -> None:
        self.begun = False

    def __call__(self, progress: "Progress") -> None:
        """Tell of a run that starts, commits a round or ends."""
        from focoop.experiments import line

        if progress.outcome.status not in ("finished", "failed"):
            if not self.begun:
                count = progress.total - progress.done
                messages().print(f"{count} of {progress.total} runs to make, a line for each:")
            self.begun = True
            return
        rest = progress.seconds_left
        left = f", about {_duration(rest)} left" if rest else ""
        text = f"{progress.item} [{progress.done}/{progress.total}{left}] {line(progress.outcome)}"
        messages().print(joined(text.split("  "), messages().width), markup=False)


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _report(made: "Sequence[Reproduction]", packaged: bool) -> None:
    """What was written and what was not; the exit code is 1 where a run failed or all lack data."""
    for one in made:
        _missing(one)
        for folder, reason in one.failures.items():
            messages().print(f"failed: {folder}\n{reason}")
        if one.left:
            messages().print(f"{one.item.name}: {one.left} runs are left")
        for path in one.files:
            out().print(str(path), soft_wrap=True)
    if any(one.lacking or one.without for one in made):
        other = "the public datasets: the same command without --packaged, in another --out"
        images = "instead of images: ready features by --features DIR; some items: --packaged"
        messages().print(other if packaged else images)
    if not any(one.files for one in made):
        lacking = any(one.lacking for one in made)
        raise DataError(
            "nothing could be made: "
            + ("what is missing stands above" if lacking else "no run is finished")
        )
    if any(one.failures for one in made):
        raise typer.Exit(1)


def _missing(one: "Reproduction") -> None:
    """Which parts did not run, or ran without some OOD sets; a line on how to get each thing."""
    from focoop.paper import way_to

    lines = dict.fromkeys(line for text in one.lacking.values() for line in text.splitlines())
    if one.lacking:
        messages().print(f"{one.item.name}, not run: {'; '.join(one.lacking)}; missing:")
    elif one.without:
        parts = "; ".join(one.without)
        messages().print(f"{one.item.name}, {parts}: without OOD sets that are missing:")
    lines |= dict.fromkeys(way_to(name) for names in one.without.values() for name in names)
    for line in lines:
        messages().print(f"    {line}", soft_wrap=True, markup=False)
