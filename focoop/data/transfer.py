"""Receive one file: resumed where it broke off, compared with its checksum, put in place whole."""

import hashlib
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException, IncompleteRead
from pathlib import Path
from typing import Any

from focoop.caching import parse_json
from focoop.errors import DataError

CHUNK = 1 << 20
TIMEOUT = 60
MARGIN = 1.1  # a server may send a file that is a little larger before its checksum is looked at
Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all (0: not known)


def download(
    url: str,
    target: Path,
    checksum: str = "",
    progress: Progress | None = None,
    size: int = 0,
) -> str:
    """Fetch a file, going on where an earlier attempt stopped.

    The part that is there already is kept beside the target as `.part`. It is used where the server
    says that it still has the same file, or where a checksum tells in the end; else the file comes
    from its start.

    Args:
        url: Where the file is.
        target: Where to put it.
        checksum: `md5:...` or `sha256:...` as published; empty where none is.
        progress: Is told of bytes done and bytes in all.
        size: Bytes the file has; 0 where they are not known.

    Returns:
        The file's sha256.

    Raises:
        DataError: The server cannot be reached, or sends something else than the file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    transfer = Transfer(url, target, checksum, size, progress)
    try:
        if not transfer.resume():
            transfer.discard()
            transfer.run(0)
        digest = transfer.checked()
    except DataError:
        transfer.discard()
        raise
    except (OSError, ValueError, HTTPException) as error:
        raise _unreachable(url, target, _reason(error)) from error
    os.replace(transfer.part, target)
    transfer.tag.unlink(missing_ok=True)
    return digest


@dataclass
class Transfer:
    """One file on its way, with the part of it that is here already."""

    url: str
    target: Path
    checksum: str
    size: int
    progress: Progress | None
    total: int = 0  # bytes of the file as the server tells them; 0: it does not

    @property
    def part(self) -> Path:
        """Return the file that grows."""
        return self.target.with_name(self.target.name + ".part")

    @property
    def tag(self) -> Path:
        """Return the file with the server's mark of the file that the part is of."""
        return self.target.with_name(self.target.name + ".tag")

    def discard(self) -> None:
        """Forget the part."""
        self.part.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)

    def resume(self) -> bool:
        """Go on with a part that is here.

        Returns:
            Whether the file is whole now; False: it must come from its start.
        """
        have = self.part.stat().st_size if self.part.is_file() else 0
        if not have or not (self.tag.is_file() or self.checksum):
            return False  # nobody could tell whether the rest belongs to this part
        if self.size and have > MARGIN * self.size:
            return False
        try:
            if not self.run(have):
                return False
            self.checked()
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            # Nothing is left to send: the part is the whole, or it is of another file.
            return str(error.headers.get("Content-Range", "")) == f"bytes */{have}" or bool(
                self.checksum and self.matches()
            )
        except DataError:
            return False  # parts of two files: once more from the start
        return True

    def run(self, have: int) -> bool:
        """Receive the file from byte `have` on.

        Args:
            have: Bytes that are here.

        Returns:
            False where the server sends other bytes than those asked for.
        """
        headers = {"User-Agent": "focoop"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.tag.is_file():
                headers["If-Range"] = self.tag.read_text("utf-8")
        request = urllib.request.Request(self.url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            whole = 0
            if answer.status == 206:
                sent = re.match(
                    r"bytes (\d+)-\d+/(\d+|\*)$", answer.headers.get("Content-Range", "")
                )
                if sent is None or int(sent[1]) != have:
                    return self._other_bytes(have)
                whole = int(sent[2]) if sent[2] != "*" else 0
            else:
                have = 0
            self._receive(answer, have, whole)
        return True

    def _other_bytes(self, asked: int) -> bool:
        """Nothing is kept of an answer that does not begin at the byte that was asked for."""
        if not asked:
            raise OSError("the server sent a part of the file and was asked for all of it")
        return False

    def _receive(self, answer: Any, have: int, whole: int = 0) -> None:
        """Append what the server sends from byte `have` on; `whole`: bytes of the file."""
        if "text/html" in answer.headers.get("Content-Type", ""):
            raise ValueError("the server sent a web page in place of the file")
        length = int(answer.headers.get("Content-Length") or 0)
        self.total = whole or (have + length if length else 0)
        self._refuse_large(self.total)
        if etag := answer.headers.get("ETag"):
            self.tag.write_text(etag, "utf-8")
        else:
            self.tag.unlink(missing_ok=True)
        with open(self.part, "r+b" if have else "wb") as file:
            file.truncate(have)
            file.seek(have)
            while block := answer.read(CHUNK):
                file.write(block)
                have += len(block)
                self._refuse_large(have)
                if self.progress is not None:
                    self.progress(self.target.name, have, self.total)
        if self.total and have < self.total:
            raise OSError(f"the connection ended after {have} of {self.total} bytes")

    def _refuse_large(self, have: int) -> None:
        if self.size and have > MARGIN * self.size:
            raise DataError(
                f"{self.url} sends more than the {self.size:,} bytes the file has: get it "
                f"elsewhere and put it at {self.target}"
            )

    def matches(self) -> bool:
        """Return whether the part agrees with the published checksum."""
        kind, _, wanted = self.checksum.partition(":")
        return _hash(self.part, kind) == wanted

    def checked(self) -> str:
        """Compare the part with what is known of the file.

        Returns:
            Its sha256.

        Raises:
            DataError: It is another file, or not all of it.
        """
        digest = compared(self.part, self.target, self.url, self.checksum)
        have = self.part.stat().st_size
        if self.size and have != self.size and not self.checksum:
            raise DataError(
                f"{self.url} sent {have:,} bytes and the file has {self.size:,}: try again later, "
                f"or get it elsewhere and put it at {self.target}"
            )
        if problem := cut(self.part, self.target.name):
            raise DataError(f"{self.url} sent a file that is {problem}: try again later")
        return digest


def cut(path: Path, name: str) -> str:
    """Say what is wrong with a file whose end can be recognised.

    Args:
        path: The file.
        name: The name it is to have.

    Returns:
        The problem; empty where none is seen.
    """
    if not path.stat().st_size:
        return "empty"
    if not name.endswith(".json"):
        return ""
    try:
        parse_json(path.read_text("utf-8"))
    except ValueError:
        return "cut off or no JSON"
    return ""


def _reason(error: Exception) -> str:
    """Why a transfer failed, in words."""
    if isinstance(error, IncompleteRead):
        return f"the connection ended after {len(error.partial)} bytes of a piece"
    inner = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
    text = str(inner) or type(error).__name__
    return f"the server's answer is no HTTP: {text}" if isinstance(error, BadStatusLine) else text


def compared(file: Path, target: Path, url: str, checksum: str) -> str:
    """Compare a file with its checksum.

    Args:
        file: The file.
        target: Where it is to be in the end, for messages.
        url: Where it comes from, for messages.
        checksum: `md5:...` or `sha256:...`; empty where none is known.

    Returns:
        The file's sha256.

    Raises:
        Differs: It is another file.
    """
    digest = _hash(file, "sha256")
    kind, _, wanted = checksum.partition(":")
    if wanted and (digest if kind == "sha256" else _hash(file, kind)) != wanted:
        raise Differs(
            file,
            f"{file} is not the file that {url} publishes ({kind} differs from {wanted}): remove "
            f"it and try again, or get it elsewhere and put it at {target}",
        )
    return digest


class Differs(DataError):
    """A file has another checksum than it must have.

    Args:
        file: The file, an attribute too.
        message: What to say.
    """

    def __init__(self, file: Path, message: str) -> None:
        self.file = file
        super().__init__(message)


def _hash(path: Path, kind: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _unreachable(url: str, target: Path, why: str) -> DataError:
    return DataError(
        f"cannot get {url} ({why}): check the network and run it again (it continues where it "
        f"stopped), or download the file elsewhere and put it at {target}"
    )
