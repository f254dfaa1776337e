"""The command line: `focoop run`, `evaluate`, `compare`, `tune`, `encode`, `data`, `demo`, ...

Results go to standard output, messages to standard error. Exit codes: `failure.EXIT_CODES`.
"""

import os
import sys
import warnings
from typing import Annotated

import typer

from focoop import __version__
from focoop.cli import (
    calibrate,
    compare,
    completion,
    coordinator,
    data,
    demo,
    export,
    federation,
    info,
    interruption,
    keys,
    model,
    negatives,
    paper,
    predict,
    report,
    run,
    serve,
    site,
    tune,
)
from focoop.cli.console import messages
from focoop.cli.failure import EPILOG
from focoop.cli.output import failed_output, open_outputs
from focoop.cli.screen import Commands

__all__ = ["app", "main"]

app = typer.Typer(
    name="focoop",
    cls=Commands,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
app.add_typer(site.app, name="site")
app.add_typer(federation.app, name="federation")
app.add_typer(model.app, name="model")
app.command()(run.run)
app.command()(run.evaluate)
app.command()(calibrate.calibrate)
app.command()(predict.predict)
app.command()(export.export)
app.command()(demo.demo)
app.command()(compare.compare)
app.command()(tune.tune)
app.command()(report.report)
app.command()(paper.paper)
app.command()(data.encode)
app.command()(negatives.negatives)
app.command()(serve.serve)
app.command()(keys.keys)
app.command()(coordinator.coordinator)
app.command()(info.methods)
app.command()(info.config)
app.command("runs")(info.runs)
app.command()(info.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"focoop {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Learn prompts for a frozen CLIP together, without sharing images, and detect what is foreign.

    Start with: focoop demo

    Let the Tab key complete settings, methods and datasets: focoop --install-completion
    """


def _warned(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as people read it, without the line of code that gave it."""
    messages().print(f"warning: {message}")


def main() -> None:
    """Entry point of the `focoop` command."""
    warnings.showwarning = _warned
    open_outputs()
    code: int | str | None = 0
    try:
        with completion.bash_words(os.environ):
            app(prog_name="focoop")  # also as python -m focoop, so that completion knows its name
    except SystemExit as end:
        code = end.code
    if reason := failed_output():
        messages().print(f"error: standard output could not be written: {reason}")
        code = code or 1
    if stopped := interruption.received():
        interruption.leave(stopped)  # ending threads and libraries may take long
    sys.exit(code)
