"""`focoop predict`: ask a trained model about image files."""

import csv
import glob
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focoop.cli.calibrate import OneClient
from focoop.cli.screen import AsJson, Device, Weights, image_work, messages, out, print_json
from focoop.errors import ConfigError, DataError

if TYPE_CHECKING:
    from focoop.predict import Model, Picture, Prediction, Predictions

STDIN = "-"
PIPED = "stdin"  # the name of an image that is piped in


def predict(
    path: Annotated[
        Path, typer.Argument(metavar="RUN|MODEL", help="Run folder or exported model.")
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Files, folders or patterns; - reads names, or one image, from standard input.",
        ),
    ],
    client: OneClient = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to list for each image.")] = 5,
    open_share: Annotated[
        str | None,
        typer.Option(
            metavar="0..1|auto",
            help="How much to expect other clients' classes: 0 only own classes, 1 all alike, auto "
            "estimated from these images.",
        ),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a heat map of each image into this folder."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a CSV table.")] = False,
    weights: Weights = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Say of each image: one of the client's classes, another client's class, or unknown.

    Files that cannot be read are named on standard error and left out; the exit code is then 3.
    """
    from focoop.api import load_model

    if as_json and as_csv:
        raise ConfigError("choose one of --json and --csv")
    pictures = found_images(images, lambda: sys.stdin.buffer.read())
    with image_work(messages()):
        model = load_model(path, client, device=device, weights=weights)
        _warn_uncalibrated(model, path)
        broken: dict[str, str] = {}
        answers = model.predict(
            pictures,
            open_share=_share(open_share),
            top=top,
            explain=explain is not None,
            on_broken=lambda source, error: broken.update({source: str(error)}),
        )
    if explain is not None:
        write_maps(answers, pictures, explain)
    _show(answers, broken, model, as_json, as_csv)
    for reason in broken.values():
        messages().print(f"skipped: {reason}")
    if broken:
        raise typer.Exit(DataError.exit_code)


def _share(text: str | None) -> float | str | None:
    """A position of the dial as the model takes it: texts that are no number stay texts."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def found_images(given: Sequence[str], stdin: Callable[[], bytes] = lambda: b"") -> list["Picture"]:
    """List the images that arguments mean, in their order.

    Args:
        given: Files, folders (all image files below, sorted), patterns, or `-`.
        stdin: Reads lines of names, or the bytes of one image; called where `-` is given.

    Returns:
        The images, not read yet; a name without a file stays, so that it is reported.

    Raises:
        DataError: Nothing was found, or a folder is a model.
    """
    from focoop.predict import Picture

    found: list[Picture] = []
    for name in given:
        if name != STDIN:
            found += _files(name)
            continue
        content = stdin()
        if b"\0" in content[:4096]:  # no name has such a byte, and every image file has some
            found.append(Picture(PIPED, content))
        else:
            for line in os.fsdecode(content).splitlines():
                found += _files(line) if line else []
    if not found:
        raise DataError(f"no image was found in {', '.join(given)}")
    return found


def _files(name: str) -> list["Picture"]:
    """The files that a name means."""
    from focoop.data import image_files
    from focoop.predict import Picture

    place, names = Path(name).expanduser(), [name]
    if (place / "model.safetensors").is_file():
        raise DataError(f"{name} is a model, not images: ask one model at a time")
    if place.is_dir():
        names = [str(file) for file in image_files(place)]
    elif not place.exists() and glob.has_magic(name):
        matches = sorted(glob.glob(str(place), recursive=True))
        names = [match for match in matches if Path(match).is_file()]
    return [Picture(one, one) for one in names]


def write_maps(answers: "Predictions", pictures: Sequence["Picture"], folder: Path) -> None:
    """Write the heat maps of answers as PNG files.

    Args:
        answers: Answers with heat maps.
        pictures: The images, by whose names the answers are known.
        folder: Where to write `0000-NAME.png`, numbered as the answers are.

    Raises:
        DataError: The folder cannot be written.
    """
    from focoop.predict import overlay

    named = {picture.source: picture for picture in pictures}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, answer in enumerate(answers):
            assert answer.heat_map is not None
            drawn = overlay(named[answer.source].rgb(), answer.heat_map)
            drawn.save(folder / f"{number:04d}-{Path(answer.source).stem}.png")
    except OSError as error:
        raise DataError(f"cannot write heat maps to {folder}: {error}") from error


def _warn_uncalibrated(model: "Model", path: Path) -> None:
    from focoop.runs import CONFIG

    # A run has images set aside; an exported model has none.
    images = "" if (path / CONFIG).is_file() else " --images folder:PATH --client K"
    command = f"focoop calibrate {path}{images}"
    if model.calibration is None or model.calibration.at(model.client) is None:
        messages().print(
            "note: this model is not calibrated, so it never answers unknown; calibrate it: "
            f"{command}"
        )
    elif why := model.calibration.never_unknown(model.client):
        messages().print(f"note: {why}: {command}, with a lower --keep or more images")


def _show(
    answers: "Predictions", broken: dict[str, str], model: "Model", as_json: bool, as_csv: bool
) -> None:
    """Print answers in the form that was asked for."""
    from focoop.predict import COLUMNS, flat

    asked = "global" if model.client is None else model.clients[model.client]
    if as_json:
        print_json(
            {
                "client": asked,
                "predictions": [answer.to_dict() for answer in answers],
                "broken": [{"source": name, "error": why} for name, why in broken.items()],
            }
        )
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS)
        writer.writeheader()
        writer.writerows(flat(answer) for answer in answers)
    elif answers:
        _table(answers)


def _table(answers: "Predictions") -> None:
    from focoop.cli.display import Column, Sheet

    titles = ("image", "verdict", "class", "probability", "p-value", "held by", "then")
    right = ("probability", "p-value")
    rows = [_row(answer) for answer in answers]
    out().print(Sheet([Column(title, right=title in right) for title in titles], rows))


def _row(answer: "Prediction") -> list[str]:
    best, rest = answer.top[0], answer.top[1:3]
    named = answer.label is not None
    return [
        answer.source,
        answer.verdict,
        answer.label or "",
        f"{100 * best.probability:.1f}%" if named else "",
        "" if answer.p_value is None else f"{answer.p_value:.3f}",
        ", ".join([*best.holders[:3], *["..."] * (len(best.holders) > 3)]) if named else "",
        ", ".join(f"{one.label} {100 * one.probability:.0f}%" for one in rest) if named else "",
    ]
