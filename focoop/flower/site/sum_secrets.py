"""A site's secrets of a secure sum, in a file of its own between messages, and its marks of sums.

The file is readable by its owner alone, never leaves the site and is removed as soon as the shares
are open, or by what the server asks next. The marks say which sums have begun here.
"""

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from flwr.app import RecordDict

from focoop.caching import checksum, is_intact, parse_json, sealed
from focoop.errors import FederationError
from focoop.flower.masking import Masker
from focoop.flower.records import Order
from focoop.flower.site.client import SiteClient
from focoop.flower.sum_records import record_of
from focoop.runs import append, write

LAST = ".last"  # of the file that names the last sum that has begun
ATTEMPT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SumSecrets:
    """The file of a site's secrets in the sum that `attempt` names."""

    path: Path
    round_index: int
    attempt: str

    @classmethod
    def of(cls, site: SiteClient, order: Order, content: RecordDict) -> "SumSecrets":
        """Find the sum that a message is about.

        Args:
            site: The site.
            order: The order.
            content: The message's content.

        Returns:
            The sum.

        Raises:
            FederationError: The message names none.
        """
        attempt = record_of(content).get("attempt")
        if not isinstance(attempt, str) or not ATTEMPT.fullmatch(attempt):
            raise FederationError("the message does not say which sum it is about")
        return cls(file_of(site, order), order.round_index, attempt)

    def load(self) -> Masker | None:
        """Return what was kept of this sum, or None.

        A file of another sum, or a damaged one, is none.
        """
        try:
            saved = parse_json(self.path.read_text(encoding="utf-8"))
            if not is_intact(saved):
                return None
            if (saved["round"], saved["attempt"]) != (self.round_index, self.attempt):
                return None
            return Masker.load(saved["masker"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def need(self) -> Masker:
        """Return what was kept of this sum, where it must have begun.

        Returns:
            Its secrets.

        Raises:
            FederationError: It has not.
        """
        masker = self.load()
        if masker is None:
            raise FederationError("this site has no part in that sum: it is over, or never began")
        return masker

    def begin(self) -> None:
        """Note that this sum has begun here; one that has is never begun again.

        Keys that others signed for it could otherwise come back after their secrets were opened.

        Raises:
            FederationError: The site has taken part in it, or its marks are damaged.
        """
        path = self.path.with_suffix(".begun")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        attempts, last = begun(path)
        if self.attempt in attempts:
            raise FederationError("this site has taken part in that sum: it is over")
        whole, torn, _ = _content(path).rpartition(b"\n")
        if _content(path) != whole + torn:
            write(path, whole + torn)
        known = checksum(last, self.attempt)
        append(path, f"{self.attempt} {known}\n".encode())
        write(path.with_suffix(LAST), f"{known}\n".encode())

    def save(self, masker: Masker) -> None:
        """Keep a sum on the disk before an answer leaves, for nobody else to read.

        Args:
            masker: Its secrets.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {"round": self.round_index, "attempt": self.attempt, "masker": masker.dump()}
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(sealed(about), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.path)


def begun(path: Path) -> tuple[list[str], str]:
    """Read the marks of sums that have begun; a mark that a crash has cut short never counted.

    Args:
        path: The file; a line is a sum and a checksum of it and of the line before. Lines of an
            earlier focoop have no checksum.

    Returns:
        The sums, and the checksum of the last line.

    Raises:
        FederationError: A line is damaged or lost; the file beside it names the last one.
    """
    noted = _content(path.with_suffix(LAST)).decode("ascii", "replace").strip()
    attempts, ends = [], [""]
    for line in _content(path).split(b"\n")[:-1]:
        attempt, _, known = line.decode("ascii", "replace").partition(" ")
        unsealed = not known and not ends[-1]
        if not ATTEMPT.fullmatch(attempt) or not (unsealed or known == checksum(ends[-1], attempt)):
            break
        attempts.append(attempt)
        ends.append(known)
    else:
        if noted in ends:
            return attempts, ends[-1]
    raise FederationError(
        f"{path} is damaged: this site cannot tell which sums it took part in; restore the file "
        "from a copy, or join the next run with a new state folder"
    )


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def file_of(site: SiteClient, order: Order) -> Path:
    """Return the file of a client's sums.

    Args:
        site: The site.
        order: The order.

    Returns:
        The file.
    """
    return site.state / order.key / "sums" / f"{site.client:04d}.json"


def forget(site: SiteClient, order: Order) -> None:
    """Remove what a sum has left that was never opened.

    Args:
        site: The site.
        order: The order.
    """
    file_of(site, order).unlink(missing_ok=True)
