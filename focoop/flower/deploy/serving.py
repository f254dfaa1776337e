"""A coordinator's server while it runs: the SuperLink, the worker of its app, and the front."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from focoop.errors import FederationError
from focoop.flower.deploy import processes
from focoop.flower.deploy.control import Control
from focoop.flower.deploy.enrolment import Enrolment
from focoop.flower.deploy.keys import check_server
from focoop.flower.deploy.link_start import LOG as LINK_LOG
from focoop.flower.deploy.link_start import LinkStart
from focoop.flower.deploy.tls_front import Front, open_front
from focoop.flower.identity import registered
from focoop.flower.settings import TRACK
from focoop.runs import LOCK, locked

WORKER_LOG = "server.log"


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
        RunError: Another coordinator serves this federation already.
        FederationError: The port is taken, the certificate cannot be used, or the SuperLink does
            not start.
    """
    keys, home = keys.resolve(), home.resolve()
    check_server(keys, say)
    processes.own_folder(home)
    authority, environment = keys / "ca.crt", processes.environment(home)
    certificate = str(authority), str(keys / "server.pem"), str(keys / "server.key")
    with ExitStack() as stack:
        # Two at once would end each other's runs: they share the SuperLink's database.
        running = "a coordinator of this federation runs already; stop it first"
        stack.enter_context(locked(home / LOCK, running))
        front = open_front(host, port, certificate, 0, lambda pem: None, _closed, say)
        stack.callback(front.listener.close)
        secret = processes.new_secret(home)
        link, inner = LinkStart(keys, home, secret, environment, say).start()
        stack.callback(processes.stop, [link])
        front.link = inner, front.link[1]
        address = f"{processes.LOOPBACK}:{inner}"
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


def _closed(body: bytes) -> tuple[int, dict[str, object]]:
    return 503, {}
