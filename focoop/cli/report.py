"""The command `report`: one HTML file about any number of runs."""

from pathlib import Path
from typing import Annotated

import typer

from focoop.cli.fetch import Features
from focoop.cli.screen import Weights, messages, out


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders with runs below them.")
    ],
    file: Annotated[
        Path, typer.Option("--out", "-o", help="The HTML file; an old one is replaced.")
    ] = Path("report.html"),
    details: Annotated[
        bool,
        typer.Option(
            help="Load one model per method, for histograms, ROC curves and nearest names."
        ),
    ] = True,
    features: Features = None,
    weights: Weights = None,
) -> None:
    """Write one self-contained HTML file about runs: tables, tests, curves and pictures.

    Example: focoop report runs/compare --out report.html
    """
    from focoop.api import write_report

    told = messages().print
    path = write_report(
        runs, file, details=details, told=lambda text: told(text, style="dim"), weights=weights
    )
    out().print(f"{path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser", style="bold")
