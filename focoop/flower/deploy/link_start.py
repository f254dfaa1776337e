"""Start Flower's SuperLink until it answers, whatever the last one left behind.

Three things have kept it from starting: another program took the port between our look and its
start, its database was half made when the one before was stopped, or the machine lacks something
that only a person can mend. The first two are mended here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from focoop.errors import FederationError
from focoop.flower.deploy import processes

SECONDS = 120.0  # until it must answer
LOG = "superlink.log"
DATABASE = "superlink.db"
PORTS = 3  # that are tried
TAKEN = "address already in use"
# Where one of these is the reason, a new database would not help.
NEEDS_A_PERSON = ("no space left on device", "disk is full", "permission denied", "readonly")


@dataclass(frozen=True)
class LinkStart:
    """What a SuperLink is started with.

    Attributes:
        keys: the coordinator's folder of keys.
        home: folder of Flower's files.
        secret: file of the secret that its owner sends.
        environment: its environment variables.
        say: told what a person should know.
    """

    keys: Path
    home: Path
    secret: Path
    environment: Mapping[str, str]
    say: Callable[[str], None]

    def start(self) -> tuple["Popen[bytes]", int]:
        """Start it and wait until it answers.

        Flower makes its tables in many small steps: a database whose making was interrupted can
        never be opened again. Nothing in it is needed: sites are admitted anew at each start, runs
        that it knows are ended, and rounds are in the run folder.

        Returns:
            The process, and its port on loopback.

        Raises:
            FederationError: It does not start, for a reason that only a person can mend.
        """
        for _ in range(PORTS):
            port, begun = processes.free_port(), self._size()
            old = (self.home / DATABASE).exists()
            try:
                return self._once(port), port
            except processes.LinkEndedError as error:
                said = self._said(begun)
                lower = said.lower()
                if TAKEN in lower:  # between our look and its start: take another one
                    continue
                if error.killed or not old or any(reason in lower for reason in NEEDS_A_PERSON):
                    raise FederationError(f"{error}; it said: {last_words(said)}") from error
            self._set_aside()
        raise FederationError(
            f"the SuperLink found no free port on {processes.LOOPBACK}: see {self.home / LOG}"
        )

    def _once(self, port: int) -> "Popen[bytes]":
        command = processes.superlink(self.keys, port, self.home / DATABASE, self.secret)
        link = processes.begin(command, self.environment, self.home / LOG)
        address = f"{processes.LOOPBACK}:{port}"
        try:
            processes.await_server(address, self.keys / "ca.crt", SECONDS, link, self.home / LOG)
        except BaseException:
            processes.stop([link])
            raise
        return link

    def _set_aside(self) -> None:
        for path in self.home.glob(f"{DATABASE}*"):  # with SQLite's journal
            path.replace(path.with_name(f"unreadable-{path.name}"))
        self.say(
            "the SuperLink did not start with its old database, which may be half made or damaged "
            f"(kept as unreadable-{DATABASE}); it starts with a new one"
        )

    def _size(self) -> int:
        log = self.home / LOG
        return log.stat().st_size if log.exists() else 0

    def _said(self, begun: int) -> str:
        with open(self.home / LOG, "rb") as file:
            file.seek(begun)
            return file.read().decode(errors="replace")


def last_words(text: str) -> str:
    """Return the last line of a program's output that says something.

    Args:
        text: The output.

    Returns:
        The line; `nothing` where there is none.

    >>> last_words("INFO: starting   ")
    'INFO: starting'
    """
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("(Background", "[SQL"))]
    return told[-1][:300] if told else "nothing"
