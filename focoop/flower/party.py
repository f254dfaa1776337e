"""One client of a federation: its images, its model's parts and its private tensors on disk."""

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from flwr.app import Context

from focoop.clip.light import load_light
from focoop.config import config_hash
from focoop.errors import ConfigError, FederationError
from focoop.flower.records import Order
from focoop.flower.settings import listed, run_config, server_settings
from focoop.methods import lookup
from focoop.methods._base import Params
from focoop.privacy import secret_generator
from focoop.runstore import PrivateStore, dump
from focoop.scenario import Scenario, build
from focoop.schema import RunConfig
from focoop.seeds import torch_generator
from focoop.split import client_split
from focoop.tensorcache import cache_folder

STATE = "FOCOOP_STATE"
# Settings that say where things are on a machine, and so may differ from the run's.
PLACES = ("device", "weights", "root")


@dataclass(frozen=True)
class Party:
    """Client `client` of `clients`, as its Flower context describes it."""

    config: RunConfig
    client: int
    clients: int
    name: str
    state: Path
    data: str = ""
    classes: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    reports: bool = True
    keys: Path | None = None

    @classmethod
    def of(cls, context: Context) -> "Party":
        """From a node's own configuration and the run's."""
        node, settings = context.node_config, server_settings(context.run_config)
        try:
            client = int(node["partition-id"])
            clients = settings.sites or int(node["num-partitions"])
        except (KeyError, ValueError) as error:
            raise ConfigError(
                "start the node with --node-config 'partition-id=0 num-partitions=4', numbers of "
                "your own"
            ) from error
        if not 0 <= client < clients:
            raise ConfigError(f"there is no client {client} in a federation of {clients} clients")
        config = run_config(context.run_config)
        if lookup(config.method.name).pools_data:
            raise ConfigError(
                f"{config.method.name} needs all clients' images in one place: use focoop run"
            )
        name = str(node.get("name", f"client {client}"))
        state = node.get("state", os.environ.get(STATE, ""))
        root = Path(str(state)) if state else cache_folder(None, "federations")
        data, classes = str(node.get("data", "")), settings.classes
        if classes and not data:
            raise ConfigError(
                f"{name} must bring its own images to this run: start its node with "
                "--node-config 'data=\"folder:PATH\"'"
            )
        places = {key: str(node[key]) for key in PLACES if key in node}
        # Exact accuracies beside noised tensors would tell what the noise hides.
        reports = not (data and config.privacy.noise) or bool(node.get("report", False))
        names = tuple(listed(classes))
        keys = Path(str(node["keys"])) if "keys" in node else None
        return cls(config, client, clients, name, root, data, names, places, reports, keys)

    def check(self, order: Order) -> None:
        """Refuse an order of another configuration, which other versions of focoop would read."""
        own = config_hash(self.config)
        if order.config_hash != own:
            raise FederationError(
                f"{self.name} reads this run's settings as {own}, the server as "
                f"{order.config_hash}: install the same version of focoop on all machines"
            )

    def scenario(self, *, evaluation: bool = False) -> Scenario:
        """Task and images; the sets to evaluate on are only read for an evaluation."""
        config, here = self.config, self.places
        config = replace(
            config,
            data=replace(config.data, root=here.get("root", config.data.root)),
            backbone=replace(
                config.backbone,
                device=here.get("device", config.backbone.device),
                weights=here.get("weights", config.backbone.weights),
            ),
        )
        if not evaluation:
            config = replace(
                config, data=replace(config.data, corrupted=(), ood=(), validation_ood=())
            )
        if self.data:
            return own_scenario(config, self.data, self.classes, self.client, self.clients)
        found = _scenario(config)
        if found.num_clients != self.clients:
            raise ConfigError(
                f"the images are divided among {found.num_clients} clients, and there are "
                f"{self.clients} nodes: set partition.clients, or start as many nodes"
            )
        return found

    def noise(self, order: Order, received: Params) -> tuple[torch.Generator, torch.Generator]:
        """Generators of the round's noise and of that of the counts.

        A site with images of its own draws from its own secret. The received tensors are part of
        the name, so that a server that repeats a round with others does not get the same noise.
        """
        if not self.data:
            return (
                torch_generator(self.config.seed, "privacy", order.round_index, self.client),
                torch_generator(self.config.seed, "counts", self.client),
            )
        secret = own_secret(self.state)
        digest = hashlib.sha256(dump(received, {})).hexdigest()
        names = (order.key, self.client)
        return (
            secret_generator(secret, "privacy", *names, order.round_index, digest),
            secret_generator(secret, "counts", *names),
        )

    def store(self, order: Order, round_index: int) -> PrivateStore:
        """Private tensors up to `round_index`; each client has its own root, and may clear it."""
        return PrivateStore(self.state / order.key / f"{self.client:04d}", limit=round_index)


def own_secret(root: Path) -> bytes:
    """The site's secret, made when first asked for and readable by its owner alone."""
    path = root / "secret"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    found = path.read_bytes()
    if len(found) != 32:
        raise FederationError(f"{path} is damaged: remove it, and a new secret is made")
    return found


@lru_cache(maxsize=2)
def _scenario(config: RunConfig) -> Scenario:
    """Kept where one process answers many messages; on a site each message is a new process."""
    return build(config, load=load_light)


@lru_cache(maxsize=32)
def own_scenario(
    config: RunConfig, data: str, classes: tuple[str, ...], client: int = 0, clients: int = 1
) -> Scenario:
    """A site's own images as those of `client`, labelled by the run's classes.

    Corrupted copies of the run's ID dataset become copies of the site's own images.
    """
    specs = tuple(f"{data}#{spec.partition('#')[2]}" for spec in config.data.corrupted)
    own = replace(config, data=replace(config.data, id=data, corrupted=specs))
    divide = partial(client_split, client=client, clients=clients, classes=classes)
    return build(own, divide=divide, load=load_light)
