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
from focoop.federation import RoundSetup, client_round
from focoop.flower.identity import prove, proves, read_site
from focoop.flower.site.held_back import HeldBack, find_held_back
from focoop.methods import Params
from focoop.scenario import Scenario, schedule_of


@dataclass(frozen=True)
class DryRun:
    """One step of local training and what a round of it would send.

    A method that trains nothing takes no steps: `seconds` are those of measuring all images.
    """

    seconds: float
    steps: int
    sent: dict[str, str]
    kept: dict[str, str]
    held_back: HeldBack

    def record(self) -> dict[str, Any]:
        """Return the dry run as a document."""
        return {
            "seconds_a_step": round(self.seconds, 4),
            "steps_a_round": self.steps,
            "sent": self.sent,
            "kept": self.kept,
            "held_back": self.held_back.record(),
        }


def try_one_step(config: RunConfig, scenario: Scenario, client: int) -> DryRun:
    """Train one batch of the site's images as round 1 would, or measure them all, and forget it.

    Args:
        config: the run's settings.
        scenario: the task and the site's images.
        client: the site's number in the federation.

    Returns:
        How long one step took, how many a round has, and what would be sent and kept.
    """
    schedule, data = schedule_of(config, scenario), scenario.client(client)
    size, steps = len(data), 0
    if not scenario.method.closed_form:
        size = min(size, schedule.local.batch_size)
        steps = math.ceil(len(data) / schedule.local.batch_size) * schedule.local.epochs
    once = replace(schedule, local=replace(schedule.local, epochs=1), together=1, privacy=None)
    setup = RoundSetup(scenario.method, scenario.task, once, config.seed)
    shared, private = setup.initial.shared, setup.initial.private
    held_back = find_held_back(scenario, client)
    if not schedule.rounds or not len(data):
        sent = described(setup.method.sent(shared))
        return DryRun(0.0, 0, sent, described(private), held_back)
    batch = data.rows(torch.arange(size))
    began = time.perf_counter()
    (result,) = client_round(setup, 1, shared, [client], [batch], store=None)
    seconds = time.perf_counter() - began
    sent, kept = described(result.update.shared), described(result.private)
    return DryRun(seconds, steps, sent, kept, held_back)


def described(params: Params) -> dict[str, str]:
    """Describe shapes and types of tensors.

    Args:
        params: Tensors by name.

    Returns:
        Words by name.

    >>> described({"contexts": torch.zeros(2, 3)})
    {'contexts': '2 x 3 float32'}
    """
    return {
        name: f"{' x '.join(map(str, value.shape)) or '1'} {str(value.dtype).split('.')[-1]}"
        for name, value in params.items()
    }


def check_keys(folder: Path) -> str:
    """Check that a site's keys are whole, fit each other and are nobody else's to read.

    Args:
        folder: The site's folder of keys.

    Returns:
        The site's name.

    Raises:
        ConfigError: They are not.
    """
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
    """Check that a state folder can be written and that no other user can read it.

    Args:
        folder: The folder.

    Raises:
        ConfigError: It cannot be used.
    """
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
