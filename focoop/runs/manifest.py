"""Collect where a run came from: code, versions, seeds, hardware and time, as plain JSON values."""

import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from focoop import __version__
from focoop.config import RunConfig, config_hash
from focoop.plugins import origin
from focoop.runs.files import FORMAT

PACKAGES = ("torch", "numpy", "safetensors", "open_clip_torch")
# Environment variables that choose other kernels, which round otherwise.
KERNEL_LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


def collect(config: RunConfig) -> dict[str, Any]:
    """Collect what is known before a run starts; hashes of data and backbone come from the run.

    Args:
        config: The run's configuration.

    Returns:
        The manifest's first content.
    """
    used = used_plugins(config)
    return {
        **({"plugins": used} if used else {}),
        "format": FORMAT,
        "status": "running",
        "started": now("microseconds"),  # trackers tell runs of equal settings apart by it
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "config_hash": config_hash(config),
        "code": code(),
        "versions": versions(),
        "seeds": {"run": config.seed, "partition": config.partition.seed},
        "hardware": hardware(config.backbone.device),
    }


def used_plugins(config: RunConfig) -> list[dict[str, str]]:
    """Name the code from outside focoop that a run uses.

    Args:
        config: The run's settings.

    Returns:
        One entry per method, score or dataset: its kind and name, with the hash of its file or the
        version of its package.
    """
    data = config.data
    specs = [data.id, *data.corrupted, *data.ood, *data.validation_ood]
    names = [spec.partition("#")[0].partition("@")[0] for spec in specs if ":" not in spec]
    score = getattr(config.method.settings, "score", "")
    wanted = [("method", config.method.name), ("score", str(score))]
    wanted += [("dataset", name) for name in dict.fromkeys(names)]
    return [plugin for kind, name in wanted if (plugin := origin(kind, name)) is not None]


def answers_from_outside(config: RunConfig) -> bool:
    """Say whether a run's method or score is none of focoop's, which are tested.

    Args:
        config: The run's settings.

    Returns:
        Whether it is.
    """
    return any(plugin["kind"] != "dataset" for plugin in used_plugins(config))


def now(timespec: str = "seconds") -> str:
    """Return the time as ISO 8601 in UTC.

    Args:
        timespec: How finely, as in `datetime.isoformat`.

    Returns:
        The text.
    """
    return datetime.now(UTC).isoformat(timespec=timespec)


def code() -> dict[str, Any]:
    """Return the commit of the checkout this package runs from; an installed package has none."""
    commit, dirty = _checkout()
    return {"commit": commit, "dirty": dirty}


@cache  # a process runs the code it has loaded, whatever becomes of the files
def _checkout() -> tuple[str | None, bool | None]:
    """The commit, and whether files differ from it."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit or None, None if changes is None else bool(changes)


def versions() -> dict[str, str]:
    """Return the versions of what the numbers depend on."""
    installed = {"focoop": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def hardware(device: str) -> dict[str, Any]:
    """Describe processor, memory, threads and, for a GPU run, the GPU.

    Args:
        device: The torch device of the run.

    Returns:
        Facts by name.
    """
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_gib": _memory(),
        "torch_threads": torch.get_num_threads(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "limits": {name: os.environ[name] for name in KERNEL_LIMITS if name in os.environ},
        "device": device,
    }
    if device.startswith("cuda") and torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name(torch.device(device))
    return facts


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def plain(value: Any) -> Any:
    """Convert a value to what JSON can write; numbers that JSON lacks (nan, inf) become null.

    Args:
        value: The value, nested or not.

    Returns:
        Dicts, lists, texts, numbers and None.

    Raises:
        TypeError: JSON has no form for it.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int | bool) or value is None:
        return value
    if hasattr(value, "item"):  # numpy and torch scalars
        return plain(value.item())
    raise TypeError(f"a run's files hold no {type(value).__name__}")
