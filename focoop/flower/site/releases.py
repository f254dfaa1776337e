"""A site's releases under noise: each round is answered once, kept here, and counted.

Noise hides nothing from a server that gets two answers with related noise, or many answers. So a
site draws its noise from fresh bytes, keeps the noised update, and gives the same answer again to
the same question: a round that is repeated after a stop ends as it would have without the stop,
even if an image was mended in between. Another question about a round that was answered (other
prompts, other settings) gets no answer. Noised counts are drawn once for a federation.

`STATE/KEY/releases/CLIENT.safetensors` holds the last release of a federation as it left;
`STATE/releases.jsonl` has a line for every release of the site, whatever the federation.
"""

import fcntl
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from focoop.caching import SUM, checksum, is_intact, parse_json, sealed, tensor_sum
from focoop.errors import FederationError, RunError, newer_format
from focoop.federation import Privacy, SecretNormal, composed
from focoop.flower.records import Order
from focoop.flower.site.policy import Refusal
from focoop.methods import ClientUpdate, Params
from focoop.runs import append, dump, read, write

LEDGER = "releases.jsonl"
FORMAT = 1  # of a kept release; those of an earlier focoop do not say theirs
SHARED, COUNTS = "shared/", "class-counts"


@dataclass(frozen=True)
class Release:
    """An update as it left the site, and the question it answered."""

    round_index: int
    asked: str
    settings: str
    update: ClientUpdate


