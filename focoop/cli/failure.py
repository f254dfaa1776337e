"""How a failing command says so: on standard error, with --json on standard output too."""

import json
import signal
import sys
from collections.abc import Sequence

import click
import typer

from focoop.cli import interruption
from focoop.cli.console import messages
from focoop.errors import FocoopError

INTERRUPTED = 130
# Every command's exit codes, shown below `focoop --help` and in docs/reference/cli.md.
EXIT_CODES = {
    0: "done",
    1: "a failed check, or an error of focoop itself",
    2: "wrong usage or setting",
    3: "data",
    4: "backbone",
    5: "method",
    6: "run folder",
    7: "federation",
    8: "an optional package is missing",
    INTERRUPTED: "interrupted",
    129: "stopped by SIGHUP, as when a terminal closes",
    143: "stopped by SIGTERM",
}
EPILOG = f"Exit codes: {', '.join(f'{code} {what}' for code, what in EXIT_CODES.items())}."


def report(error: BaseException, arguments: Sequence[str]) -> None:
    """Say what stopped a command, in the forms it was asked for.

    Args:
        error: what ended the command.
        arguments: the command line behind `focoop`; with `--json` in it, standard output gets the
            document `{"error": {"kind", "message", "exit_code"}}`.

    Raises:
        typer.Exit: for errors whose message is complete, with their exit code. Others return, and
            the caller raises them again.
    """
    code = exit_code(error)
    kind = "Interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
    if "--json" in arguments:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        document = {"error": {"kind": kind, "message": message, "exit_code": code}}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    if isinstance(error, FocoopError):
        messages().print(f"error: {error}")
        raise typer.Exit(code) from error
    if isinstance(error, OSError | UnicodeEncodeError):  # a full disk, a name no file can have, ...
        messages().print(f"error: {brief(error)}")
        raise typer.Exit(code) from error
    if isinstance(error, KeyboardInterrupt):
        if text := interruption.line(code - 128):
            typer.echo(text, err=True)
            interruption.mark_announced()
        raise typer.Exit(code) from error


def exit_code(error: BaseException) -> int:
    """Return the exit code that an error ends a command with.

    Args:
        error: The error.

    Returns:
        The code.
    """
    if isinstance(error, FocoopError | click.ClickException):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 128 + getattr(error, "signum", signal.SIGINT)
    return 1


def brief(error: OSError | UnicodeEncodeError) -> str:
    """Say what the system refused.

    Args:
        error: The system's error.

    Returns:
        The reason and the file it is about, without an error number.
    """
    if isinstance(error, UnicodeEncodeError):
        return f"the name {error.object[:200]!r} holds characters that this system cannot write"
    reason = error.strerror or str(error)
    name = "" if error.filename is None else f": {str(error.filename)[:200]!r}"
    return f"{reason}{name}"
