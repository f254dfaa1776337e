"""Bring run folders of an earlier focoop to the present format.

Format 1 had no checksums and kept all rounds in the manifest. What such a folder holds now is taken
as right; from then on every change is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from focoop.caching import checksum
from focoop.config import RunConfig
from focoop.errors import RunError
from focoop.runs.files import (
    CLIENTS,
    CONFIG,
    FORMAT,
    METRICS,
    NAMES,
    STATE,
    SUMS,
    metric_lines,
)
from focoop.runs.ledger import Entry, Ledger, Sums
from focoop.runs.names import run_name
from focoop.runs.private_store import PrivateStore, parse
from focoop.runs.snapshot import round_in, state_bytes


def converted(run: Path, config: RunConfig, manifest: dict[str, Any]) -> dict[str, Any]:
    """Write the rounds of a folder of format 1 with the checksums of its files.

    The folder counts as converted once the manifest that is returned is in place; stopped before
    that, all of this is done again.

    Args:
        run: The run folder; this process holds its lock.
        config: Its configuration.
        manifest: Its manifest.

    Returns:
        The manifest to be written.

    Raises:
        RunError: A file cannot be read or written.
    """
    raw = state_bytes(run)
    try:
        last = -1 if raw is None else round_in(raw)
    except ValueError as error:
        raise RunError(f"{run} cannot be read: its state is damaged ({error})") from error
    if raw is not None:
        parse(run / STATE, raw)  # what is cut off must not get a checksum
    entries: dict[int, Entry] = {
        entry["round"]: dict(entry)
        for entry in manifest.get("rounds", [])
        if entry["round"] <= last
    }
    lines = {
        line["round"]: checksum(raw) for line, raw in metric_lines(run / METRICS, last, manifest)
    }
    private: dict[int, dict[int, str]] = {}
    for client, versions in PrivateStore(run / CLIENTS, last).listed().items():
        for version in [v for v in versions if v.round_index <= last][-1:]:
            path = run / CLIENTS / f"{client:04d}" / f"round-{version.round_index:04d}.safetensors"
            private.setdefault(version.round_index, {})[client] = _sum_of(path)
    name = run_name(config)
    rounds = sorted({*entries, *lines, *private, *([last] if raw is not None else [])})
    ledger = Ledger(run, name)
    ledger.rewrite(
        {
            **entries.get(index, {"round": index}),
            "sums": Sums(
                checksum(raw) if raw is not None and index == last else "",
                lines.get(index, ""),
                private.get(index, {}),
            ).to_json(),
        }
        for index in rounds
    )
    there = [file for file in (CONFIG, NAMES) if (run / file).is_file()]
    sums = {file: [checksum((run / file).read_bytes())] for file in there}
    kept = {key: value for key, value in manifest.items() if key != "rounds"}
    return {**kept, "format": FORMAT, "run": name, SUMS: sums}


def _sum_of(path: Path) -> str:
    """The checksum of a whole file of tensors."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from error
    parse(path, raw)
    return checksum(raw)
