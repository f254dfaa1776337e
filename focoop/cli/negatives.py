"""`focoop negatives`: the words that would name a run's OOD prompts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focoop.cli import completion
from focoop.cli.screen import (
    AsJson,
    ConfigFile,
    Device,
    Overrides,
    Weights,
    image_work,
    load_config,
    messages,
    out,
    print_json,
    with_weights,
)

if TYPE_CHECKING:
    from focoop.config import DataConfig


def negatives(
    dataset: Annotated[
        str,
        typer.Argument(help="ID dataset, as in data.id.", autocompletion=completion.dataset),
    ],
    file: ConfigFile = None,
    overrides: Overrides = None,
    device: Device = None,
    weights: Weights = None,
    as_json: AsJson = False,
) -> None:
    """Show the words mined for a dataset's classes, with their distances from them.

    Settings: negatives.count, .quantile, .band, .adjective_share, data.drop_classes, backbone.name.

    negatives.words is a text file of your own candidates.
    """
    from focoop.cli.display import Column, Sheet
    from focoop.clip import load_backbone
    from focoop.scenario import mine_negatives

    given = with_weights(overrides, weights) or []
    config = load_config(file, [f"data.id={dataset}", *given], device)
    classes = _classes(config.data)
    weights = Path(config.backbone.weights) if config.backbone.weights else None
    backbone = load_backbone(config.backbone.name, weights=weights, device=config.backbone.device)
    with image_work(messages()):
        negative_words = mine_negatives(config, backbone, classes)
    rows: list[dict[str, Any]] = [
        {"word": word, "kind": kind, "distance": round(distance, 6)}
        for word, kind, distance in zip(
            negative_words.words,
            negative_words.kinds,
            negative_words.distances.tolist(),
            strict=True,
        )
    ]
    if as_json:
        return print_json(
            {
                "dataset": config.data.id,
                "classes": list(classes),
                "backbone": backbone.name,
                "quantile": config.negatives.quantile,
                "negatives": rows,
            }
        )
    columns = [Column("slot", True), Column("word"), Column("kind"), Column("distance", True)]
    cells = [
        [str(slot), row["word"], row["kind"], f"{row['distance']:.4f}"]
        for slot, row in enumerate(rows)
    ]
    console = out()
    console.print(
        f"{config.data.id}: {len(rows)} words far from {len(classes)} classes for {backbone.name}; "
        f"distance: minus the {config.negatives.quantile:g} quantile of cosines to the classes",
        markup=False,
        soft_wrap=True,
    )
    console.print(Sheet(columns, cells))
    return None


def _classes(data: "DataConfig") -> tuple[str, ...]:
    """Class names of the ID dataset; no image is encoded, and no file of a folder is opened."""
    from focoop.data import Source, open_images, read_folder, ready_features
    from focoop.features import open_features

    source = Source.parse(data.id)
    if source.kind in ("demo", "file") or ready_features.find(source) is not None:
        return open_features(data.id, "all", drop_classes=data.drop_classes).classes
    if source.kind == "folder":
        images = read_folder(Path(source.target).expanduser(), "all")
    else:
        images = open_images(source.kind, source.target, "all", root=data.root or None)
    return images.without_classes(data.drop_classes).classes
