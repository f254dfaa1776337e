"""What a run costs at least in memory and time, so that an impossible one is refused at once.

The figures are lower bounds: they count what cannot be avoided and the speed of a fast machine. A
run that passes may still be slow; one that is refused would not have ended.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from focoop.clip import TextTower
from focoop.config import RunConfig
from focoop.errors import ConfigError
from focoop.federation import num_sampled
from focoop.methods import lookup

MEMORY = Path("/proc/meminfo")
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
DAYS = 30  # a longer run must be asked for
STEP_SECONDS = 1e-4  # of the smallest training step
CPU_RATE, GPU_RATE = 1e12, 2e14  # operations per second of a fast machine
MOST_SHARES = 20_000_000  # clients times classes
NAME_TOKENS = 4  # start, name, period and end of the shortest prompts
KEPT = 8  # numbers per token, layer and channel that a backward pass keeps at least
ALLOW = "if you mean it, set federation.large to true (--set federation.large=true)"


@dataclass(frozen=True)
class Cost:
    """The least that a run needs.

    Attributes:
        rows: training images of all clients, repeated draws and views included.
        memory: bytes of memory.
        steps: training steps of all clients in all rounds.
        seconds: duration.
    """

    rows: int
    memory: float
    steps: float
    seconds: float


def least_cost(
    config: RunConfig,
    rows: Sequence[int],
    num_classes: int,
    row_bytes: int = 0,
    tower: TextTower | None = None,
    on_cpu: bool = True,
) -> Cost:
    """Estimate from below what a run costs.

    Args:
        config: The run's settings.
        rows: Training images of each client.
        num_classes: Number of classes.
        row_bytes: Bytes of one image's features, where they are known.
        tower: The text tower, where it is known.
        on_cpu: Whether the run trains on a CPU.

    Returns:
        The estimate.
    """
    method, settings = lookup(config.method.name), config.federation
    total = sum(rows)
    memory = 8.0 * total + max(rows, default=0) * row_bytes
    if not method.trains or method.closed_form:
        memory += max(rows, default=0) * row_bytes  # all images of a client at once, and a copy
        return Cost(total, memory, 0.0, 0.0)
    held = [total] if method.pools_data else rows
    each = sum(math.ceil(count / settings.batch_size) for count in held) / max(1, len(held))
    sampled = 1 if method.pools_data else num_sampled(len(held), settings.participation)
    steps = float(settings.rounds) * sampled * settings.epochs * each
    seconds = steps * STEP_SECONDS
    if tower is not None:
        prompts = num_classes + (config.negatives.count if method.needs_ood else 0)
        tokens = getattr(config.method.settings, "context_tokens", 1) + NAME_TOKENS
        width, layers = tower.shape.width, tower.shape.layers
        work = 6 * 12 * width**2 * layers * tokens * prompts  # forwards and back
        if on_cpu:  # a GPU trains in parts where its memory is small
            memory += 4.0 * KEPT * width * layers * tokens * prompts
        seconds = max(seconds, steps * work / (CPU_RATE if on_cpu else GPU_RATE))
    return Cost(total, memory, steps, seconds)


def refuse_large(config: RunConfig, cost: Cost) -> None:
    """Refuse a run that needs more memory than is free, or more than a month.

    Args:
        config: The run's settings; `federation.large` allows it.
        cost: Its estimate.

    Raises:
        ConfigError: The run is too large; the message says what it needs and how to ask for it.
    """
    if config.federation.large:
        return
    here = free_memory()
    if here and cost.memory > here:
        raise ConfigError(
            f"this run needs at least {cost.memory / 1e9:,.0f} GB of memory and this machine has "
            f"{here / 1e9:,.1f} GB free ({cost.rows:,} training rows): lower partition.shots, "
            f"data.views, negatives.count or method.context_tokens; {ALLOW}"
        )
    if cost.seconds > DAYS * 86400:
        raise ConfigError(
            f"this run takes {cost.steps:,.0f} training steps, at least "
            f"{cost.seconds / 86400:,.0f} days even on a fast machine: lower federation.rounds, "
            f"federation.epochs, partition.shots or negatives.count; {ALLOW}"
        )


def refuse_clients(config: RunConfig, clients: int, images: int, num_classes: int) -> None:
    """Refuse more clients than images, or than shares of classes can be drawn for.

    Args:
        config: The run's settings.
        clients: Number of clients.
        images: Number of training images.
        num_classes: Number of classes.

    Raises:
        ConfigError: There are too many clients.
    """
    if config.partition.kind == "pathological":  # has its own, smaller limit: the classes
        return
    if clients > images:
        raise ConfigError(
            f"{clients} clients cannot share {images} images: set partition.clients to at most "
            f"{images}"
        )
    if clients * num_classes > MOST_SHARES and not config.federation.large:
        raise ConfigError(
            f"{clients} clients times {num_classes} classes are {clients * num_classes:,} shares, "
            f"and {MOST_SHARES:,} are the most: lower partition.clients; {ALLOW}"
        )


def free_memory(table: Path = MEMORY) -> int:
    """Return the memory that a new run may take, in bytes; 0 where the system does not say.

    Args:
        table: The system's own table of its memory, where it has one.

    Returns:
        Bytes.
    """
    amounts = [_free_here(table), group_memory()]
    return min((amount for amount in amounts if amount is not None), default=0)


def _free_here(table: Path) -> int | None:
    """What is free on this machine; None where it does not say."""
    try:
        lines = table.read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if "MemAvailable" in line)
    except (OSError, ValueError, StopIteration):  # not Linux: all there is
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def group_memory(own: Path = OWN_GROUPS, groups: Path = GROUPS) -> int | None:
    """Return what the limits of this process's container, job or service leave.

    Linux ends a process that goes beyond them, whatever memory the machine has.

    Args:
        own: The table of the control groups that the process is in.
        groups: The folder of all control groups.

    Returns:
        Bytes; None where there is no limit.
    """
    try:
        rows = [row.split(":", 2)[1:] for row in own.read_text().splitlines()]
    except OSError:
        return None
    left = []
    for kinds, place in rows:
        if kinds and "memory" not in kinds.split(","):
            continue
        root = groups / "memory" if kinds else groups
        group = root / place.lstrip("/")
        while group.is_relative_to(root):  # the limits of all groups around it count too
            left.append(_left_in(group))
            group = group.parent
    return min((amount for amount in left if amount is not None), default=None)


def _left_in(group: Path) -> int | None:
    """What the limit of one group leaves; pages of files are given back when they are needed."""
    for limit, used, pages in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, taken = (int((group / name).read_text()) for name in (limit, used))
            facts = dict(row.split() for row in (group / "memory.stat").read_text().splitlines())
            return max(0, most - taken + int(facts.get(pages, 0)))
        except (OSError, ValueError):  # no such group, or no limit
            continue
    return None
