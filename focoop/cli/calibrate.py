"""`focoop calibrate`: find the score above which a run's models answer `unknown`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focoop.cli.screen import AsJson, Device, Weights, image_work, messages, out, print_json

if TYPE_CHECKING:
    from focoop.cli.display import Sheet
    from focoop.predict import Calibration

OneClient = Annotated[
    str | None, typer.Option("--client", metavar="K", help="A client's number or name, or global.")
]


def calibrate(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|MODEL", help="Run folder or exported model.")
    ],
    client: OneClient = None,
    keep: Annotated[
        float, typer.Option(help="Share of images of known classes that are kept.")
    ] = 0.95,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Other labelled images of the client to calibrate on: folder:PATH.",
        ),
    ] = None,
    from_test: Annotated[
        bool, typer.Option("--from-test", help="Calibrate on half of the test images.")
    ] = False,
    weights: Weights = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Find the score above which an image is called unknown (split conformal prediction).

    A new image of a known class is kept with the probability --keep, or more.

    It needs images used neither for training nor for tests (data.calibration).

    A client with too few of them gets the threshold of all clients together.
    """
    from focoop.api import calibrate as find
    from focoop.api import load_model, open_run

    with image_work(messages()):
        found = find(
            folder,
            keep=keep,
            client=client,
            images=images,
            from_test=from_test,
            device=device,
            weights=weights,
        )
    exported = (folder / "model.safetensors").is_file()
    names = load_model(folder).clients if exported else open_run(folder).client_names
    if as_json:
        return print_json(_document(folder, found, names))
    console = out()
    console.print(_table(found, names))
    for site in found.sites:
        if why := found.never_unknown(int(site) if site.isdecimal() else None):
            messages().print(f"warning: {_name(site, names)}: {why}", markup=False, soft_wrap=True)
    console.print("\nan image is unknown where its score is above the threshold")
    if any(one.measured for one in found.sites.values()):
        console.print(
            f"on test images, where {100 * found.keep:g}% was asked for: kept, images of known "
            "classes that are not unknown; covered, images whose class is in their class set; "
            "set size, classes in it"
        )
    console.print(f"ask it: focoop predict {folder} IMAGES...", soft_wrap=True)
    return None


def _name(site: str, names: tuple[str, ...]) -> str:
    return names[int(site)] if site.isdecimal() and int(site) < len(names) else site


def _document(folder: Path, found: "Calibration", names: tuple[str, ...]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "folder": str(folder),
        "keep": found.keep,
        "round": found.round_index,
        "clients": [
            {
                "client": site,
                "name": _name(site, names),
                "images": one.images,
                "source": one.source,
                "threshold": one.threshold,
                "class_threshold": one.class_threshold,
                "test": dict(one.measured),
            }
            for site, one in found.sites.items()
        ],
    }


def _table(found: "Calibration", names: tuple[str, ...]) -> "Sheet":
    from focoop.cli.display import Column, Sheet

    titles = ("client", "images", "from", "threshold", "kept", "covered", "set size")
    rows = []
    for site, one in found.sites.items():
        shares = [
            f"{100 * one.measured[key]:.1f}" if key in one.measured else ""
            for key in ("kept", "covered")
        ]
        size = f"{one.measured['set_size']:.1f}" if "set_size" in one.measured else ""
        source = one.source if one.source == "own" else f"pool of {one.scores.count}"
        limit = "none" if one.threshold is None else f"{one.threshold:.4f}"
        rows.append([_name(site, names), str(one.images), source, limit, *shares, size])
    return Sheet(
        [Column(title, right=place not in (0, 2)) for place, title in enumerate(titles)], rows
    )
