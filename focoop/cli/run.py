"""Commands that compute: run and evaluate."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focoop.cli import completion
from focoop.cli.fetch import Features
from focoop.cli.screen import (
    AsJson,
    ConfigFile,
    Device,
    Overrides,
    Rounds,
    RunOut,
    Untuned,
    download_progress,
    image_work,
    load_config,
    load_tuned,
    messages,
    out,
    print_json,
)
from focoop.errors import RunError
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
            "--resume", help="Continue a run that was stopped or killed, or is to have more rounds."
        ),
    ] = False,
    features: Features = None,
    device: Device = None,
    untuned: Untuned = False,
    as_json: AsJson = False,
) -> None:
    """Train and evaluate one federation; everything about it is kept in a run folder.

    Settings that are not given have the method's tuned values (configs/methods), else defaults.
    """
    from focoop.scenario import require_data

    config, notes = load_tuned(file, overrides, device, untuned)
    path = folder or Path("runs") / config.title
    if notes and _holds(path, load_config(file, overrides, device)):
        raise RunError(
            f"{path} holds this run without the tuned settings: add --untuned to the command, or "
            "choose another folder with --out"
        )
    here = _as_started(config, path) if resume else config
    if here.data.fetch:
        fetch_missing(here)
    require_data(here)
    notes += [*note_clients(here), *note_data(here)]
    if resume:
        _check_before_lengthening(here, path)
    summary = train(config, path, resume=resume, quiet=as_json, lengthen=True, notes=notes)
    if as_json:
        return print_json({"folder": str(path), "status": "finished", "summary": summary})
    print_results([(config.method.name, summary)], [path])
    return None


def evaluate(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder.", autocompletion=completion.run_folder),
    ],
    features: Features = None,
    device: Device = None,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="Neither open nor check the training images.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate the last state of a run again, client by client, if its data is still the same."""
    from focoop.cli.display import clients_table
    from focoop.experiments import evaluate_run
    from focoop.runs import RunFolder

    found = RunFolder.open(folder)
    with image_work(messages()):
        result = evaluate_run(found, device=device, test_only=test_only)
    names = () if found.names is None else found.client_names
    if as_json:
        return print_json(
            {
                "folder": str(folder),
                "status": found.status,
                "round": found.last_round(),
                "client_names": list(names),
                "summary": result.summary,
                "clients": result.clients,
            }
        )
    out().print(clients_table(result.clients, names))
    print_results([(found.config.method.name, result.summary)], [folder])
    return None


def fetch_missing(config: "RunConfig") -> None:
    """Download the public datasets of a run that are not here, with their licences shown."""
    from focoop.cli.doctor import missing_datasets
    from focoop.data import download, registry

    console = messages()
    for name in missing_datasets(config):
        dataset = registry.lookup(name)
        told = f"{dataset.title} is not here yet ({dataset.page}; licence: {dataset.licence})"
        console.print(told, markup=False)
        with download_progress(console) as progress:
            download.fetch(name, config.data.root or None, progress)


def _as_started(config: "RunConfig", path: Path) -> "RunConfig":
    """The settings of a run that may be there already, with paths that lead where they led then."""
    from focoop.runs import RunFolder, anchored

    try:
        base = RunFolder.open(path).base
    except RunError:  # told when the folder is opened to go on
        return config
    return config if base == Path.cwd() else anchored(config, base)


def _check_before_lengthening(config: "RunConfig", path: Path) -> None:
    """Refuse more rounds on other data while the run is still as it was."""
    from focoop.experiments import refuse_other_data
    from focoop.runs import RunFolder

    try:
        found = RunFolder.open(path)
    except RunError:  # told when the folder is opened to go on
        return
    if found.last_round() >= 0 and config.federation.rounds > found.config.federation.rounds:
        with image_work(messages()):
            refuse_other_data(found, config)


def _holds(path: Path, config: "RunConfig") -> bool:
    """Whether a folder holds a run of these settings."""
    from focoop.runs import read_config

    try:
        return read_config(path) == config
    except RunError:
        return False


def note_clients(config: "RunConfig") -> list[str]:
    """Say so where images come divided among clients and the run divides them anew.

    Returns:
        What was said, for the run's log.
    """
    from focoop.cli.doctor import NOTE, run_clients

    check = run_clients(config)
    if check.state != NOTE:
        return []
    told = f"{check.found}; use them: {check.advice}"
    messages().print(f"note: {told}", markup=False)
    return [told]


def note_data(config: "RunConfig", *, measured: bool = True) -> list[str]:
    """Say what a run does with its data that its settings do not spell out.

    Returns:
        What was said, for the run's log.
    """
    from focoop.scenario import remarks

    found = list(remarks(config, measured=measured))
    for told in found:
        messages().print(f"note: {told}", markup=False)
    return found


def train(
    config: "RunConfig",
    path: Path,
    *,
    resume: bool,
    quiet: bool,
    label: str = "",
    lengthen: bool = False,
    notes: Sequence[str] = (),
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

    Returns:
        The evaluation of the last evaluated round.
    """
    from focoop.experiments import run_experiment
    from focoop.methods import lookup
    from focoop.runs import collect, start

    console = messages() if quiet else out()
    folder = start(path, config, collect(config), resume=resume, lengthen=lengthen)
    if folder.status == "finished":
        messages().print(f"{path} is finished: nothing left to do", markup=False)
        return folder.metrics()[-1]
    done = folder.last_round()
    if done >= 0:
        messages().print(f"{path}: going on after round {done}", markup=False)
    if folder.note:
        messages().print(f"note: {folder.note}", markup=False)
    rounds = config.federation.rounds if lookup(config.method.name).trains else 0
    try:
        with folder, Rounds(console, rounds, label or config.method.name) as bar:
            with watched(bar.images()):
                summary = run_experiment(config, folder, bar.show, notes=notes)
            folder.finish("finished")
    except KeyboardInterrupt:
        messages().print(
            f"stopped after round {max(folder.last_round(), 0)}; "
            f"continue with the same command and --resume --out {path}",
            markup=False,
            soft_wrap=True,
        )
        raise
    return summary


def print_results(rows: list[tuple[str, dict[str, Any]]], paths: list[Path]) -> None:
    """Print the table of results, one column per run, and where the runs lie."""
    from focoop.cli.display import NOTE, results_table

    console = out()
    console.print()
    console.print(results_table(rows))
    console.print()
    console.print(NOTE)
    for path in paths:
        console.print(f"run folder: {path}", markup=False, soft_wrap=True)
