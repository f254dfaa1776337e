"""Compare two run folders: tensors by their bytes, JSON and TOML value by value."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Files with times or process numbers in them, and the state of the round before, which older
# commits do not keep.
TIMED = ("manifest.json", "log.txt", ".lock", "rounds.jsonl", "state.before.safetensors")


DROPPED = ""  # in place of a name: the setting exists in one version only


def compare_folders(
    old: Path,
    new: Path,
    to_old: Mapping[str, str] | None = None,
    to_new: Mapping[str, str] | None = None,
    measured: Sequence[str] = (),
) -> tuple[int, tuple[str, ...]]:
    """Compare the files of two run folders.

    Args:
        old: a run folder.
        new: the run folder that is to agree with it.
        to_old: new to old names of settings; an empty old name: the setting was added.
        to_new: old to new names of settings; an empty new name: the setting was dropped.
        measured: metrics that may be in the new folder alone.

    Returns:
        How many files were compared, and one line per file that differs: the first places, with +
        for what only the new folder has and - for what only the old one has.
    """
    names = [
        {
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file() and path.name not in TIMED and not _superseded(path)
        }
        for folder in (old, new)
    ]
    differences = [f"{name}: only in {old}" for name in sorted(names[0] - names[1])]
    differences += [f"{name}: only in {new}" for name in sorted(names[1] - names[0])]
    common = sorted(names[0] & names[1])
    for name in common:
        before, after = _content(old / name), _content(new / name)
        if name == "config.toml":
            before = _renamed(before, to_new or {})
            added = {name for name, other in (to_old or {}).items() if other == DROPPED}
            after = {
                k: v for k, v in after.items() if k in before or k.partition("[")[0] not in added
            }
        if name == "metrics.jsonl":
            after = {k: v for k, v in after.items() if k in before or not _is_of(k, measured)}
        keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        keys = [("" if k in after else "-") + ("" if k in before else "+") + k for k in keys]
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            differences.append(f"{name}: {', '.join(keys[:3])}{more}")
    if not common:
        differences.append("no file to compare")
    return len(common), tuple(differences)


def _superseded(path: Path) -> bool:
    """Whether a client has a newer private file beside this one; older commits keep the newest."""
    versions = sorted(path.parent.glob("round-*.safetensors"))
    return path in versions[:-1]


def _content(path: Path) -> dict[str, Any]:
    """What a file holds, by place: tensors as bytes, other values as JSON text."""
    raw = path.read_bytes()
    if path.suffix == ".safetensors":
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        metadata = {f"metadata {k}": v for k, v in header.pop("__metadata__", {}).items()}
        body = raw[8 + size :]
        return metadata | {
            name: (about["dtype"], about["shape"], body[slice(*about["data_offsets"])])
            for name, about in header.items()
        }
    text = raw.decode("utf-8")
    if path.suffix == ".jsonl":
        return dict(_leaves([json.loads(line) for line in text.splitlines()], "line"))
    if path.suffix == ".json":
        return dict(_leaves(json.loads(text), ""))
    if path.suffix == ".toml":
        return dict(_leaves(tomllib.loads(text), ""))
    return {"content": raw}


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every value of nested lists and tables with its place; -0.0, 1 and 1.0 are told apart."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value:
        for index, below in enumerate(value):
            yield from _leaves(below, f"{place}[{index}]")
    else:
        yield place, json.dumps(value)


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Settings under other names, without the dropped ones; a list has an entry per element."""
    found = {}
    for place, value in values.items():
        key, bracket, index = place.partition("[")
        if (name := names.get(key, key)) != DROPPED:
            found[name + bracket + index] = value
    return found


def _is_of(place: str, metrics: Sequence[str]) -> bool:
    """Whether a place in metrics.jsonl, such as `line[0].clients[2].loss`, is of one of them."""
    return any(part.partition("[")[0] in metrics for part in place.split("."))
