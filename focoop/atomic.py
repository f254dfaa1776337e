"""Cache files that several processes may write at once: whole or not at all, the last one wins.

Run folders use `durable` instead: one writer, and on the disk when a call returns.
"""

import os
import uuid
from contextlib import suppress
from pathlib import Path


def default_cache() -> Path:
    """The folder of all caches: `$FOCOOP_CACHE`, or `~/.cache/focoop`."""
    chosen = os.environ.get("FOCOOP_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "focoop"


def replace(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step; a reader never sees a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
