"""`focoop coordinator`: the server of a federation, from its keys to the last round."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focoop.cli.keys import need_flower
from focoop.cli.live_table import Watch
from focoop.cli.screen import (
    ConfigFile,
    Overrides,
    RunOut,
    Track,
    Weights,
    load_config,
    messages,
    out,
    with_weights,
)
from focoop.cli.site import Classes, Keys
from focoop.cli.site_status import LogJson
from focoop.cli.status_page import STATUS_PORT, DisplayOptions, StatusPort, shown_page
from focoop.errors import FederationError, RunError

if TYPE_CHECKING:
    from focoop.config import RunConfig
    from focoop.flower import Served, Tail

LOCK_SECONDS = 30.0  # a server process that lost its SuperLink is gone by then


def coordinator(
    keys: Keys,
    classes: Classes,
    file: ConfigFile = None,
    overrides: Overrides = None,
    weights: Weights = None,
    folder: RunOut = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in it.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    quorum: Annotated[
        float, typer.Option(help="Share of clients that must answer in a round.")
    ] = 0.5,
    spare: Annotated[
        float, typer.Option(help="Share of extra clients asked beyond those a round needs.")
    ] = 0.0,
    deadline: Annotated[float, typer.Option(help="Seconds a site has to answer.")] = 3600.0,
    wait: Annotated[float, typer.Option(help="Seconds to wait for sites at the start.")] = 600.0,
    rejoin: Annotated[
        float, typer.Option(help="Seconds a round waits for a site that lost its connection.")
    ] = 60.0,
    status_port: StatusPort = STATUS_PORT,
    log_json: LogJson = False,
    track: Track = None,
) -> None:
    """Serve a federation: start the server, let the sites in, run to the end, show each round."""
    need_flower()
    config = load_config(file, with_weights(overrides, weights), None, own=True)
    path = (folder or Path("runs") / config.title).resolve()
    settings = study_settings(
        config,
        keys,
        classes,
        path,
        quorum=quorum,
        spare=spare,
        deadline=deadline,
        wait=wait,
        rejoin=rejoin,
        resume=resume,
    )
    display = DisplayOptions(config.federation.rounds, status_port, log_json)
    serve(keys, (host, port), path, settings, display, track=track or ())


def study_settings(
    config: "RunConfig", keys: Path, classes: str, path: Path, **server: float | bool
) -> dict[str, bool | int | float | str]:
    """Make all settings of a run for Flower; what cannot be used is refused before anything starts.

    Args:
        config: The study's settings.
        keys: The federation's keys.
        classes: Its class names, as `cat; dog`.
        path: The run folder.
        **server: How the server deals with its sites (`focoop.flower.settings`).

    Returns:
        Settings by name.
    """
    from focoop.config import to_flat
    from focoop.flower import numbered, server_settings

    journal = path.with_name(f"{path.name}-flower") / "journal.jsonl"
    places: dict[str, int | str] = {
        **{"journal": str(journal), "keys": str(keys.resolve()), "sites": len(numbered(keys))},
        **{"classes": classes, "out": str(path)},
    }
    settings = {**to_flat(config), **server, **places}
    server_settings(settings)
    return settings


def serve(
    keys: Path,
    where: tuple[str, int],
    path: Path,
    settings: dict[str, bool | int | float | str],
    display: DisplayOptions,
    again: str = "continue with --resume",
    track: Sequence[str] = (),
) -> None:
    """Serve the sites of `keys` at (host, port) and run `settings` to the end, in folder `path`.

    Args:
        keys: The federation's keys.
        where: Address and port to listen on.
        path: The run folder; Flower's files are beside it.
        settings: Those of `study_settings`.
        display: How many rounds it has, and how it is shown.
        again: What somebody should do after a failure.
        track: Trackers that the run writes to.
    """
    from focoop.flower import Tail, numbered, serving
    from focoop.tracking import as_hooks

    as_hooks(list(track))  # refused before anything starts

    home, console = path.with_name(f"{path.name}-flower"), messages()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    with serving(keys, *where, home, say, track) as served:
        say(f"listening on {where[0]}:{where[1]}; waiting for sites")
        _await_free(path)
        names, tail = list(numbered(keys).values()), Tail(home / "journal.jsonl")
        tail.new()  # of earlier runs
        with (
            shown_page(display.port, tail.path, display.rounds, names),
            Watch(out(), display.rounds, names, log_json=display.log_json) as watch,
        ):
            served = replace(served, again=again)
            follow(served, served.control.submit(settings), path, watch, tail)
    say(f"all rounds are done: {path}; every site that is connected has its model (site status)")
    say(f"ask the global model: focoop calibrate {path}, then focoop predict {path} IMAGES...")


def run_status(path: Path) -> str:
    """Return the status of the run in a folder.

    Args:
        path: The folder.

    Returns:
        The status; `absent` where there is no run.
    """
    from focoop.runs import RunFolder

    try:
        return RunFolder.open(path).status
    except RunError:
        return "absent"


@dataclass(frozen=True)
class Looks:
    """How a run is followed: what is asked, and seconds between two questions.

    Attributes:
        status: the status of the run in a folder.
        every: between two looks at the journal.
        ask_every: between two questions to the SuperLink.
    """

    status: Callable[[Path], str] = run_status
    every: float = 1.0
    ask_every: float = 20.0


LOOKS = Looks()


def follow(
    served: "Served",
    number: int,
    path: Path,
    watch: Watch,
    tail: "Tail",
    looks: Looks = LOOKS,
) -> None:
    """Show what the journal says to its last line, however the run ends.

    Args:
        served: The running server.
        number: Flower's number of the run.
        path: The run folder.
        watch: Shows events.
        tail: The journal's new events.
        looks: How often the journal, the run folder and the SuperLink are looked at.

    Raises:
        FederationError: Where it did not complete.
    """
    try:
        _until_ended(served, number, path, watch, tail, looks)
    finally:
        watch.show(tail.new())


def _until_ended(
    served: "Served", number: int, path: Path, watch: Watch, tail: "Tail", looks: Looks
) -> None:
    from focoop.flower import ENDED
    from focoop.flower import check as check_end

    home, asked = served.home, time.monotonic()
    begun, over = False, False
    while True:
        new = tail.new()
        watch.show(new)
        served.check()
        begun |= any(event["event"] == "began" for event in new)
        over |= any(event["event"] == "ended" for event in new)
        if begun and not over and looks.status(path) == "killed":
            raise FederationError(
                f"the server's process died in a round (see {home / 'server.log'}): "
                f"{served.again}; sites come back by themselves"
            )
        if over or time.monotonic() > asked + looks.ask_every:
            state, details = served.control.status(number)
            if state.startswith(ENDED):
                return check_end(number, state, details)
            asked = time.monotonic()
        time.sleep(looks.every)


def _await_free(path: Path) -> None:
    """Wait for a server process that has lost its SuperLink to notice."""
    until = time.monotonic() + LOCK_SECONDS
    while run_status(path) == "running" and time.monotonic() < until:
        time.sleep(1.0)
