"""The files of a run without its models: enough for tables and reports, small enough to send."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from focoop.caching import checksum, sealed
from focoop.errors import RunError
from focoop.runs.files import CONFIG, MANIFEST, METRICS, NAMES, ROUNDS, SLIM, STATE, SUMS
from focoop.runs.folder import RunFolder
from focoop.runs.ledger import Ledger, Sums
from focoop.runs.private_store import dump


def slim_files(run: RunFolder, memory: Sequence[str] = ()) -> dict[str, bytes]:
    """Return the files of a copy of a finished run that has no tensors of models.

    The copy opens as a run and is checked as one. Its manifest says `slim`, so that whoever asks
    for its models is told that there are none.

    Args:
        run: The run.
        memory: Tensors of the server's memory that are kept, such as `plan_by_word`.

    Returns:
        The files' bytes by name.

    Raises:
        RunError: The run is not finished, or a file of it is damaged.
    """
    committed = run.resume_point()
    if committed is None or run.status != "finished":
        raise RunError(f"{run.path} is {run.status}: only finished runs can be packed")
    kept = {f"memory/{name}": committed.memory[name] for name in memory if name in committed.memory}
    state = dump(kept, {"round": str(committed.round_index)})
    ledger = Ledger.read(run.path, str(run.manifest["run"]), up_to=committed.round_index)
    entries = [_without_models(entry) for entry in ledger.entries]
    entries[-1][SUMS]["state"] = checksum(state)
    facts = {key: value for key, value in run.manifest.items() if key != "rounds"}
    manifest = sealed(json.loads(json.dumps({**facts, SLIM: True})))
    files = {name: _content(run.path / name) for name in (CONFIG, NAMES, METRICS)}
    return files | {
        MANIFEST: json.dumps(manifest).encode() + b"\n",
        ROUNDS: ledger.signed(entries)[0],
        STATE: state,
    }


def _without_models(entry: dict[str, Any]) -> dict[str, Any]:
    """A round's line without the checksums of tensors, which make up most of it."""
    return {**entry, SUMS: Sums(metrics=Sums.of(entry).metrics).to_json()}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from error
