"""`focoop model`: change a model without training, or compare it with its checksums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focoop.cli.screen import Weights, messages, out
from focoop.errors import RunError

if TYPE_CHECKING:
    from focoop.predict import Model

app = typer.Typer(
    help="Change classes or clients of a model without training, or check its files.",
    no_args_is_help=True,
)

Source = Annotated[Path, typer.Argument(metavar="MODEL", help="Exported model, or run folder.")]
Target = Annotated[
    Path,
    typer.Option(
        "--out", metavar="DIR", help="Folder of the new model; it must not exist or be empty."
    ),
]


@app.command("add-class")
def add_class(
    source: Source,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new class.")],
    target: Target,
    images: Annotated[
        list[str] | None,
        typer.Option(
            "--images",
            metavar="FILES",
            help="Images of it: a file, a folder or a pattern; may be given again. "
            "Without images the class is known by its name alone.",
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="K", help="A client that holds it.")
    ] = None,
    weights: Weights = None,
) -> None:
    """Add a class by its name alone, or by a few images."""
    from focoop.cli.predict import found_images

    model = _opened(source, target, weights)
    files = found_images(images) if images else None
    _written(model.with_class(name, files, client=client), target, model)


@app.command("drop-class")
def drop_class(
    source: Source,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The class.")],
    target: Target,
    weights: Weights = None,
) -> None:
    """Drop a class."""
    model = _opened(source, target, weights)
    _written(model.without_class(name), target, model)


@app.command("rename-class")
def rename_class(
    source: Source,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The class.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    target: Target,
    weights: Weights = None,
) -> None:
    """Rename a class; thresholds stay as they are."""
    model = _opened(source, target, weights)
    _written(model.renamed(name, new), target, model)


@app.command("add-client")
def add_client(
    source: Source,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new client.")],
    target: Target,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME", help="A class it holds; may be given again."),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            metavar="DATA",
            help="Its labelled images (folder:PATH); they are counted by class.",
        ),
    ] = None,
    weights: Weights = None,
) -> None:
    """Add a client that took no part: it gets the global model and a prior for its classes."""
    model = _opened(source, target, weights)
    _written(model.with_client(name, classes or (), images=images), target, model)
    messages().print(f"note: {name} is not calibrated, so it never answers unknown")


@app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="Exported model.")],
) -> None:
    """Compare all files of an exported model with their checksums, and open it."""
    from focoop.predict import CARD, check_sums, read_model

    whole = check_sums(folder)
    read_model(folder)  # refuses what this focoop would answer otherwise, as `predict` does
    if CARD not in whole:
        messages().print(f"note: {CARD} was edited since the model was exported")
    out().print(f"{folder}: {', '.join(whole)} as they were written; this focoop can use it")


def _opened(source: Path, target: Path, weights: Path | None) -> Model:
    from focoop.api import load_model

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target} is there already: choose another folder, nothing is overwritten")
    return load_model(source, weights=weights)


def _written(model: Model, target: Path, before: Model) -> None:
    model.save(target)
    if model.calibration is None:
        why = "the old model was not calibrated"
        if before.calibration is not None:
            why = "the change of classes changes all scores, so the old thresholds no longer hold"
        messages().print(
            f"note: the new model is not calibrated and never answers unknown: {why}; calibrate it "
            f"with focoop calibrate {target} --images folder:PATH --client K"
        )
    out().print(f"{target}: {len(model.classes)} classes, answers for {', '.join(model.sides[:8])}")
