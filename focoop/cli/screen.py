"""What the commands share: consoles, errors and exit codes, live progress, options."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import click
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typer.core import TyperGroup

from focoop.cli import completion, interruption
from focoop.cli.console import messages as messages
from focoop.cli.console import out as out
from focoop.cli.console import showing
from focoop.cli.failure import report
from focoop.errors import ConfigError
from focoop.progress import watched

if TYPE_CHECKING:
    from focoop.config import RunConfig
    from focoop.tracking import RoundEvent

# What people write for another option -> what to write, where names alone suggest a wrong one.
MEANT = {
    ("compare", "seed"): "write --seeds, how many (3) or which (0,4; '4,' is seed 4 alone)",
    ("run", "seed"): "write --set seed=4",
    ("run", "seeds"): "a run has one seed, --set seed=4; several runs: focoop compare --seeds 3",
    ("tune", "seeds"): "all trials have one seed, --seed 4; focoop compare has --seeds",
    ("tune", "trials"): "write --budget, the trials of each method",
}
# Seconds between two lines about one work on images; shorter work than QUICK has no line at all.
PAUSE, QUICK = 10.0, 1.0

ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG.toml",
        help="A file of settings, or a name such as demo; other settings have their defaults.",
        autocompletion=completion.configuration,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one setting; may be repeated.",
        autocompletion=completion.override,
    ),
]
RunOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Run folder; default: in runs, called by the setting name, or by data, partition, "
        "method and seed.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Device = Annotated[
    str | None,
    typer.Option(help="Torch device, such as cpu or cuda.", autocompletion=completion.device),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Weights of an openclip backbone: a file, or a folder of the hub that holds it "
        "(backbone.weights).",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME[:WHERE]",
        help="Also write to a tracker: tensorboard:FOLDER, wandb:PROJECT, mlflow:URI, "
        "trackio:PROJECT, ./mine.py; may be repeated.",
        autocompletion=completion.tracker,
    ),
]
Untuned = Annotated[
    bool, typer.Option("--untuned", help="Do not use the tuned settings of configs/methods.")
]


class Commands(TyperGroup):
    """Turns errors a user can mend into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command.

        Args:
            ctx: The command's context.

        Returns:
            What the command returns.
        """
        # Click empties both before a command runs.
        given = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            with interruption.computing():
                return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except click.NoSuchOption as error:
            command = "" if error.ctx is None else str(error.ctx.info_name)
            if hint := MEANT.get((command, error.option_name.lstrip("-"))):
                told = f"focoop {command} has no option {error.option_name}: {hint}"
                report(ConfigError(told), given)
            report(error, given)
            raise
        except (Exception, KeyboardInterrupt) as error:
            # Some libraries answer a signal during their import with an error of their own.
            stopped = interruption.received()
            report(interruption.Stopped(stopped) if stopped else error, given)
            raise


def print_json(document: Any) -> None:
    """Print the one JSON document of a command.

    Args:
        document: Plain values.
    """
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def with_weights(overrides: list[str] | None, weights: Path | None) -> list[str] | None:
    """Add the weight file of a command line to its settings.

    Args:
        overrides: Texts such as `federation.rounds=3`.
        weights: The file, if one is given.

    Returns:
        The texts, with one for `backbone.weights`.
    """
    if weights is None:
        return overrides
    from focoop.fields import toml_value

    return [*(overrides or ()), f"backbone.weights={toml_value(str(weights))}"]


def load_config(
    path: Path | None, overrides: list[str] | None, device: str | None, *, own: bool = False
) -> "RunConfig":
    """Load the configuration of a command's file, `--set` and `--device`.

    Args:
        path: The file.
        overrides: Texts such as `federation.rounds=3`.
        device: The device.
        own: Sites bring images of their own, whatever `data.id` says.

    Returns:
        The configuration.
    """
    from focoop.config import load
    from focoop.processor import restart_with_limit

    where = [f"backbone.device={device}"] if device else []
    config = load(path, [*(overrides or []), *where], own=own)
    restart_with_limit(config.backbone.precision, config.backbone.device)
    return config


def load_tuned(
    path: Path | None, overrides: list[str] | None, device: str | None, untuned: bool
) -> "tuple[RunConfig, list[str]]":
    """The configuration of a run, with the tuned settings of its method where none are given.

    Args:
        path: the user's file.
        overrides: `--set`.
        device: `--device`.
        untuned: leave the tuned settings out.

    Returns:
        The configuration, and what the user was told, for the run's log.
    """
    from focoop.api import configure
    from focoop.processor import restart_with_limit

    config, used = configure(path, overrides, use_tuned=not untuned, device=device)
    restart_with_limit(config.backbone.precision, config.backbone.device)
    notes = []
    if used:
        names = " and ".join("/".join(file.parts[-3:]) for file in used)
        notes = [f"tuned settings of {names} (without: --untuned)"]
        messages().print(notes[0], markup=False)
    return config, notes


class Rounds:
    """Progress of a run: a live bar on a terminal, plain lines elsewhere."""

    explained = False  # whether a command has said what its short lines mean

    def __init__(self, console: Console, total: int, label: str) -> None:
        self.console = console
        self.total = total
        self.label = label
        self._bar = _bar(console)
        self._task = self._bar.add_task(label, total=total, shown="")
        self._means = False  # whether a line showed means over OOD sets
        self._shown = ExitStack()

    def __enter__(self) -> Self:
        self._shown.enter_context(showing(self.console))
        self._bar.start()
        return self

    def images(self) -> "ImageWork":
        """Return what shows work on images beside the rounds; lines go to standard error."""
        return ImageWork(messages(), self._bar if self.console.is_terminal else None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        self._shown.close()
        if self._means and not Rounds.explained:
            Rounds.explained = True
            self.console.print("(a round's auroc and fpr95: means over the OOD sets)")

    def show(self, event: "RoundEvent") -> None:
        """Report a finished round.

        Args:
            event: The round.
        """
        round_index, loss, summary = event.round, event.metrics.get("train/loss"), event.evaluation
        parts = [] if loss is None else [f"loss {loss:.3f}"]
        self._bar.update(self._task, completed=round_index, shown=" ".join(parts))
        if summary is not None or not self.console.is_terminal:
            width = len(str(self.total))
            start = [self.label, f"round {round_index:>{width}}/{self.total}", *parts]
            line = self._line(start, summary or {}) if summary is not None else "  ".join(start)
            self.console.print(line, soft_wrap=True, markup=False)

    def _line(self, start: Sequence[str], summary: Mapping[str, Any]) -> str:
        """All numbers of an evaluated round, or where they do not fit the most important."""
        from focoop.cli.display import brief, headline

        facts = summary.get("server", {})
        server = [f"{name} {facts[name]:.3g}" for name in ("epsilon", "refused") if name in facts]
        measured = {name: value for name, value in headline(summary).items() if value != "-"}
        numbers = [f"{name} {value}" for name, value in measured.items()]
        line = "  ".join([*start, *numbers, *server])
        if len(line) <= self.console.width:
            return line
        line = "  ".join([*start, *server])
        self._means |= len(summary.get("ood", {})) > 1
        for name, value in brief(summary).items():
            longer = f"{line}  {name} {value}"
            line = longer if len(longer) <= self.console.width else line
        return line


class ImageWork:
    """Watches work on images: a bar on a terminal, elsewhere a line now and then and at the end.

    Work that is complete when it is first told of was done before, and is not shown.
    """

    def __init__(
        self, console: Console, bar: Progress | None = None, *, pause: float = PAUSE
    ) -> None:
        self._console, self._bar, self._pause = console, bar, pause
        self._begun: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._first: dict[str, int] = {}
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far `what` is."""
        now = time.monotonic()
        if what not in self._begun:
            if done >= total:
                return
            self._begun[what] = self._told[what] = now
            self._first[what] = done
            if self._bar is not None:
                self._tasks[what] = self._bar.add_task(what, total=total, shown=_unit(what))
        if self._bar is not None:
            self._bar.update(self._tasks[what], completed=done)
        elif done < total and now - self._told[what] >= self._pause:
            self._told[what] = now
            pace = (now - self._begun[what]) / max(1, done - self._first[what])
            left = f", about {_duration(pace * (total - done))} left"
            self._print(f"{what}: {done} of {total} {_unit(what)}{left}")
        if done >= total:
            seconds = now - self._begun.pop(what)
            if self._bar is not None:
                self._bar.remove_task(self._tasks.pop(what))
            elif seconds >= QUICK:
                self._print(f"{what}: {total} {_unit(what)} in {seconds:.1f} s")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _unit(what: str) -> str:
    """What is counted: images, or the words of negatives."""
    return "words" if what.endswith("words") else "images"


def _duration(seconds: float) -> str:
    """A duration in words, roughly.

    >>> _duration(34.2), _duration(754), _duration(8000)
    ('34 s', '13 min', '2.2 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def image_work(console: Console) -> Iterator[None]:
    """Show what happens to images inside, where nothing else is live.

    Args:
        console: Where to show it.

    Yields:
        Nothing.
    """
    bar = _bar(console) if console.is_terminal else None
    with showing(console), bar or nullcontext(), watched(ImageWork(console, bar)):
        yield


def _bar(console: Console) -> Progress:
    """A live line per task, gone at the end; none where the console is no terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=max(10, min(40, console.width - 60))),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def download_progress(console: Console) -> Iterator[Any]:
    """Show downloads inside: a bar on a terminal, else one line.

    Args:
        console: Where to show them.

    Yields:
        A callback of file, bytes so far, and bytes in all or 0.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}

    def update(file: str, done: int, total: int) -> None:
        if file not in tasks:
            tasks[file] = bar.add_task(file, total=None)
            if not console.is_terminal:
                size = f", {total / 2**20:.0f} MiB" if total else ""
                console.print(f"fetching {file}{size}", markup=False)
        bar.update(tasks[file], completed=done, total=total or None)

    with showing(console), bar:
        yield update
