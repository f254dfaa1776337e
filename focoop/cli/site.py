"""`focoop site`: a site's images and its node. Flower is the engine (docs/reference/flower.md)."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from focoop.cli import completion
from focoop.cli.keys import need_flower, site_key
from focoop.cli.screen import (
    AsJson,
    Device,
    Overrides,
    Weights,
    load_config,
    messages,
    print_json,
    with_weights,
)
from focoop.cli.site_status import LogJson, site_status, speaker
from focoop.cli.site_trial import try_study
from focoop.errors import ConfigError

STATE, BUNDLE = Path("focoop-site"), ".focoop"


def class_names(given: str | None) -> str | None:
    """Return class names as settings have them, from a file where one is given.

    Args:
        given: The names or a file.

    Returns:
        The names.

    Raises:
        ConfigError: A file that is not there, or names with commas between them, was given.
    """
    if given is None:
        return None
    if os.path.isfile(given):  # Path's own raises where the names are too long for a path
        text = Path(given).read_text(encoding="utf-8-sig")
        lines = (line.strip() for line in text.splitlines())
        given = "; ".join(line for line in lines if line)
    elif ";" not in given and "," in given:
        raise ConfigError(f"--classes {given!r} is one name: separate names with ;, as 'cat; dog'")
    elif ";" not in given and (os.sep in given or re.search(r"\.\w{1,5}$", given)):
        raise ConfigError(f"--classes: no file {given}: one class name per line, or 'cat; dog'")
    return given


Keys = Annotated[Path, typer.Option("--keys", metavar="DIR", help="Folder of this party's keys.")]
DataSpec = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="KIND:PATH",
        help="The site's images, written as in data.id, such as folder:PATH.",
        autocompletion=completion.dataset,
    ),
]
Classes = Annotated[
    str,
    typer.Option(
        "--classes",
        metavar="FILE|NAMES",
        help="All classes of the run: a file with one per line, or 'cat; dog'.",
        callback=class_names,
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy", metavar="FILE", help="This site's policy; default policy.toml beside its keys."
    ),
]
app = typer.Typer(name="site", no_args_is_help=True, help="A site: its key, images and node.")
app.command("key")(site_key)
app.command("status")(site_status)


@app.command()
def check(
    data: DataSpec,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="BUNDLE.focoop|CONFIG.toml", help="This site's join bundle, or settings."
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            metavar="FILE|NAMES",
            help="All classes of the run: a file with one per line, or 'cat; dog'.",
            callback=class_names,
        ),
    ] = None,
    overrides: Overrides = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", help="This site's keys, to be checked too."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The site's state folder, to be checked too.")
    ] = None,
    policy: PolicyFile = None,
    weights: Weights = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Read and encode the site's images, try one step of training, and send nothing."""
    need_flower()
    from focoop.flower import check_keys, check_state

    if file is not None and file.suffix == BUNDLE:
        state = state or STATE
        keys, file, classes = _unpacked(file, state)
    if classes is None:
        raise ConfigError("name the classes of the run with --classes, or give a join bundle")
    config = load_config(file, with_weights(overrides, weights), device, own=True)
    if keys is not None:
        check_keys(keys)
    if state is not None:
        check_state(state)
    report = try_study(config, data, classes, keys, policy, show=not as_json)
    if as_json:
        print_json(report)


def _unpacked(bundle: Path, state: Path) -> tuple[Path, Path, str]:
    """(keys, settings, classes) of a join bundle, put into the state folder."""
    from focoop.flower import CLASSES, JOIN, RUN, settle

    keys = state / "keys"
    if bundle.exists() or not (keys / JOIN).is_file():  # it may be deleted once it was used
        keys = settle(bundle, state)
    return keys, keys / RUN, class_names(str(keys / CLASSES)) or ""


