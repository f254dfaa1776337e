"""Commands that compute: run and evaluate."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focoop.cli import completion, interruption
from focoop.cli.fetch import Features
from focoop.cli.screen import (
    AsJson,
    ConfigFile,
    Device,
    ImageWork,
    Overrides,
    Rounds,
    RunOut,
    Track,
    Untuned,
    Weights,
    download_progress,
    image_work,
    load_config,
    load_tuned,
    messages,
    out,
    print_json,
    with_weights,
)
from focoop.progress import watched

if TYPE_CHECKING:
    from focoop.config import RunConfig


def run(
    file: ConfigFile = None,
    overrides: Overrides = None,
    folder: RunOut = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue a run that was stopped or killed, or that should get more rounds.",
        ),
    ] = False,
    round_before: Annotated[
        bool,
        typer.Option(
            "--round-before",
            help="With --resume: continue from the last round but one, if the last is damaged.",
        ),
    ] = False,
    features: Features = None,
    device: Device = None,
    weights: Weights = None,
    untuned: Untuned = False,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Train and evaluate one federation; everything about it is kept in a run folder.

    Settings that are not given have the method's tuned values (configs/methods), else defaults.
    """
    from focoop.api import refuse_without_tuned

    overrides = with_weights(overrides, weights)
    config, notes = load_tuned(file, overrides, device, untuned)
    path = folder or Path("runs") / config.title
    if notes:
        refuse_without_tuned(path, load_config(file, overrides, device))
    summary = train(
        config,
        path,
        resume=resume,
        quiet=as_json,
        lengthen=True,
        notes=notes,
        from_round_before=round_before,
        track=track or (),
    )
    if as_json:
        return print_json({"folder": str(path), "status": "finished", "summary": summary})
    print_results([(config.method.label, summary)], [path])
    return None


def evaluate(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder.", autocompletion=completion.run_folder),
    ],
    features: Features = None,
    weights: Weights = None,
    device: Device = None,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="Neither open nor check the training images.")
    ] = False,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Score images by this instead of the method's own score: energy, msp, mcm, ... or "
            "a file of yours, ./mine.py.",
            autocompletion=completion.score,
        ),
    ] = None,
    open_share: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Share of images expected from any class; 0: own classes alone."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the last state of a run again, client by client, if its data is still the same.

    Example: focoop evaluate runs/mine --score energy
    """
    from focoop.api import open_run
    from focoop.cli.display import clients_table

    opened_run = open_run(folder, weights=weights)
    with image_work(messages()):
        result = opened_run.evaluate(
            score=score, open_share=open_share, device=device, test_only=test_only
        )
    names = opened_run.client_names
    if as_json:
        return print_json(
            {
                "folder": str(folder),
                "status": opened_run.status,
                "round": opened_run.evaluated_round,
                "client_names": list(names),
                "summary": result.summary,
                "clients": result.clients,
            }
        )
    out().print(clients_table(result.clients, names))
    print_results([(opened_run.config.method.label, result.summary)], [folder])
    return None


def fetch(name: str, config: "RunConfig") -> None:
    """Download a public dataset of a run that is not here, with its licence shown.

    Args:
        name: The dataset's name.
        config: The run's settings.
    """
    from focoop.data import download, registry

    console = messages()
    dataset = registry.lookup(name)
    note = f"{dataset.title} is not here yet ({dataset.page}; licence: {dataset.licence})"
    console.print(note, markup=False)
    with download_progress(console) as progress:
        download.fetch(name, config.data.root or None, progress)


def say(note: str) -> None:
    """Print what a person should know of a run before it begins.

    Args:
        note: The note.
    """
    messages().print(f"note: {note}", markup=False)


def train(
    config: "RunConfig",
    path: Path,
    *,
    resume: bool,
    quiet: bool,
    label: str = "",
    lengthen: bool = False,
    notes: Sequence[str] = (),
    from_round_before: bool = False,
    track: Sequence[str] = (),
) -> dict[str, Any]:
    """Run in a folder and show it.

    Args:
        config: the run's settings.
        path: its folder.
        resume: continue what is there.
        quiet: rounds are shown on standard error, so that standard output holds one document.
        label: what the rounds are shown under; by default the method's name.
        lengthen: a resumed run may go on to more rounds.
        notes: what the user was told before, for the run's log.
        from_round_before: a resumed run goes on from the round before its last one.
        track: trackers that it writes to.

    Returns:
        The evaluation of the last evaluated round.
    """
    from focoop.api import prepare_run
    from focoop.tracking import as_hooks

    trackers = as_hooks(list(track))  # refused before a folder is made
    console = messages() if quiet else out()
    with watched(ImageWork(messages())):  # lines: a bar would stand in the way of a download's
        prepared = prepare_run(
            config,
            path,
            resume=resume,
            lengthen=lengthen,
            from_round_before=from_round_before,
            notes=notes,
            on_note=say,
            fetch=fetch,
        )
    folder = prepared.folder
    if prepared.finished:
        messages().print(f"{path} is finished: nothing left to do", markup=False)
        return folder.metrics()[-1]
    done = folder.last_round()
    if done >= 0:
        messages().print(f"{path}: going on after round {done}", markup=False)
    if folder.note:
        messages().print(f"note: {folder.note}", markup=False)
    try:
        bar = Rounds(console, prepared.rounds, label or config.method.label)
        with bar, watched(bar.images()):
            found = prepared.train([*as_hooks(bar.show), *trackers]).metrics[-1]
        for look in filter(None, (one.tracker.look for one in trackers)):
            messages().print(f"tracked: {look}", markup=False, soft_wrap=True)
        return found
    except KeyboardInterrupt:
        messages().print(
            f"stopped after round {max(folder.last_round(), 0)}; "
            f"continue with the same command and --resume --out {path}",
            markup=False,
            soft_wrap=True,
        )
        interruption.mark_announced()
        raise


def print_results(rows: list[tuple[str, dict[str, Any]]], paths: list[Path]) -> None:
    """Print the table of results, one column per run, and where the runs lie.

    Args:
        rows: Label and evaluation summary of each run.
        paths: The run folders.
    """
    from focoop.cli.display import AREA, NOTE, results_table

    console = out()
    console.print()
    console.print(results_table(rows))
    console.print()
    console.print(NOTE)
    if any(summary.get("frontier") for _, summary in rows):
        console.print(AREA)
    for path in paths:
        console.print(f"run folder: {path}", markup=False, soft_wrap=True)
