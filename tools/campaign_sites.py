"""Files that sites and a coordinator on Flower keep between messages, for the campaign."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from focoop.caching import sealed
from focoop.errors import FederationError
from focoop.federation import Privacy
from focoop.flower.journal import Journal, events
from focoop.flower.masking import Masker
from focoop.flower.records import Order
from focoop.flower.server.spares import secret_seed
from focoop.flower.site.releases import LEDGER, Releases, released
from focoop.flower.site.status import FILE, SiteStatus, read_status
from focoop.flower.site.sum_secrets import SumSecrets, begun
from focoop.methods import ClientUpdate
from focoop.runs import PrivateStore
from tools.campaign_kinds import BIT, CUT, EXCHANGED, REMOVED, Kind, among, plain, reading

KEY = "0123456789abcdef"


def kinds(root: Path) -> Iterator[Kind]:
    """Every kind of file of a site's state folder and of the coordinator's run folder."""
    yield from private_kinds(root / "site")
    yield from release_kinds(root / "site")
    yield from sum_kinds(root / "site")
    yield from other_kinds(root / "coordinator")


def private_kinds(state: Path) -> Iterator[Kind]:
    """A site's private tensors and the list of them."""

    def store(limit: int) -> PrivateStore:
        return PrivateStore(state / "clients", limit, with_book=True)

    for index in (1, 2):
        store(index - 1).settle(index - 1)
        for client in (0, 1):
            store(index - 1).save(client, index, {"p": torch.full((4,), float(index + client))})
    reads = [reading(lambda: plain([store(2).load(client) for client in (0, 1)]))]
    folders = sorted((state / "clients").iterdir())
    files = [folder / "round-0002.safetensors" for folder in folders]
    yield Kind("site: private tensors", 60, files, reads, among(files))
    books = [folder / "versions.json" for folder in folders]
    ways = (BIT, CUT, EXCHANGED)
    yield Kind(
        "site: versions.json",
        40,
        books,
        reads,
        among(books),
        ways=ways,
    )


def release_kinds(state: Path) -> Iterator[Kind]:
    """A site's noised releases and its account of them."""
    privacy = Privacy(clip=1.0, noise=2.0, delta=1e-5)
    received = {"a": torch.zeros(8)}

    def ask(client: int, index: int) -> ClientUpdate:
        update = ClientUpdate(client, {"a": torch.ones(8)}, 12, torch.tensor([5, 7]), 0.5)
        order = Order(index, KEY, "settings")
        return Releases(state, KEY, client).release(privacy, order, update, received)

    for index in (1, 2):
        for client in (0, 1):
            ask(client, index)
    files = [Releases(state, KEY, client).path for client in (0, 1)]

    def answers() -> str:
        """What the site answers to the last question again, and what it has spent."""
        found = [ask(client, 2) for client in (0, 1)]
        told = [[one.shared, one.class_counts, repr(one.loss)] for one in found]
        return plain([told, released(state)])

    reads = [reading(answers)]
    yield Kind("site: last release", 60, files, reads, among(files))
    yield Kind("site: releases.jsonl", 60, [state / LEDGER], reads, ways=(BIT, CUT, REMOVED))


def sum_kinds(state: Path) -> Iterator[Kind]:
    """A site's part in a secure sum, and the marks of sums that have begun."""
    path = state / "sums" / "0000.json"
    kept = [SumSecrets(path, 1, f"{number:032x}") for number in range(1, 6)]
    for one in kept:
        one.begin()
    marks = path.with_suffix(".begun")
    reads = [reading(partial(begun, marks))]
    yield Kind("site: sums that have begun", 60, [marks], reads, ways=(BIT, CUT, REMOVED))
    kept[-1].save(Masker(0, 3))

    def secrets() -> Any:
        return kept[-1].need().dump()

    yield Kind("site: part in a sum", 40, [path], [reading(secrets)], ways=(BIT, CUT, REMOVED))


def other_kinds(folder: Path) -> Iterator[Kind]:
    """A site's status, the coordinator's journal and its secret."""
    folder.mkdir()
    ways = (BIT, CUT, REMOVED)
    status = folder / FILE
    status.write_text(json.dumps(sealed(asdict(SiteStatus("ghent", "fl:8000"))), indent=1) + "\n")

    def told() -> Any:
        found = read_status(folder)
        return {key: value for key, value in found.items() if key not in ("age", "running")}

    yield Kind("site: status.json", 40, [status], [reading(told)], ways=ways)
    journal = folder / "journal.jsonl"
    with Journal(journal) as writer:
        for index in range(4):
            writer.note("committed", round=index, accepted=["ghent", "lille"])

    def happened() -> Any:
        found = list(events(journal))
        if any(event["event"] == "damaged" for event in found):
            raise FederationError(f"{journal.name} is damaged")  # as its readers show it
        return found

    yield Kind("journal.jsonl", 40, [journal], [reading(happened)], ways=(BIT,))
    secret_seed(folder)
    secret = folder / "draw.secret"
    drawn = reading(partial(secret_seed, folder))
    yield Kind("draw.secret", 40, [secret], [drawn], ways=(BIT, CUT))
