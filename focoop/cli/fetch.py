"""Commands that get public datasets and look through images."""

from pathlib import Path
from typing import Annotated

import typer

from focoop.cli.screen import (
    AsJson,
    download_progress,
    image_work,
    messages,
    out,
    print_json,
)
from focoop.errors import ConfigError, DataError

Root = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of public datasets; default $FOCOOP_DATA, the cache."),
]


def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="See focoop data list.")],
    root: Root = None,
) -> None:
    """Download public datasets: resumed where a download broke off, checked, then unpacked."""
    from focoop.data.fetch import fetch as get
    from focoop.data.registry import lookup

    console = messages()
    for name in names:
        dataset = lookup(name)
        console.print(f"{dataset.title}: {dataset.page}", markup=False)
        console.print(f"licence: {dataset.licence}", markup=False)
        with download_progress(console) as progress:
            base = get(name, root, progress)
        out().print(f"{name}: {base}", markup=False, soft_wrap=True)


def check(
    dataset: Annotated[str, typer.Argument(help="A dataset of your own, as data.id takes it.")],
    split: Annotated[str, typer.Option(help="A split, or all.")] = "all",
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Open every image of a dataset and list those that cannot be read; exit code 3 if any."""
    from focoop.data.registry import read
    from focoop.data.sound import broken
    from focoop.data.sources import doubts, open_images
    from focoop.features import NAMED, Source

    source = Source.parse(dataset)
    if source.kind in ("demo", "file"):
        raise ConfigError(f"{dataset} holds features: only images can be checked")
    if source.kind == NAMED:
        images = read(source.target, split, root)
    else:
        images = open_images(source.kind, source.target, split, root=root, check=False)
    with image_work(messages()):
        bad = broken(images)
    doubtful = doubts(source.kind, source.target)
    if as_json:
        found = {"dataset": dataset, "images": len(images), "broken": bad, "warnings": doubtful}
        print_json(found)
    else:
        console = out()
        for told in doubtful:
            console.print(f"warning: {told}", markup=False, soft_wrap=True)
        for file, reason in bad.items():
            console.print(f"{images.root / file}: {reason}", markup=False, soft_wrap=True)
        console.print(
            f"{len(images)} images, {len(images.classes)} classes, {len(bad)} cannot be read",
            markup=False,
        )
    if bad:
        raise typer.Exit(DataError.exit_code)
