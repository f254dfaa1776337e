"""The server's side: no images, only words and prompts; every round is in the run folder."""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from focoop.clip import Backbone
from focoop.config import RunConfig
from focoop.errors import ConfigError, FederationError
from focoop.federation import rounded
from focoop.federation import start as first_state
from focoop.flower.identity import Registry, Site
from focoop.flower.journal import Journal
from focoop.flower.server import farewell
from focoop.flower.server.facts import Facts
from focoop.flower.server.replies import PAUSES, Pauses
from focoop.flower.server.roster import Roster
from focoop.flower.server.secure_rounds import SecureStrategy
from focoop.flower.server.strategy import PromptStrategy
from focoop.flower.settings import TRACK, ServerSettings, listed, run_config, server_settings
from focoop.methods import Method, Params, Server, Task, create, lookup
from focoop.runs import Client, Names, RunFolder, collect, run_log, start
from focoop.scenario import make_task, open_backbone, task_words
from focoop.tracking import Hooks, as_hooks

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run configuration describes.

    Args:
        grid: Flower's way to the nodes.
        context: The app's context.
    """
    track = listed(os.environ.get(TRACK, ""))
    settings = server_settings(context.run_config)
    run_federation(grid, run_config(context.run_config), settings, track=track)


def run_federation(
    grid: Grid,
    config: RunConfig,
    settings: ServerSettings,
    pauses: Pauses = PAUSES,
    track: Sequence[str] = (),
) -> None:
    """Run a federation to its end; every round is committed to the run folder.

    Args:
        grid: the way to the sites.
        config: the run's configuration.
        settings: how the server behaves.
        pauses: how long it waits between two questions for replies.
        track: trackers that the run writes to, such as `tensorboard:folder`.

    Raises:
        ConfigError: if the method needs all images in one place, clients are to join late, or a
            tracker is unknown.
        FederationError: if too few sites answer, or what they send cannot be used.
    """
    if lookup(config.method.name).pools_data:
        raise ConfigError(
            f"{config.method.name} needs all clients' images in one place: use focoop run"
        )
    if config.federation.late_clients:
        raise ConfigError(
            "federation.late_clients is for simulated runs: a site may join a federation at any "
            "time, or use focoop run"
        )
    listeners = as_hooks(track)
    path = Path(settings.out) if settings.out else Path("runs") / "flower" / config.title
    folder = start(path, config, collect(config), resume=settings.resume, lengthen=True)
    if folder.status == "finished":
        return
    journal_path = Path(settings.journal) if settings.journal else None
    with (
        Hooks(folder, listeners, path.parent.name if path.name == "run" else "") as hooks,
        folder,
        Journal(journal_path) as journal,
        run_log(folder.path, folder.log),
    ):
        folder.log.info("the server of a federation starts")
        if folder.note:
            folder.log.warning("%s", folder.note)
        sites = Registry(Path(settings.keys)) if settings.keys else None
        after = max(folder.last_round(), 0)
        trains = lookup(config.method.name).trains
        journal.note(
            "began",
            reason=f"after round {after}",
            after=after,
            title=config.title,
            method=config.method.name,
            rounds=config.federation.rounds if trains else 0,
            private=config.privacy.noise > 0,
        )
        waits = settings.wait, settings.deadline
        roster = Roster(*waits, sites, journal, settings.rejoin)
        try:
            _rounds(grid, config, settings, folder, roster, pauses, hooks)
        except Exception as error:
            farewell.tell(grid, sorted(roster.online), error)
            raise
        folder.finish("finished", federation_refused=roster.refused)


def _rounds(
    grid: Grid,
    config: RunConfig,
    settings: ServerSettings,
    folder: RunFolder,
    roster: Roster,
    pauses: Pauses,
    hooks: Hooks,
) -> None:
    """Wait for the sites, then run every round that is left."""
    facts = roster.assemble(grid)
    method, task, backbone = server_side(config, facts)
    pin(folder, facts, backbone)
    folder.pin_revision(config.method.name, method.revision)
    words = task_words(config, backbone, facts.classes) if method.needs_ood else ()
    folder.keep_names(Names(facts.classes, clients_of(facts, roster.sites), words))
    hooks.begin()
    server, done = restored(folder, method, task)
    key = str(folder.manifest["federation"])
    kind = SecureStrategy if config.privacy.secure_sum else PromptStrategy
    strategy = kind(method, task, server, done, folder, roster, facts, settings, key, pauses, hooks)
    strategy.run(grid)


def server_side(config: RunConfig, facts: Facts) -> tuple[Method, Task, Backbone]:
    """Make the method and its task of the clients' class names; no dataset is opened.

    Args:
        config: The run's settings.
        facts: What all clients agree on.

    Returns:
        Method, task and backbone.

    Raises:
        FederationError: The method cannot run across sites.
    """
    method = create(config.method.name, config.method.settings)
    backbone = open_backbone(config)
    if backbone.fingerprint != facts.backbone:
        raise FederationError(
            "the clients' backbone is not the server's: give all machines the same weights"
        )
    task = make_task(config, backbone, facts.classes, method.needs_ood)
    return method, replace(task, frozen=method.prepare(task)), backbone


def pin(folder: RunFolder, facts: Facts, backbone: Backbone) -> None:
    """Note facts that a resumed run must find unchanged, and the name its clients know it by.

    Args:
        folder: The run folder.
        facts: What all clients agree on.
        backbone: The backbone.
    """
    folder.pin("backbone_fingerprint", backbone.fingerprint)
    folder.pin("federation_classes", list(facts.classes))
    folder.pin("federation_clients", facts.clients)
    folder.pin("federation", folder.manifest.get("federation") or secrets.token_hex(8))


def clients_of(facts: Facts, sites: Mapping[int, Site] | None) -> tuple[Client, ...]:
    """Return the clients as the run folder names them; what they hold is theirs to know.

    Args:
        facts: What all clients agree on.
        sites: Sites by number; None: sites have no keys.

    Returns:
        The clients.
    """
    known = sites or {}
    numbers = range(facts.clients)
    return tuple(Client(known[k].name if k in known else str(k)) for k in numbers)


def restored(folder: RunFolder, method: Method, task: Task) -> tuple[Server, int]:
    """Return the server after the last committed round, or at the start.

    Args:
        folder: The run folder.
        method: The method.
        task: Its task.

    Returns:
        The server and the next round's number.
    """
    committed = folder.resume_point()
    first = first_state(method, task, folder.config.seed).shared
    if committed is None:
        return Server(rounded(first, folder.config.federation.payload_down)), 0

    folder.agree_tensors(committed.shared, first)

    def here(params: Params) -> Params:
        return {name: value.to(task.device) for name, value in params.items()}

    return Server(here(committed.shared), here(committed.memory)), committed.round_index
