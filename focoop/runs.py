"""A run is a folder; one file in it, `state.safetensors`, decides how far the run has come.

    config.toml                          the resolved configuration
    manifest.json                        origin, hardware, times, bytes up and down, status
    metrics.jsonl                        one line per evaluated round; no times, so equal runs agree
    state.safetensors                    the server's tensors and the last committed round
    clients/0007/round-0012.safetensors  client 7's private tensors after round 12

A round's private tensors, metrics and manifest are written first; replacing `state.safetensors`
commits them all. Opening for writing undoes whatever is newer than the committed round, so a run
killed at any moment goes on as if the unfinished round had never begun.
"""

import contextlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from focoop.config import differences, from_dict, to_toml
from focoop.durable import DRAFT, Lock, append, remove, write
from focoop.errors import ConfigError, RunError
from focoop.manifest import code, now, plain
from focoop.runstore import Params, PrivateStore, dump, read, round_of
from focoop.schema import RunConfig

CONFIG, MANIFEST, METRICS = "config.toml", "manifest.json", "metrics.jsonl"
STATE, CLIENTS, LOCK = "state.safetensors", "clients", ".lock"


@dataclass(frozen=True)
class Committed:
    """The last committed round: its number, the shared tensors and the server's memory."""

    round_index: int
    shared: Params
    memory: Params


