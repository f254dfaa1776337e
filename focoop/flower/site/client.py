"""One client of a federation: its images, its model's parts and its private tensors on disk."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from flwr.app import Context

from focoop.caching import cache_folder
from focoop.clip import load_light
from focoop.config import RunConfig, config_hash
from focoop.errors import ConfigError, FederationError
from focoop.federation import Privacy, seeded_release
from focoop.flower.records import Order
from focoop.flower.settings import listed, run_config, server_settings, unprotected
from focoop.flower.site.policy import Policy, Refusal
from focoop.flower.site.releases import Releases
from focoop.methods import ClientUpdate, Params, lookup
from focoop.runs import PrivateStore
from focoop.scenario import Scenario, build_scenario, client_split

STATE = "FOCOOP_STATE"
# Settings that say where things are on a machine, and so may differ from the run's.
PLACES = ("device", "weights", "root")


@dataclass(frozen=True)
class SiteClient:
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
    policy: Policy | None = None

    @classmethod
    def of(cls, context: Context) -> "SiteClient":
        """Make a client of a node's own configuration and the run's.

        Args:
            context: Flower's context.

        Returns:
            The client.

        Raises:
            ConfigError: The node's configuration cannot be used.
        """
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
        policy = None
        if node.get("data") or node.get("policy"):
            policy = Policy.read(str(node.get("policy", "")))
            if settings.config:
                policy.check_file(settings.config, "config")
        config = run_config(context.run_config)
        places = {key: str(node[key]) for key in PLACES if key in node}
        if policy is not None:
            policy.check(config, places)
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
        # Exact accuracies beside noised tensors would tell what the noise hides.
        reports = not (data and config.privacy.noise) or bool(node.get("report", False))
        reports = reports and (policy is None or policy.accuracies)
        names = tuple(listed(classes))
        keys = Path(str(node["keys"])) if "keys" in node else None
        return cls(config, client, clients, name, root, data, names, places, reports, keys, policy)

    def check(self, order: Order) -> None:
        """Refuse an order of another configuration, which other versions of focoop would read.

        Args:
            order: The order.

        Raises:
            FederationError: It is of another configuration.
            Refusal: The site's policy refuses the run.
        """
        own = config_hash(self.config)
        if order.config_hash != own:
            raise FederationError(
                f"{self.name} reads this run's settings as {own}, the server as "
                f"{order.config_hash}: install the same version of focoop on all machines"
            )
        if self.policy is not None and order.round_index > self.config.federation.rounds:
            raise Refusal(
                f"round {order.round_index} of a run of {self.config.federation.rounds} rounds"
            )

    def check_sketches(self) -> None:
        """Refuse to tell sketches of calibration scores where nothing would protect them.

        Raises:
            Refusal: The run's privacy settings or the site's policy keep them here.
        """
        if reason := unprotected(self.config):
            raise Refusal(reason)
        if self.policy is not None and not self.policy.sketches:
            raise Refusal("sketches of calibration scores stay at this site")
        if not self.reports:
            raise Refusal("sketches of calibration scores stay at this site, as accuracies do")

    @property
    def least_images(self) -> int:
        """Return of how many images a sketch must be to leave."""
        return 1 if self.policy is None else max(1, self.policy.least_images)

    @property
    def names_classes(self) -> bool:
        """Return whether models may say which classes this site holds."""
        return self.policy is None or self.policy.holdings

    def scenario(self, *, evaluation: bool = False) -> Scenario:
        """Make task and images; the sets to evaluate on are only read for an evaluation.

        Args:
            evaluation: Read these sets.

        Returns:
            The scenario.

        Raises:
            ConfigError: The images do not fit the run.
        """
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
        if self.policy is not None:
            config = self.policy.raise_least_images(config)
        if self.data:
            return own_scenario(config, self.data, self.classes, self.client, self.clients)
        scenario = _scenario(config)
        if scenario.num_clients != self.clients:
            raise ConfigError(
                f"the images are divided among {scenario.num_clients} clients, and there are "
                f"{self.clients} nodes: set partition.clients, or start as many nodes"
            )
        return scenario

    def release(
        self, privacy: Privacy, order: Order, update: ClientUpdate, received: Params
    ) -> ClientUpdate:
        """Return an update as it may leave this client.

        A site with images of its own draws secret noise and answers each round once. A node that
        opens the run's own dataset is for study: its noise is the simulator's, from the seed.

        Args:
            privacy: Clipping and noise.
            order: The order.
            update: The update.
            received: The tensors that this client was given.

        Returns:
            The update.
        """
        if self.data and privacy.draws:
            most = self.policy.privacy.epsilon_at_most if self.policy is not None else 0.0
            return Releases(self.state, order.key, self.client, most or math.inf).release(
                privacy, order, update, received
            )
        return seeded_release(privacy, self.config.seed, order.round_index, update, received)

    def store(self, order: Order, round_index: int) -> PrivateStore:
        """Open the private tensors up to a round; each client has its own folder, and may clear it.

        Args:
            order: The order.
            round_index: The round's number.

        Returns:
            The store.
        """
        folder = self.state / order.key / f"{self.client:04d}"
        advice = f"restore it from a copy; or remove {folder}, and this client begins anew"
        return PrivateStore(folder, limit=round_index, with_book=True, advice=advice)


@lru_cache(maxsize=2)
def _scenario(config: RunConfig) -> Scenario:
    """Kept where one process answers many messages; on a site each message is a new process."""
    return build_scenario(config, load=load_light)


@lru_cache(maxsize=32)
def own_scenario(
    config: RunConfig, data: str, classes: tuple[str, ...], client: int = 0, clients: int = 1
) -> Scenario:
    """Make a scenario of a site's own images, labelled by the run's classes.

    Corrupted copies of the run's ID dataset become copies of the site's own images.

    Args:
        config: The run's settings.
        data: The site's images, as settings name them.
        classes: The run's class names.
        client: The client's number.
        clients: Number of clients.

    Returns:
        The scenario.
    """
    specs = tuple(f"{data}#{spec.partition('#')[2]}" for spec in config.data.corrupted)
    own = replace(config, data=replace(config.data, id=data, corrupted=specs))
    divide = partial(client_split, client=client, clients=clients, classes=classes)
    return build_scenario(own, divide=divide, load=load_light)
