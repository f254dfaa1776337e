"""The files of a run folder by name, and how those are read that come before anything else."""

import json
import tomllib
from pathlib import Path
from typing import Any

from focoop.config import RunConfig, from_dict
from focoop.errors import ConfigError, MethodError, RunError
from focoop.plugins import looking_in
from focoop.runs.places import base

CONFIG, MANIFEST, METRICS, NAMES = "config.toml", "manifest.json", "metrics.jsonl", "names.json"
STATE, CLIENTS, LOCK, LOG = "state.safetensors", "clients", ".lock", "log.txt"
# Files with times or process ids in them; all others agree byte by byte in equal runs.
TIMED = (MANIFEST, LOCK, LOG)


def read_config(path: Path) -> RunConfig:
    """Read the configuration of a run.

    Args:
        path: The run folder.

    Returns:
        The configuration.

    Raises:
        RunError: The folder is no run, or its configuration is damaged.
    """
    try:
        tree = tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
        with looking_in(base(path, _manifest_or_nothing(path))):
            return from_dict(tree)
    except FileNotFoundError as error:
        raise RunError(f"{path} is not a run folder: it has no {CONFIG}") from error
    except (OSError, ValueError, ConfigError, MethodError) as error:
        needed = _manifest_or_nothing(path).get("plugins", [])
        raise RunError(f"cannot read {path / CONFIG}: {error}{_needs(needed)}") from error


def _needs(plugins: list[dict[str, str]]) -> str:
    """Say which code from outside focoop a run was made with."""
    lines = []
    for plugin in plugins:
        if "package" in plugin:
            how = f"install {plugin['package']} {plugin['version']}"
        elif "registered" in plugin:
            how = "call focoop.register for it first"
        else:
            how = f"put the file back, sha256 {plugin['sha256'][:16]}..."
        lines.append(f"\nthe run was made with the {plugin['kind']} {plugin['name']}: {how}")
    return "".join(lines)


def _manifest_or_nothing(path: Path) -> dict[str, Any]:
    try:
        return read_manifest(path)
    except RunError:
        return {}


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a run.

    Args:
        path: The run folder.

    Returns:
        The manifest.

    Raises:
        RunError: It is missing or damaged.
    """
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path / MANIFEST}: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path / MANIFEST} is damaged: it holds no table")
    return content


def metric_lines(path: Path, last: int) -> list[tuple[dict[str, Any], bytes]]:
    """Read the lines of a file of metrics.

    Args:
        path: The file.
        last: The round after which lines are left out.

    Returns:
        Each line, parsed and as its bytes on disk.

    Raises:
        RunError: A line is damaged.
    """
    if not path.is_file():
        return []
    whole = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn
    try:
        lines = [(json.loads(raw), raw) for raw in whole]
        return [(line, raw) for line, raw in lines if line["round"] <= last]
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged ({error}): start the run again") from error
