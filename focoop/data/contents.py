"""The content of images as one hash, the key of what is computed from them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from focoop import atomic
from focoop.data.ahead import cores, readers
from focoop.data.imageset import ImageSet
from focoop.errors import DataError
from focoop.tensorcache import cache_folder
from focoop.watch import tell

TOLD = 100  # images between two reports of progress


def data_hash(images: ImageSet, cache_dir: Path | None = None) -> str:
    """Hash of names, labels and content of all files.

    Hashes of contents are remembered by (path, size, modification time), so that a second call
    reads no image.
    """
    root = images.root.resolve()
    name = hashlib.sha256(str(root).encode()).hexdigest()[:32]
    folder = None if cache_dir is None else cache_dir / "hashes"
    memo_path = cache_folder(folder, "hashes") / f"{name}.json"
    memo: dict[str, list[Any]] = _read_memo(memo_path)
    fresh = False
    whole = hashlib.sha256(json.dumps([images.classes, images.domain_names]).encode())
    domains = images.domains or (0,) * len(images)
    if images.store is not None:
        rows = [images.files, images.labels, domains, images.store.digest()]
        whole.update(json.dumps(rows).encode())
        return whole.hexdigest()
    with readers(cores()) as pool:  # hashing leaves the interpreter free
        known = pool.map(lambda file: _content(root, file, memo.get(file)), images.files)
        listed = zip(images.files, images.labels, domains, known, strict=True)
        for done, (file, label, domain, stamp) in enumerate(listed):
            if fresh and done % TOLD == 0:
                tell(f"hashing {root.name}", done, len(images))
            fresh = fresh or memo.get(file) != stamp
            memo[file] = stamp
            whole.update(json.dumps([file, label, domain, stamp[2]]).encode())
    if fresh:
        tell(f"hashing {root.name}", len(images), len(images))
        try:
            atomic.replace(memo_path, json.dumps(memo).encode())
        except OSError as error:
            raise DataError(
                f"cannot write {memo_path} ({error.strerror}): make room or give write access "
                "there, or choose another folder (environment variable FOCOOP_CACHE)"
            ) from error
    return whole.hexdigest()


def _content(root: Path, file: str, known: list[Any] | None) -> list[Any]:
    """Size, time and sha256 of a file; the latter as known where the others are."""
    try:
        stat = (root / file).stat()
        if known is not None and known[:2] == [stat.st_size, stat.st_mtime_ns]:
            return known
        content = hashlib.sha256((root / file).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(
            f"image {root / file} cannot be read ({error.strerror}): the dataset lists it; "
            "put it there, or get the dataset again"
        ) from error
    return [stat.st_size, stat.st_mtime_ns, content]


def _read_memo(path: Path) -> dict[str, list[Any]]:
    """The remembered hashes; none when there is no sound file."""
    try:
        memo = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return memo if isinstance(memo, dict) else {}