class RunFolder:
    """A run on disk. Use it as a context manager when writing: an error then sets the status."""

    def __init__(self, path: Path, config: RunConfig, manifest: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.manifest = manifest
        self._lock = Lock(path / LOCK)
        self._writable = False
        self.private = PrivateStore(path / CLIENTS, self.last_round())

    @classmethod
    def create(cls, path: Path, config: RunConfig, manifest: Mapping[str, Any]) -> Self:
        """A new run in an absent or empty folder, open for writing."""
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file: choose another folder with --out")
        # A run killed while it was being created leaves a manifest without a configuration.
        own = {LOCK, MANIFEST, MANIFEST + DRAFT, CONFIG + DRAFT}
        if path.is_dir() and {entry.name for entry in path.iterdir()} - own:
            what = "already holds a run" if (path / CONFIG).exists() else "is not empty"
            raise RunError(f"{path} {what}: choose another folder with --out, or remove it")
        folder = cls(path, config, dict(manifest))
        with folder._writing():
            folder._write_manifest()
            write(path / CONFIG, to_toml(config).encode())
        return folder

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> Self:
        """A run that exists; `writable` resumes it: what was not committed is undone."""
        folder = cls(path, read_config(path), read_manifest(path))
        if writable:
            with folder._writing():
                folder._roll_back()
        return folder

    @property
    def status(self) -> str:
        """finished, failed, interrupted, running, or killed (running, says a dead process)."""
        status = str(self.manifest.get("status", "running"))
        return (
            "killed" if status == "running" and not self._writable and self._lock.free else status
        )

    def last_round(self) -> int:
        """The committed round, or -1 where nothing is committed."""
        path = self.path / STATE
        return round_of(path) if path.is_file() else -1

    def resume_point(self) -> Committed | None:
        """The state to go on from, or None at the very start."""
        path = self.path / STATE
        if not path.is_file():
            return None
        tensors, metadata = read(path)
        return Committed(
            int(metadata["round"]),
            {n.removeprefix("shared/"): t for n, t in tensors.items() if n.startswith("shared/")},
            {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")},
        )

    def commit(
        self,
        round_index: int,
        shared: Mapping[str, Tensor],
        metrics: Mapping[str, Any] | None = None,
        traffic: Mapping[str, Any] | None = None,
        memory: Mapping[str, Tensor] | None = None,
    ) -> None:
        """End a round: after this it is never repeated, before this it never happened.

        `metrics` is the round's line in `metrics.jsonl` (None: not evaluated); `traffic` goes to
        the manifest, where times belong too.
        """
        self._require_writable()
        if round_index <= self.last_round():
            raise RunError(f"round {round_index} of {self.path} is committed already")
        if metrics is not None:
            line = json.dumps(plain({"round": round_index, **metrics}), allow_nan=False)
            append(self.path / METRICS, line.encode() + b"\n")
        if traffic is not None:
            rounds = self.manifest.setdefault("rounds", [])
            rounds.append(plain({"round": round_index, **traffic}))
        self.manifest["updated"] = now()
        self._write_manifest()
        tensors = {f"shared/{name}": tensor for name, tensor in shared.items()}
        tensors |= {f"memory/{name}": tensor for name, tensor in (memory or {}).items()}
        write(self.path / STATE, dump(tensors, {"round": str(round_index)}))
        self.private.settle(round_index)

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every committed evaluated round, in order."""
        return [line for line, _ in self._committed_lines()]

    def pin(self, key: str, value: Any) -> None:
        """Note a fact the results depend on, or refuse to go on when it has changed."""
        value = plain(value)
        if key in self.manifest and self.manifest[key] != value:
            raise RunError(
                f"{key} is not what {self.path} was started with (then {self.manifest[key]}, now "
                f"{value}): restore it, or start a new run with another --out"
            )
        if key not in self.manifest:
            self._require_writable()
            self.manifest[key] = value
            self._write_manifest()

    def finish(self, status: str, **notes: Any) -> None:
        """Set the final status, add notes to the manifest and give the folder free."""
        self._require_writable()
        self.manifest |= {"status": status, "ended": now(), **plain(notes)}
        try:
            self._write_manifest()
        finally:
            self.close()

    def close(self) -> None:
        """Give the folder free; the status stays."""
        self._writable = False
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._writable:
            return
        ended_early = kind is None or issubclass(kind, KeyboardInterrupt | SystemExit)
        # The error under way matters more than a disk too full to note it.
        with contextlib.suppress(RunError):
            self.finish("interrupted" if ended_early else "failed", reason=str(error or ""))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Take the lock and keep it, unless the block fails."""
        self._lock.take()
        self._writable = True
        self.private.limit = None
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _require_writable(self) -> None:
        if not self._writable:
            raise RunError(f"{self.path} is open for reading only")

    def _roll_back(self) -> None:
        last = self.last_round()
        if (self.path / METRICS).exists():
            write(self.path / METRICS, b"".join(raw + b"\n" for _, raw in self._committed_lines()))
        self.private.settle(last)
        rounds = self.manifest.get("rounds", [])
        self.manifest["rounds"] = [entry for entry in rounds if entry["round"] <= last]
        resumed = self.manifest.setdefault("resumed", [])
        resumed.append({"round": last, "time": now(), "code": code()})
        self.manifest["status"] = "running"
        self._write_manifest()

    def _write_manifest(self) -> None:
        write(self.path / MANIFEST, json.dumps(self.manifest, indent=1).encode() + b"\n")

    def _committed_lines(self) -> list[tuple[dict[str, Any], bytes]]:
        path = self.path / METRICS
        if not path.is_file():
            return []
        last = self.last_round()
        whole = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn
        try:
            lines = [(json.loads(raw), raw) for raw in whole]
            return [(line, raw) for line, raw in lines if line["round"] <= last]
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{path} is damaged ({error}): start the run again") from error


def start(path: Path, config: RunConfig, manifest: Mapping[str, Any], *, resume: bool) -> RunFolder:
    """The folder of a run, created or, with `resume`, continued; open for writing.

    A finished run is opened for reading: its status says that nothing is left to do.
    """
    if not (path / CONFIG).exists() or _discarded(path):
        return RunFolder.create(path, config, manifest)
    changed = differences(read_config(path), config)
    if changed:
        shown = "\n  ".join(changed[:8] + ["..."] * (len(changed) > 8))
        raise RunError(
            f"{path} holds a run with another configuration:\n  {shown}\n"
            "choose another folder with --out, or go back to those settings"
        )
    found = RunFolder.open(path)
    if found.status == "finished" and resume:
        return found
    if not resume:
        raise RunError(
            f"{path} already holds this run ({found.status}, round {max(found.last_round(), 0)}): "
            "continue it with --resume, or choose another folder with --out"
        )
    return RunFolder.open(path, writable=True)


def _discarded(path: Path) -> bool:
    """Clear away a run that ended before its first commit: there is nothing in it to keep."""
    found = RunFolder.open(path)
    if found.last_round() >= 0 or found.status not in ("failed", "interrupted"):
        return False
    for name in (CONFIG, MANIFEST, METRICS):
        for file in (path / name, path / (name + DRAFT)):
            remove(file)
    remove(path / (STATE + DRAFT))
    return True


def list_runs(root: Path) -> list[RunFolder]:
    """All runs below `root`, oldest first; folders that are no runs are passed over."""
    found = []
    for path in sorted(root.rglob(CONFIG)) if root.is_dir() else []:
        with contextlib.suppress(RunError):
            found.append(RunFolder.open(path.parent))
    return sorted(found, key=lambda run: (str(run.manifest.get("started", "")), run.path))


def read_config(path: Path) -> RunConfig:
    """The configuration of a run."""
    try:
        return from_dict(tomllib.loads((path / CONFIG).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise RunError(f"{path} is not a run folder: it has no {CONFIG}") from error
    except (OSError, ValueError, ConfigError) as error:
        raise RunError(f"cannot read {path / CONFIG}: {error}") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run."""
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path / MANIFEST}: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path / MANIFEST} is damaged: it holds no table")
    return content
