"""The coordinator's status page beside its command: no page is no reason to stop a study."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from focoop.cli.screen import messages
from focoop.errors import FederationError

STATUS_PORT = 8090
StatusPort = Annotated[
    int, typer.Option(help="Port of the status page, on 127.0.0.1 only; 0: no page.")
]


@dataclass(frozen=True)
class DisplayOptions:
    """How a coordinator shows its run: its rounds, the port of its page, JSON or words."""

    rounds: int
    port: int = STATUS_PORT
    log_json: bool = False


@contextmanager
def shown_page(port: int, journal: Path, rounds: int, sites: Iterable[str]) -> Iterator[None]:
    """Serve the status page as long as the context lasts, and say where it is.

    Args:
        port: To listen on, at 127.0.0.1; 0: no page.
        journal: The federation's journal, which the page is made of.
        rounds: Rounds of the run.
        sites: Names of all sites that have keys.

    Yields:
        Nothing.
    """
    if not port:
        yield
        return
    from focoop.flower import LiveBoard, status_page

    console, board = messages(), LiveBoard(journal, rounds, tuple(sites))
    with ExitStack() as stack:
        try:
            address = stack.enter_context(status_page(board.snapshot, port))
            console.print(f"status page: {address}", markup=False, soft_wrap=True)
        except FederationError as error:
            console.print(f"warning: {error}", markup=False, soft_wrap=True)
        yield