@app.command()
def join(
    server: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE.focoop|HOST:PORT", help="This site's join bundle, or the coordinator."
        ),
    ],
    data: DataSpec,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", help="This site's keys, without a bundle."),
    ] = None,
    state: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the site's private files are kept.")
    ] = STATE,
    policy: PolicyFile = None,
    weights: Weights = None,
    device: Annotated[str | None, typer.Option(help="Torch device of this site.")] = None,
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Send exact accuracies even though noise is added to updates."
        ),
    ] = False,
    log_json: LogJson = False,
) -> None:
    """Take part: start this site's node and answer until stopped (Ctrl-C).

    With a join bundle it first makes a key, shows the policy, checks images, sends the public key.

    Given again, the command finds all that done.
    """
    need_flower()
    from focoop.flower import check_keys, check_state, invitation_of
    from focoop.runs import LOCK, locked

    bundled = server.endswith(BUNDLE)
    if bundled == (keys is not None):
        raise ConfigError("give a join bundle, or HOST:PORT and --keys")
    check_state(state)
    with locked(state / LOCK, "this site has joined already; stop that command first"):
        if bundled:
            keys, file, classes = _unpacked(Path(server), state)
            server = invitation_of(keys).server
            _look(data)
            check_keys(keys)
            _check_apart(file, classes, keys, data, state, policy, device, weights)
        else:
            _look(data)
        assert keys is not None
        node = _node(keys, data, state, policy, device, weights, report)
        _stay(server, keys, node, state, bundled, log_json)


def _check_apart(
    file: Path,
    classes: str,
    keys: Path,
    data: str,
    state: Path,
    policy: Path | None,
    device: str | None,
    weights: Path | None,
) -> None:
    """`focoop site check` in a process of its own: what it has loaded is not kept while we wait."""
    words = [str(file), "--classes", classes, "--keys", str(keys), "--data", data]
    words += ["--state", str(state)]
    words += ["--policy", str(policy)] if policy else []
    words += ["--device", device] if device else []
    words += ["--weights", str(weights)] if weights else []
    done = subprocess.run([sys.executable, "-m", "focoop", "site", "check", *words])
    if done.returncode:
        raise typer.Exit(done.returncode)


def _node(
    keys: Path,
    data: str,
    state: Path,
    policy: Path | None,
    device: str | None,
    weights: Path | None,
    report: bool,
) -> dict[str, str | int | bool]:
    """What a site's node tells its app."""
    from focoop.flower import Policy, check_keys, policy_file, read_site

    check_keys(keys)
    own_policy = policy_file(policy, keys)
    Policy.read(own_policy)  # refuses what is no policy before anything is started
    site = read_site(keys)
    # The number is no secret and no claim: the server asks for a proof by the key.
    node: dict[str, str | int | bool] = {
        "partition-id": site.client,
        "name": site.name,
        "keys": str(keys.resolve()),
        "data": _absolute(data),
        "state": str(state.resolve()),
    }
    if own_policy is not None:
        node["policy"] = str(own_policy)
    if device:
        node["device"] = device
    if weights:
        node["weights"] = str(weights.resolve())
    if report:
        node["report"] = True
    return node


def _stay(
    server: str,
    keys: Path,
    node: dict[str, str | int | bool],
    state: Path,
    bundled: bool,
    log_json: bool,
) -> None:
    """Run the site's node until it is stopped; a site with a bundle sends its key first."""
    from focoop.flower import SiteWatch, keep, key_print, processes, send_key

    name, home = str(node["name"]), state / "flower"
    processes.own_folder(home)
    watch = SiteWatch(name, server, keys / "ca.crt", state, speaker(name, log_json))
    if bundled:
        watch.await_server()
        if send_key(keys):
            watch.say(f"the coordinator has this site's key, {key_print(_public(keys))}")
    keep(
        lambda: processes.supernode(
            keys.resolve(), server, processes.free_port(), node, processes.new_secret(home)
        ),
        processes.environment(home),
        home / "node.log",
        watch.say,
        watch,
    )


def _public(keys: Path) -> bytes:
    return (keys / "key.pub").read_bytes()


def _look(data: str) -> None:
    """Refuse images that are not there before the coordinator is bothered."""
    from focoop.data import OWN, Source, advice, open_images

    source = Source.parse(data)
    if source.kind in OWN:
        images = open_images(source.kind, source.target, "all")
        summary = f"{len(images)} images of {len(set(images.labels))} classes in {source.target}"
        messages().print(summary, markup=False, soft_wrap=True)
        for doubt in advice(source.kind, source.target):
            messages().print(f"warning: {doubt}", markup=False, soft_wrap=True)


def _absolute(data: str) -> str:
    """The same images for a process that runs elsewhere."""
    kind, colon, path = data.partition(":")
    local = kind in ("file", "folder", "clients", "csv")
    return f"{kind}:{Path(path).expanduser().resolve()}" if colon and local else data
