"""Names of the files of a run folder, and readers of its configuration, manifest and metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from focoop.caching import SUM, checksum, is_intact, parse_json
from focoop.config import RunConfig, from_dict
from focoop.errors import ConfigError, MethodError, RunError, newer_format
from focoop.fields import brief, parse_toml
from focoop.plugins import looking_in
from focoop.runs.places import base

FORMAT = 2  # of run folders; 1 had no checksums, and the rounds in the manifest
CONFIG, MANIFEST, METRICS, NAMES = "config.toml", "manifest.json", "metrics.jsonl", "names.json"
STATE, CLIENTS, LOCK, LOG = "state.safetensors", "clients", ".lock", "log.txt"
ROUNDS, BEFORE = "rounds.jsonl", "state.before.safetensors"
DRAW = "draw.secret"  # a coordinator's own seed for drawing sites
# Files with times or process ids in them; all others agree byte by byte in equal runs.
TIMED = (MANIFEST, LOCK, LOG, ROUNDS)
SLIM = "slim"  # in the manifest of a copy that has no tensors of models
SUMS = "sums"  # in the manifest: checksums of other files; more than one while one is replaced
RESTORE = "restore it from a copy, or start the run again with another --out"


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
        raw, manifest = (path / CONFIG).read_bytes(), _manifest_or_nothing(path)
        check_sum(path / CONFIG, raw, manifest)
        tree = parse_toml(raw.decode("utf-8"))
        with looking_in(base(path, manifest)):
            return from_dict(tree)
    except FileNotFoundError as error:
        below = next(path.glob(f"*/**/{CONFIG}"), None) if path.is_dir() else None
        hint = f"; there are runs below it, such as {below.parent}" if below else ""
        if not path.exists():
            raise RunError(f"{path} does not exist: focoop runs lists the runs") from error
        raise RunError(f"{path} is not a run folder: it has no {CONFIG}{hint}") from error
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
        RunError: It is missing, damaged, or of a newer focoop.
    """
    file = path / MANIFEST
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {file}: {error}; {RESTORE}") from error
    if not isinstance(content, dict):
        raise RunError(f"{file} is damaged: it holds no table; {RESTORE}")
    form = content.get("format", 1)
    if type(form) is not int or form < 1:
        raise RunError(f"{file} is damaged: its format is {brief(form)}; {RESTORE}")
    newer = form > FORMAT
    if newer and (SUM not in content or is_intact(content)):
        raise RunError(newer_format(path, form, FORMAT))
    # The format is looked at last: a changed bit in it must not make a folder an old one.
    if SUM in content and not is_intact(content):
        raise RunError(f"{file} is damaged: its checksum differs; {RESTORE}")
    if SUM not in content and form != 1:
        raise RunError(f"{file} is damaged: it has no checksum; {RESTORE}")
    rounds = content.get("rounds", [])  # of format 1
    if not isinstance(rounds, list) or not all(map(_is_round, rounds)):
        raise RunError(f"{file} is damaged: its rounds are no tables; {RESTORE}")
    content.pop(SUM, None)
    return content


def _is_round(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("round"), int)


def check_sum(file: Path, raw: bytes, manifest: Mapping[str, Any]) -> None:
    """Refuse a file of a run whose checksum is none of those that the manifest has of it.

    Args:
        file: The file.
        raw: Its bytes.
        manifest: The run's manifest; one of an earlier focoop has no checksums.

    Raises:
        RunError: The file is not the one that was written.
    """
    known = manifest.get(SUMS, {}).get(file.name)
    if known is not None and checksum(raw) not in known:
        raise RunError(f"{file} is damaged or was edited: its checksum differs; {RESTORE}")


def raw_lines(path: Path) -> list[bytes]:
    """Read the whole lines of a file; what follows the last newline was cut short by a crash.

    Args:
        path: The file.

    Returns:
        The lines; none where there is no file.

    Raises:
        RunError: It cannot be read.
    """
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from error


def round_of_line(raw: bytes) -> int | None:
    """Return the round of a line of metrics.

    Args:
        raw: The line.

    Returns:
        Its number; None where the line is damaged.
    """
    try:
        index = parse_json(raw)["round"]
    except (ValueError, TypeError, KeyError):
        return None
    return index if isinstance(index, int) else None


def metric_lines(
    path: Path, last: int, manifest: Mapping[str, Any]
) -> list[tuple[dict[str, Any], bytes]]:
    """Read the lines of a file of metrics that has no checksums.

    Args:
        path: The file.
        last: The round after which lines are left out.
        manifest: The run's manifest.

    Returns:
        Each line, parsed and as its bytes on disk.

    Raises:
        RunError: A line is damaged, or the last one of a finished run is lost.
    """
    lines = []
    for number, raw in enumerate(raw_lines(path), start=1):
        index = round_of_line(raw)
        if index is None:
            raise RunError(f"{path} is damaged (line {number}); {RESTORE}")
        if index <= last:
            lines.append((parse_json(raw), raw))
    if manifest.get("status") == "finished" and lines and lines[-1][0]["round"] != last:
        raise RunError(f"{path} has lost the line of round {last}, the last: {RESTORE}")
    return lines
