"""What a site would do in a round, tried out at home: nothing is sent and nothing is kept."""

import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from focoop.config import RunConfig
from focoop.errors import ConfigError
from focoop.federation import client_state, local_settings, start, train
from focoop.flower.identity import prove, proves, read_site
from focoop.methods import Params, Server
from focoop.scenario import Scenario, schedule_of
from focoop.seeds import torch_generator


@dataclass(frozen=True)
class Rehearsal:
    """One step of local training and what a round of it would send."""

    seconds: float
    steps: int
    sent: dict[str, str]
    kept: dict[str, str]

    def record(self) -> dict[str, Any]:
        """As a document."""
        return {
            "seconds_a_step": round(self.seconds, 4),
            "steps_a_round": self.steps,
            "sent": self.sent,
            "kept": self.kept,
        }


def rehearse(config: RunConfig, scenario: Scenario, client: int) -> Rehearsal:
    """Train one batch of the site's images as round 1 would, and forget it."""
    method, task, data = scenario.method, scenario.task, scenario.client(client)
    settings = schedule_of(config, scenario)
    local = replace(local_settings(settings, 1), epochs=1) if settings.rounds else None
    initial = start(method, task, config.seed)
    state = client_state(
        method, task, initial, Server(initial.shared), None, lambda: data.counts(len(task.classes))
    )
    seconds, steps = 0.0, 0
    if local is not None and len(data):
        first = torch.arange(min(len(data), local.batch_size))
        patches = None if data.patches is None else data.patches[first]
        batch = replace(data, pooled=data.pooled[first], patches=patches, labels=data.labels[first])
        began = time.perf_counter()
        train(method, state, batch, task, local, torch_generator(config.seed, "rehearsal"))
        seconds = time.perf_counter() - began
        steps = math.ceil(len(data) / local.batch_size) * settings.local.epochs
    return Rehearsal(seconds, steps, described(state.shared), described(state.private))


def described(params: Params) -> dict[str, str]:
    """Name -> shape and type.

    >>> described({"contexts": torch.zeros(2, 3)})
    {'contexts': '2 x 3 float32'}
    """
    return {
        name: f"{' x '.join(map(str, value.shape)) or '1'} {str(value.dtype).split('.')[-1]}"
        for name, value in params.items()
    }


def check_keys(folder: Path) -> str:
    """The site's name, if its keys are whole, fit each other and are nobody else's to read."""
    site = read_site(folder)
    for name in ("key", "ca.crt"):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder / name} is missing: put this site's {name} there")
    if (folder / "key").stat().st_mode & 0o077:
        raise ConfigError(f"others can read {folder / 'key'}: chmod 600 {folder / 'key'}")
    challenge = os.urandom(16).hex()
    if not proves(site, prove(folder, challenge, 0, 0, site.client), challenge, 0, 0):
        raise ConfigError(f"{folder}: key and key.pub do not belong together")
    return site.name


def check_state(folder: Path) -> None:
    """A state folder that can be written and that no other user can read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        raise ConfigError(f"others can look into {folder}: chmod 700 {folder}")
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror}): choose another --state"
        ) from error
