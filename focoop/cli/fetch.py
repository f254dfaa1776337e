"""Commands that get public datasets and look through images."""

from pathlib import Path
from typing import Annotated

import typer

from focoop.cli import completion
from focoop.cli.data_check import as_document, show_report
from focoop.cli.screen import AsJson, download_progress, image_work, messages, out, print_json
from focoop.errors import ConfigError, DataError

Root = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of public datasets; default $FOCOOP_DATA, the cache."),
]


def _stand_in(given: list[Path] | None) -> list[Path] | None:
    """Name folders of ready features for this command and the processes it starts."""
    if given:
        from focoop.data import use

        use(given)
    return given


Features = Annotated[
    list[Path] | None,
    typer.Option(
        "--features",
        metavar="DIR",
        callback=_stand_in,
        help="Folder of ready features that stand in for public datasets; may be repeated; "
        "default $FOCOOP_FEATURES.",
    ),
]


def fetch(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="See focoop data list.",
            autocompletion=completion.public_dataset,
        ),
    ],
    root: Root = None,
) -> None:
    """Download public datasets: resumed where a download broke off, checked, then unpacked."""
    from focoop.data import fetch as get
    from focoop.data import lookup, refuse_incomplete

    console = messages()
    for name in names:
        dataset = lookup(name)
        console.print(f"{dataset.title}: {dataset.page}", markup=False)
        console.print(f"licence: {dataset.licence}", markup=False)
        with download_progress(console) as progress:
            base = get(name, root, progress)
        refuse_incomplete(name, root)  # what was there before may lack images
        out().print(f"{name}: {base}", markup=False, soft_wrap=True)


def check(
    dataset: Annotated[
        str,
        typer.Argument(
            help="A dataset, written as in data.id, such as folder:PATH.",
            autocompletion=completion.dataset,
        ),
    ],
    split: Annotated[str, typer.Option(help="A split, or all.")] = "all",
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Open every image of a dataset and tell what becomes of each file.

    Exit code 3 where files cannot be read; other remarks are told and change nothing.
    """
    from focoop.data import Source, inspect

    source = Source.parse(dataset)
    if source.kind in ("demo", "file"):
        raise ConfigError(f"{dataset} holds features: only images can be checked")
    with image_work(messages()):
        report = inspect(source.kind, source.target, split, root)
    if as_json:
        print_json({"dataset": dataset, **as_document(report)})
    else:
        show_report(report, out())
    if report.broken:
        raise typer.Exit(DataError.exit_code)
