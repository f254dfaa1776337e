"""Commands across machines: keys, site, coordinator. Flower is the engine (docs/flower.md)."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focoop.cli.screen import AsJson, ConfigFile, Overrides, load_config, messages, out, print_json
from focoop.errors import ConfigError

if TYPE_CHECKING:
    from focoop.schema import RunConfig

Keys = Annotated[Path, typer.Option("--keys", metavar="DIR", help="Folder of this party's keys.")]
DataSpec = Annotated[
    str, typer.Option("--data", metavar="KIND:PATH", help="The site's images, as in data.id.")
]
Classes = Annotated[
    str,
    typer.Option("--classes", metavar="NAMES", help="All classes of the run, as 'cat; dog'."),
]
app = typer.Typer(name="site", no_args_is_help=True, help="A site: check its images, take part.")
START_SECONDS = 120.0


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    hosts: Annotated[
        list[str], typer.Option("--host", help="Name or address of the server; may be repeated.")
    ],
    sites: Annotated[list[str], typer.Option("--site", help="A site's name; may be repeated.")],
) -> None:
    """Make a federation's keys: an authority, the server's certificate, one key per site."""
    _flower()
    from focoop.flower.keys import make_keys

    make_keys(folder, hosts, sites)
    console = out()
    console.print(f"keys in {folder}; give each site its folder and nothing else:", markup=False)
    for name in sites:
        console.print(f"  {folder / 'sites' / name}", markup=False, soft_wrap=True)


@app.command()
def check(
    data: DataSpec,
    classes: Classes,
    file: ConfigFile = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Read and encode the site's images as a run would, and send nothing."""
    _flower()
    from focoop.flower.party import _own_scenario
    from focoop.flower.settings import listed

    config = load_config(file, overrides, None)
    scenario = _own_scenario(config, data, tuple(listed(classes)))
    counts = scenario.split.counts()[0]
    found: dict[str, Any] = {
        "train": int(counts.sum()),
        "test": len(scenario.split.test_index[0]),
        "classes": {
            name: int(count)
            for name, count in zip(scenario.task.classes, counts, strict=True)
            if count
        },
        "backbone": scenario.backbone.fingerprint,
    }
    if as_json:
        return print_json(found)
    console = out()
    console.print(f"{found['train']} training and {found['test']} test images", markup=False)
    for name, count in found["classes"].items():
        console.print(f"  {count:6d}  {name}", markup=False)
    return None


@app.command()
def join(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The coordinator.")],
    keys: Keys,
    client: Annotated[int, typer.Option(help="This site's number, from 0.")],
    clients: Annotated[int, typer.Option(help="How many sites there are.")],
    data: DataSpec,
    name: Annotated[str, typer.Option(help="This site's name in logs.")] = "",
    state: Annotated[
        Path, typer.Option(metavar="DIR", help="Where private prompts are kept.")
    ] = Path("focoop-site"),
    device: Annotated[str | None, typer.Option(help="Torch device of this site.")] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Send exact accuracies although updates are noised.")
    ] = False,
) -> None:
    """Take part: start this site's node and answer until stopped (Ctrl-C)."""
    _flower()
    from focoop.flower import launch

    node: dict[str, str | int | bool] = {
        "partition-id": client,
        "num-partitions": clients,
        "name": name or keys.name,
        "data": _absolute(data),
        "state": str(state.resolve()),
    }
    if device:
        node["device"] = device
    if report:
        node["report"] = True
    command = launch.supernode(keys, server, _free_port(), node)
    # This process becomes the node: signals and the exit code are its own.
    os.execve(command[0], command, launch.environment(state / "flower"))


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
    deadline: Annotated[float, typer.Option(help="Seconds a site has to answer.")] = 3600.0,
    wait: Annotated[float, typer.Option(help="Seconds to wait for sites to connect.")] = 600.0,
) -> None:
    """Serve a federation: start the server, let the sites in, run to the end, show each round."""
    _flower()
    from focoop.config import to_flat
    from focoop.flower import launch
    from focoop.flower.settings import server_settings

    config = load_config(file, overrides, None)
    path = (folder or Path("runs") / config.title).resolve()
    told = {"quorum": quorum, "deadline": deadline, "wait": wait, "resume": resume}
    settings = {**to_flat(config), **told, "classes": classes, "out": str(path)}
    server_settings(settings)  # refuses before anything is started
    home = path.with_name(f"{path.name}-flower")
    environment = launch.environment(home)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # then the server ends with it
    address = f"{host}:{port}"
    with open(home / "superlink.log", "ab") as log:
        command = launch.superlink(keys.resolve(), host, port, home.resolve() / "superlink.db")
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        launch.connect(home, address, keys / "ca.crt")
        launch.await_server(address, keys / "ca.crt", START_SECONDS)
        for public in sorted(keys.glob("sites/*/key.pub")):
            launch.admit(home, public, public.parent.name)
        messages().print(f"listening on {address}; waiting for sites", markup=False)
        number = launch.submit(home, settings)
        _show(home, number, path, config)
    finally:
        launch.stop([process])


def _show(home: Path, number: str, path: Path, config: "RunConfig") -> None:
    """One line per committed round while the run goes on; raises if it did not complete."""
    from focoop.errors import RunError
    from focoop.flower import launch
    from focoop.runs import RunFolder

    console, shown = out(), -1
    while True:
        state, details = launch.status(home, number)
        try:
            rounds = RunFolder.open(path).manifest.get("rounds", [])
        except RunError:
            rounds = []
        for entry in (entry for entry in rounds if entry["round"] > shown):
            shown = entry["round"]
            left_out = "".join(f"; {n}: {why}" for n, why in entry.get("refused", {}).items())
            answered = f", {len(entry['accepted'])} updates{left_out}" if shown else ""
            total = config.federation.rounds
            console.print(f"round {shown}/{total}{answered}", markup=False, soft_wrap=True)
        if state.startswith(launch.ENDED):
            launch.check(number, state, details)
            return
        time.sleep(3.0)


def _absolute(data: str) -> str:
    """The same images for a process that runs elsewhere."""
    kind, colon, path = data.partition(":")
    local = kind in ("file", "folder", "clients", "csv")
    return f"{kind}:{Path(path).expanduser().resolve()}" if colon and local else data


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _flower() -> None:
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("this needs Flower: pip install 'focoop[flower]'") from error
