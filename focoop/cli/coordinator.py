"""`focoop coordinator`: the server of a federation, from its keys to the last round."""

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focoop.cli.keys import need_flower
from focoop.cli.live import Watch
from focoop.cli.screen import ConfigFile, Overrides, load_config, messages, out
from focoop.cli.site import Classes, Keys
from focoop.errors import FederationError, RunError

if TYPE_CHECKING:
    from subprocess import Popen

START_SECONDS = 120.0
LOCK_SECONDS = 30.0  # a server process that lost its SuperLink is gone by then
EVERY, ASK_EVERY = 1.0, 20.0  # seconds: reading the journal is cheap, `flwr list` is not
ANYWHERE = ("0.0.0.0", "::", "[::]")


def coordinator(
    keys: Keys,
    classes: Classes,
    file: ConfigFile = None,
    overrides: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Run folder; default runs/TITLE.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in it.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    quorum: Annotated[float, typer.Option(help="Share of clients that must answer.")] = 0.5,
    spare: Annotated[
        float, typer.Option(help="Share of clients asked beyond those a round needs.")
    ] = 0.0,
    deadline: Annotated[float, typer.Option(help="Seconds a site has to answer.")] = 3600.0,
    wait: Annotated[float, typer.Option(help="Seconds to wait for sites at the start.")] = 600.0,
    rejoin: Annotated[
        float, typer.Option(help="Seconds a round waits for a site that has gone.")
    ] = 60.0,
) -> None:
    """Serve a federation: start the server, let the sites in, run to the end, show each round."""
    need_flower()
    from focoop.config import to_flat
    from focoop.flower import launch
    from focoop.flower.identity import registered
    from focoop.flower.settings import server_settings

    config = load_config(file, overrides, None, own=True)
    path = (folder or Path("runs") / config.title).resolve()
    home = path.with_name(f"{path.name}-flower")
    sites = registered(keys)
    settings: dict[str, bool | int | float | str] = {
        **to_flat(config),
        **{"quorum": quorum, "spare": spare, "deadline": deadline, "wait": wait},
        **{"rejoin": rejoin, "resume": resume, "journal": str(home / "journal.jsonl")},
        **{"keys": str(keys.resolve()), "sites": len(sites), "classes": classes, "out": str(path)},
    }
    server_settings(settings)  # refuses before anything is started
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # then the server ends with it
    address = f"{'127.0.0.1' if host in ANYWHERE else host}:{port}"
    command = launch.superlink(keys.resolve(), host, port, home.resolve() / "superlink.db")
    log = home / "superlink.log"
    process = launch.begin(command, launch.environment(home), log)
    try:
        launch.connect(home, address, keys / "ca.crt")
        launch.await_server(address, keys / "ca.crt", START_SECONDS, process, log)
        launch.end_runs(home)  # of a server that was killed: sites must not go on with their orders
        places = {site.name: keys / "sites" / site.name for site in sites.values()}
        launch.admit_all(home, {name: place / "key.pub" for name, place in places.items()})
        messages().print(f"listening on {host}:{port}; waiting for sites", markup=False)
        _await_free(path)
        with Watch(out(), config.federation.rounds, places) as watch:
            _follow(home, launch.submit(home, settings), path, watch, process)
    finally:
        launch.stop([process])


def _follow(home: Path, number: str, path: Path, watch: Watch, process: "Popen[bytes]") -> None:
    """Show what the journal says until the run ends; raises if it did not complete."""
    from focoop.flower import launch
    from focoop.flower.journal import events

    journal, asked = home / "journal.jsonl", time.monotonic()
    seen, begun, over = sum(1 for _ in events(journal)), False, False
    while True:
        new = list(events(journal))[seen:]
        seen += len(new)
        watch.show(new)
        if process.poll() is not None:
            raise FederationError(
                f"the SuperLink ended ({launch.ended(process)}, see {home / 'superlink.log'}): "
                "continue with --resume; sites come back by themselves"
            )
        begun |= any(event["event"] == "began" for event in new)
        over |= any(event["event"] == "ended" for event in new)
        if begun and not over and _status(path) == "killed":
            raise FederationError(
                f"the server's process died in a round (see {home / 'superlink.log'}): continue "
                "with --resume; sites come back by themselves"
            )
        if over or time.monotonic() > asked + ASK_EVERY:
            state, details = launch.status(home, number)
            if state.startswith(launch.ENDED):
                return launch.check(number, state, details)
            asked = time.monotonic()
        time.sleep(EVERY)


def _await_free(path: Path) -> None:
    """Wait for a server process that has lost its SuperLink to notice."""
    until = time.monotonic() + LOCK_SECONDS
    while _status(path) == "running" and time.monotonic() < until:
        time.sleep(EVERY)


def _status(path: Path) -> str:
    from focoop.runs import RunFolder

    try:
        return RunFolder.open(path).status
    except RunError:
        return "absent"