@dataclass(frozen=True)
class Releases:
    """What client `client` of the federation `key` has released, under a site's `state` folder.

    `most` is the epsilon that the site's releases of all runs may cost together.
    """

    state: Path
    key: str
    client: int
    most: float = math.inf

    @property
    def path(self) -> Path:
        """Return the file of the last release."""
        return self.state / self.key / "releases" / f"{self.client:04d}.safetensors"

    @property
    def _whose(self) -> str:
        """Whose releases these are, so that no other client's file is taken for them."""
        return f"{self.key}/{self.client}"

    def release(
        self, privacy: Privacy, order: Order, update: ClientUpdate, received: Params
    ) -> ClientUpdate:
        """The update under fresh noise, or the kept one if this question was answered before.

        Args:
            privacy: what the run asks of releases.
            order: the round and the settings that are asked about.
            update: the client's update after training.
            received: the shared tensors the client was given.

        Returns:
            What leaves the site; it is on the disk when the call returns.

        Raises:
            FederationError: the round, or a later one, was answered to another question.
            Refusal: one more release would cost more epsilon than the site allows.
        """
        with self._alone():
            last = self._load()
            asked = question(order, received)
            if last is not None:
                check(last, order, asked)
                if last.round_index == order.round_index:
                    return last.update
            counts = last.update.class_counts if last is not None else None
            self._afford(privacy)
            noised = self._draw(privacy, update, received, counts)
            self._note(privacy, order)
            self._keep(Release(order.round_index, asked, order.config_hash, noised))
            return noised

    def _afford(self, privacy: Privacy) -> None:
        if math.isinf(self.most):
            return
        noises = [*released(self.state), privacy.noise]
        cost = composed(noises, privacy.delta) if all(noises) else math.inf
        if cost > self.most:
            raise Refusal(
                f"one more release would bring this site's epsilon to {cost:.4g} at delta "
                f"{privacy.delta:g}, and {self.most:g} is the most"
            )

    def _draw(
        self, privacy: Privacy, update: ClientUpdate, received: Params, counts: Any
    ) -> ClientUpdate:
        """Under noise of its own; noised counts are those of the federation's first release."""
        noise, count_noise = (SecretNormal(secrets.token_bytes(32)) for _ in range(2))
        if privacy.counts == "noised" and counts is not None:
            update = replace(update, class_counts=counts.to(update.class_counts.device))
            update = replace(update, num_examples=int(counts.sum()))
            privacy = replace(privacy, counts="exact")
        return privacy.release(update, received, noise, count_noise)

    def _load(self) -> Release | None:
        if not self.path.is_file():
            told = [(line.get("run"), line.get("client")) for line in _account(self.state)]
            if told.count((self.key, self.client)) > 1:  # one: stopped before it was kept
                raise FederationError(
                    f"{self.path} is gone: this site cannot tell what it has released. Restore "
                    "it, or start a new run, whose releases are counted anew"
                )
            return None
        try:
            tensors, about = read(self.path)
            if about.get(SUM, "") != _sum(tensors, about) and SUM in about:
                raise ValueError("its checksum differs")
            if int(about.get("format", FORMAT)) > FORMAT:
                raise FederationError(newer_format(self.path, int(about["format"]), FORMAT))
            if about.get("whose", self._whose) != self._whose:
                raise ValueError("it is of another client or run")
            if about.get(SUM, "") and about["account"] not in accounts(self.state):
                raise ValueError(f"{LEDGER} has lost the line of its release")
            shared = {n.removeprefix(SHARED): v for n, v in tensors.items() if n != COUNTS}
            counts, loss = tensors[COUNTS], float(about["loss"])
            update = ClientUpdate(self.client, shared, int(counts.sum()), counts, loss)
            return Release(int(about["round"]), about["asked"], about["settings"], update)
        except (RunError, SafetensorError, KeyError, ValueError) as error:
            raise FederationError(
                f"{self.path} is damaged ({error}): this site cannot tell what it has released. "
                "Start a new run, whose releases are counted anew"
            ) from error

    def _keep(self, release: Release) -> None:
        update = release.update
        tensors = {SHARED + name: value for name, value in update.shared.items()}
        tensors[COUNTS] = update.class_counts
        about = {
            "format": str(FORMAT),
            "whose": self._whose,
            "round": str(release.round_index),
            "asked": release.asked,
            "settings": release.settings,
            "loss": str(update.loss),
            "account": (accounts(self.state) or [""])[-1],
        }
        about[SUM] = _sum({name: value.cpu() for name, value in tensors.items()}, about)
        write(self.path, dump(tensors, about))

    def _note(self, privacy: Privacy, order: Order) -> None:
        """One more line in the site's account, before the release can leave."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": self.key,
            "client": self.client,
            "round": order.round_index,
            "clip": privacy.clip,
            "noise": privacy.noise,
            "delta": privacy.delta,
        }
        line["before"] = (accounts(self.state) or [""])[-1]
        append(self.state / LEDGER, (json.dumps(sealed(line)) + "\n").encode())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time: two orders at once must not get two noises."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def question(order: Order, received: Params) -> str:
    """Hash all that a server chooses when it asks for a release.

    Args:
        order: The order.
        received: The tensors that it sent.

    Returns:
        The hash.
    """
    hasher = hashlib.sha256(f"{order.round_index}/{order.config_hash}/".encode())
    hasher.update(dump(received, {}))
    return hasher.hexdigest()


def check(last: Release, order: Order, asked: str) -> None:
    """Refuse a question that would get a second answer about what was released.

    Args:
        last: The last release.
        order: The order.
        asked: The hash of the question.

    Raises:
        FederationError: It is such a question.
    """
    if last.settings != order.config_hash:
        raise FederationError(
            "this site has released updates of this federation under other settings: start a new "
            "run for new settings"
        )
    if order.round_index < last.round_index:
        raise FederationError(
            f"this site has answered round {last.round_index}, and round {order.round_index} is "
            "over: a round is released once. Start a new run"
        )
    if order.round_index == last.round_index and asked != last.asked:
        raise FederationError(
            f"this site has answered round {order.round_index} for other prompts: a round is "
            "released once. Start a new run"
        )


def released(state: Path) -> list[float]:
    """List the noise of every release of a site, over all its runs.

    Args:
        state: The site's state folder.

    Returns:
        Noise multipliers.

    Raises:
        FederationError: The record is damaged.
    """
    return [float(line["noise"]) for line in _account(state)]


def accounts(state: Path) -> list[str]:
    """List the checksums of the lines of a site's account; lines of an earlier focoop have none.

    Args:
        state: The site's state folder.

    Returns:
        Checksums, the oldest first.
    """
    return [str(line[SUM]) for line in _account(state) if SUM in line]


def _account(state: Path) -> list[dict[str, Any]]:
    """The lines of the account; each has a checksum and names that of the line before it."""
    path, found, before = state / LEDGER, [], ""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, raw in enumerate(lines, start=1):
        try:
            line = parse_json(raw)
            float(line["noise"])
            if (SUM in line or before) and not (is_intact(line) and line["before"] == before):
                raise ValueError("its checksum differs, or a line before it is lost")
            before = line.get(SUM, "")
            found.append(line)
        except (ValueError, KeyError, TypeError) as error:
            raise FederationError(f"{path}, line {number}, is damaged ({error})") from error
    return found


def _sum(tensors: Params, about: Mapping[str, str]) -> str:
    """A checksum of a release."""
    told = {key: value for key, value in about.items() if key != SUM}
    each = [tensor_sum(name, tensors[name]) for name in sorted(tensors)]
    return checksum(json.dumps(told, sort_keys=True), *each)


def spent(state: Path, delta: float) -> tuple[int, float]:
    """Count releases of a site over all its runs, and their epsilon for one who saw all of them.

    Releases without noise have no bound: epsilon is then infinite.

    Args:
        state: The site's state folder.
        delta: The delta of the guarantee.

    Returns:
        Their number and epsilon.

    >>> spent(Path("nowhere"), 1e-5)
    (0, 0.0)
    """
    noises = released(state)
    return len(noises), composed(noises, delta) if all(noises) else math.inf
