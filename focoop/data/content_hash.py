"""Hash the content of images, as the key of what is computed from them."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

from focoop.caching import cache_folder, is_intact, parse_json, sealed, write_whole
from focoop.data.decoding import plain_reason
from focoop.data.formats import NotAFile
from focoop.data.image_set import ImageSet
from focoop.data.prefetch import cores, readers
from focoop.errors import DataError
from focoop.progress import tell

TOLD = 100  # images between two reports of progress


def data_hash(images: ImageSet, cache_dir: Path | None = None) -> str:
    """Hash names, labels and content of all files, how deep images are scaled and turned.

    Hashes of contents are remembered by path, size, time of modification, time of change and inode,
    so that a second call reads no image. Whoever replaces a file, also by one of equal size and
    with its old time, changes one of the last two.

    Args:
        images: The images.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        Hexadecimal digits.
    """
    scaled = [images.whites] if images.whites else []
    stored = ["as stored"] if images.store is None and not images.turned else []
    named = [images.classes, images.domain_names, *scaled, *stored]
    whole = hashlib.sha256(json.dumps(named).encode())
    domains = images.domains or (0,) * len(images)
    if images.store is not None:
        rows = [images.files, images.labels, domains, images.store.digest()]
        whole.update(json.dumps(rows).encode())
        return whole.hexdigest()
    content = file_hashes(images, cache_dir)
    for row in zip(images.files, images.labels, domains, content, strict=True):
        whole.update(json.dumps(row).encode())
    return whole.hexdigest()


def file_hashes(images: ImageSet, cache_dir: Path | None = None) -> list[str]:
    """Hash the content of every file; hashes are remembered as `data_hash` says.

    Args:
        images: The images.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        The sha256 of each file, in order.

    Raises:
        DataError: A file cannot be read, or nothing can be remembered in the folder.
    """
    root = images.root.resolve()
    name = hashlib.sha256(str(root).encode()).hexdigest()[:32]
    folder = None if cache_dir is None else cache_dir / "hashes"
    memo_path = cache_folder(folder, "hashes") / f"{name}.json"
    memo: dict[str, list[Any]] = _read_memo(memo_path)
    fresh, hashes = False, []
    with readers(cores()) as pool:  # hashing leaves the interpreter free
        known = pool.map(lambda file: _content(root, file, memo.get(file)), images.files)
        for done, (file, stamp) in enumerate(zip(images.files, known, strict=True)):
            if fresh and done % TOLD == 0:
                tell(f"hashing {root.name}", done, len(images))
            fresh = fresh or memo.get(file) != stamp
            memo[file] = stamp
            hashes.append(stamp[-1])
    if fresh:
        tell(f"hashing {root.name}", len(images), len(images))
        try:
            write_whole(memo_path, json.dumps(sealed({"files": memo})).encode(), private=True)
        except OSError as error:
            raise DataError(
                f"cannot write {memo_path} ({error.strerror}): make room or give write access "
                "there, or choose another folder (environment variable FOCOOP_CACHE)"
            ) from error
    return hashes


def _content(root: Path, file: str, known: list[Any] | None) -> list[Any]:
    """Size, times, inode and sha256 of a file; the latter as known where the others are."""
    try:
        status = (root / file).stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
            raise NotAFile(root / file)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        if known is not None and known[:-1] == stamp:
            return known
        content = hashlib.sha256((root / file).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(
            f"image {root / file} cannot be read ({plain_reason(error)}): the dataset lists it; "
            "put it there, or get the dataset again"
        ) from error
    return [*stamp, content]


def _read_memo(path: Path) -> dict[str, list[Any]]:
    """The remembered hashes; none when there is no sound file."""
    try:
        memo = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    sound = isinstance(memo, dict) and is_intact(memo)
    return dict(memo["files"]) if sound else {}
