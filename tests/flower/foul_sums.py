"""Secure sums that a dishonest coordinator and mallory, who are one, hold with two honest sites."""

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord

from focoop.config.schema import RunConfig
from focoop.flower.deploy.keys import make_site_key
from focoop.flower.identity import registered, sign
from focoop.flower.mask_keys import Keys
from focoop.flower.masking import Masker
from focoop.flower.records import Order
from focoop.flower.sum_records import KEYS, SUM, sum_name, to_keys, to_record
from tests.flower.besieged import Besieged, key, order
from tests.flower.dishonest import Answer, Hand

TRAIN = "train"
Change = Callable[["Sum", dict[str, Any]], None]


class Sum:
    """A secure sum of the coordinator and mallory, who are one, with ghent and lille."""

    def __init__(self, fed: Besieged, hand: Hand, config: RunConfig) -> None:
        self.fed, self.hand, self.config = fed, hand, config
        self.key, self.attempt = key(), secrets.token_hex(16)
        self.mallory = Masker(2, 3)
        self.everyone = self.keys()

    def ask(self, site: str, step: str, told: Mapping[str, Any]) -> Answer:
        """What a site answers to a message of the sum."""
        kind = step if step == TRAIN else f"query.{step}"
        received = self.fed.first(self.config) if step == TRAIN else None
        content = order(self.config, 1, self.key, received)
        content[SUM] = ConfigRecord({"attempt": self.attempt, **told})
        return self.hand.ask(site, kind, content)

    def keys(self) -> dict[int, Keys]:
        """All three sites' keys, each signed by its site."""
        found: dict[int, Keys] = {}
        for client, site in enumerate(("ghent", "lille")):
            answer = self.ask(site, KEYS, {})
            assert answer.content is not None, answer.error
            record = answer.content[SUM]
            assert isinstance(record, ConfigRecord)
            found |= {client: to_keys(record)[client]}
        mine = self.mallory.keys()
        return {**found, 2: self.signed(mine, 2, self.fed.state("mallory") / "keys")}

    def signed(self, keys: Keys, client: int, folder: Path) -> Keys:
        """Keys under the signature of whoever's folder it is."""
        about = Order(1, self.key, order_hash(self.config))
        return keys.signed(sign(folder, keys.claim(sum_name(about, self.attempt), client)))

    def told(self) -> dict[str, Any]:
        """What an honest coordinator sends to all."""
        sites = registered(self.fed.folder / "fed" / "keys")
        identities = {f"identity/{client}": site.public for client, site in sites.items()}
        return {**to_record(self.everyone), **identities}


def order_hash(config: RunConfig) -> str:
    """The name of a configuration in orders."""
    return Order.read(order(config, 1, "0" * 16)).config_hash


def without_lille(_: Sum, told: dict[str, Any]) -> None:
    for name in [name for name in told if name.endswith("/1")]:
        del told[name]


def swapped_key(_: Sum, told: dict[str, Any]) -> None:
    """The coordinator puts a key of its own where lille's was."""
    told["mask/1"] = Masker(1, 3).keys().mask


def unsigned(one: Sum, told: dict[str, Any]) -> None:
    """All of lille's keys are the coordinator's, and nobody signed them."""
    told |= to_record({1: Masker(1, 3).keys()})


def signed_by_mallory(one: Sum, told: dict[str, Any]) -> None:
    keys = one.signed(Masker(1, 3).keys(), 1, one.fed.state("mallory") / "keys")
    told |= to_record({1: keys})


def invented(one: Sum, told: dict[str, Any]) -> None:
    """A lille of the coordinator's own, with another identity."""
    folder = one.fed.folder / "invented"
    make_site_key(folder, "lille")
    told |= to_record({1: one.signed(Masker(1, 3).keys(), 1, folder)})
    told["identity/1"] = (folder / "key.pub").read_bytes()


def mallory_twice(one: Sum, told: dict[str, Any]) -> None:
    for name in ("mask", "channel", "commitment", "signature", "identity"):
        told[f"{name}/1"] = told[f"{name}/2"]


def nobodys(_: Sum, told: dict[str, Any]) -> None:
    for client in range(3):
        del told[f"identity/{client}"]


CHEATS: tuple[tuple[Change, str], ...] = (
    (without_lille, "policy: a secure sum of 2 sites, and 3 are the least"),
    (swapped_key, "the keys of client 1 are not signed by its site"),
    (unsigned, "the keys of client 1 are not signed by its site"),
    (signed_by_mallory, "the keys of client 1 are not signed by its site"),
    (invented, "client 1 has another key than before"),
    (mallory_twice, "two clients of the sum have the same key: they are one"),
    (nobodys, "the server does not say whose keys these are: no secure sum"),
)
