"""API keys: a file of hashes, one line per key; the keys themselves are with their users alone.

    # name  sha256 of the key
    ward-7  9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

A key is 256 random bits, so one round of SHA-256 is enough: there is nothing to guess.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
from pathlib import Path

from focoop.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
LINE = re.compile(r"(\S+)\s+([0-9a-f]{64})")
log = logging.getLogger("focoop.serve")
PREFIX = "focoop_"  # so that people and scanners of leaked secrets know what they see


class KeyFile:
    """The keys that a server takes; the file is read again when it changes.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, holds no key, or a line is wrong.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp, self._hashes = _stamp(path), read_hashes(path)

    def owner(self, key: str) -> str | None:
        """Find whose key this is, in a time that does not depend on the key.

        Args:
            key: What a request brought.

        Returns:
            The key's name; None for a wrong key.
        """
        self._renew()
        asked = _hash(key)
        found = None
        for name, known in self._hashes.items():
            if hmac.compare_digest(asked, known):
                found = name
        return found

    def _renew(self) -> None:
        """Take up added and removed keys, all of them where the file is emptied or removed.

        A file with a wrong line changes nothing; the server's log says so.
        """
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._hashes = _lines(self._path) if self._path.exists() else {}
        except ConfigError as error:
            log.warning("the keys stay as they were: %s", error)


def read_hashes(path: Path) -> dict[str, str]:
    """Read a file of keys.

    Args:
        path: The file.

    Returns:
        Hash by name.

    Raises:
        ConfigError: It cannot be read, holds no key, or a line is wrong.
    """
    hashes = _lines(path)
    if not hashes:
        raise ConfigError(f"{path} holds no key: add one with --add-key NAME")
    return hashes


def _lines(path: Path) -> dict[str, str]:
    """The keys in a file, of which there may be none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the keys in {path} ({error}): make one with focoop serve --keys {path} "
            "--add-key NAME"
        ) from error
    hashes = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise ConfigError(f"{path}, line {number}: a name and a SHA-256 are expected")
        hashes[match[1]] = match[2]
    return hashes


def add_key(path: Path, name: str) -> str:
    """Make a key and add its hash to a file, which others cannot read.

    Args:
        path: The file; it is made where it is missing.
        name: Whose key it is.

    Returns:
        The key. It cannot be shown again.

    Raises:
        ConfigError: The name is taken or cannot be one.
    """
    if NAME.fullmatch(name) is None:
        raise ConfigError(f"a key cannot be called {name!r}: use letters, digits, dots, - and _")
    if path.exists() and name in _lines(path):
        raise ConfigError(f"{path} has a key {name!r} already: remove its line, or choose a name")
    key = PREFIX + secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            cut = file.tell() > 0 and not path.read_bytes().endswith(b"\n")
            file.write("\n" * cut + f"{name}  {_hash(key)}\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
    return key


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size
