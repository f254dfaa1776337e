"""A coordinator's server while it runs: the SuperLink, the worker of its app, and the front."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from focoop.errors import FederationError
from focoop.flower.deploy import processes
from focoop.flower.deploy.control import Control
from focoop.flower.deploy.enrolment import Enrolment
from focoop.flower.deploy.tls_front import Front, open_front
from focoop.flower.identity import registered
from focoop.flower.settings import TRACK

START_SECONDS = 120.0
LINK_LOG, WORKER_LOG = "superlink.log", "server.log"
DATABASE = "superlink.db"


@dataclass(frozen=True)
class Served:
    """The parts of a server that runs."""

    control: Control
    link: "Popen[bytes]"
    worker: "Popen[bytes]"
    front: Front
    home: Path
    again: str = "continue with --resume"

    def check(self) -> None:
        """Raise if a part has ended."""
        parts = {"the SuperLink": (self.link, LINK_LOG), "the worker": (self.worker, WORKER_LOG)}
        for name, (process, log) in parts.items():
            if process.poll() is not None:
                raise FederationError(
                    f"{name} ended ({processes.ended(process)}, see {self.home / log}): "
                    f"{self.again}; sites come back by themselves"
                )
        if not self.front.alive:
            raise FederationError(f"the front ended: {self.again}")


@contextmanager
def serving(
    keys: Path,
    host: str,
    port: int,
    home: Path,
    say: Callable[[str], None],
    track: Sequence[str] = (),
) -> Iterator[Served]:
    """Serve the sites of a federation inside this context.

    Args:
        keys: The coordinator's own folder of keys.
        host: Address to listen on.
        port: Port to listen on.
        home: Folder of Flower's files, made private.
        say: Told what a person should know.
        track: Trackers that the run writes to.

    Yields:
        The server.

    Raises:
        FederationError: The port is taken, or the SuperLink does not start.
    """
    processes.own_folder(home)
    keys, home = keys.resolve(), home.resolve()
    inner, secret = processes.free_port(), processes.new_secret(home)
    authority, environment = keys / "ca.crt", processes.environment(home)
    certificate = str(authority), str(keys / "server.pem"), str(keys / "server.key")
    with ExitStack() as stack:
        front = open_front(host, port, certificate, inner, lambda pem: None, _closed, say)
        stack.callback(front.listener.close)
        command = processes.superlink(keys, inner, home / DATABASE, secret)
        address = f"{processes.LOOPBACK}:{inner}"
        link = _start_link(command, environment, home, address, authority, say)
        stack.callback(processes.stop, [link])
        control = Control(address, authority, home)
        stack.callback(control.close)
        control.end_runs()  # of a server that was killed: sites must not go on with their orders
        control.admit_all({site.name: site.public for site in registered(keys).values()})
        enrolment = Enrolment(keys, control.admit, say)
        command = processes.worker("server", address, secret, authority)
        tracked = {**environment, **({TRACK: "; ".join(track)} if track else {})}
        worker = processes.begin(command, tracked, home / WORKER_LOG)
        stack.callback(processes.stop, [worker])
        front.names, front.enrol = enrolment.name, enrolment
        front.start()
        stack.callback(front.stop)
        yield Served(control, link, worker, front, home)


def _start_link(
    command: Sequence[str],
    environment: Mapping[str, str],
    home: Path,
    address: str,
    authority: Path,
    say: Callable[[str], None],
) -> "Popen[bytes]":
    """Start the SuperLink and wait until it answers, with a new database where it refuses the old.

    Flower makes its tables in many small steps: a database whose making was interrupted can never
    be opened again. Nothing in it is needed: sites are admitted anew at each start, runs that it
    knows are ended, and rounds are in the run folder.
    """

    def attempt() -> "Popen[bytes]":
        link = processes.begin(command, environment, home / LINK_LOG)
        try:
            processes.await_server(address, authority, START_SECONDS, link, home / LINK_LOG)
        except BaseException:
            processes.stop([link])
            raise
        return link

    old = (home / DATABASE).exists()
    try:
        return attempt()
    except processes.LinkEndedError:
        if not old:
            raise
    for path in home.glob(f"{DATABASE}*"):  # with SQLite's journal
        path.replace(path.with_name(f"unreadable-{path.name}"))
    say(
        "the SuperLink did not start with its old database, which may be half made or damaged "
        f"(kept as unreadable-{DATABASE}); it starts with a new one"
    )
    return attempt()


def _closed(body: bytes) -> tuple[int, dict[str, object]]:
    return 503, {}
