"""One client of a federation: its images, its model's parts and its private tensors on disk."""

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from flwr.app import Context

from focoop.config import config_hash
from focoop.errors import ConfigError
from focoop.flower.records import FederationError, Order
from focoop.flower.settings import run_config
from focoop.methods import lookup
from focoop.runstore import PrivateStore
from focoop.scenario import Scenario, build
from focoop.schema import RunConfig
from focoop.tensorcache import cache_folder

STATE = "FOCOOP_STATE"


@dataclass(frozen=True)
class Party:
    """Client `client` of `clients`, as its Flower context describes it."""

    config: RunConfig
    client: int
    clients: int
    name: str
    state: Path

    @classmethod
    def of(cls, context: Context) -> "Party":
        """From a node's own configuration and the run's."""
        node = context.node_config
        try:
            client, clients = int(node["partition-id"]), int(node["num-partitions"])
        except (KeyError, ValueError) as error:
            raise ConfigError(
                "start the node with --node-config 'partition-id=0 num-partitions=4', numbers of "
                "your own"
            ) from error
        config = run_config(context.run_config)
        if lookup(config.method.name).pools_data:
            raise ConfigError(
                f"{config.method.name} needs all clients' images in one place: use focoop run"
            )
        name = str(node.get("name", f"client {client}"))
        state = node.get("state", os.environ.get(STATE, ""))
        root = Path(str(state)) if state else cache_folder(None, "federations")
        return cls(config, client, clients, name, root)

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
        config = self.config
        if not evaluation:
            config = replace(
                config, data=replace(config.data, corrupted=(), ood=(), validation_ood=())
            )
        found = _scenario(config)
        if found.num_clients != self.clients:
            raise ConfigError(
                f"the images are divided among {found.num_clients} clients, and there are "
                f"{self.clients} nodes: set partition.clients, or start as many nodes"
            )
        return found

    def store(self, order: Order, round_index: int) -> PrivateStore:
        """Private tensors up to `round_index`; each client has its own root, and may clear it."""
        return PrivateStore(self.state / order.key / f"{self.client:04d}", limit=round_index)


@lru_cache(maxsize=2)
def _scenario(config: RunConfig) -> Scenario:
    """Kept where one process answers many messages; on a site each message is a new process."""
    return build(config)
