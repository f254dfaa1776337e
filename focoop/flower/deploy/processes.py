"""Commands of a federation's processes, and how they are started, watched and ended."""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

from focoop.errors import FederationError, MissingExtra
from focoop.fields import toml_value

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# Threads of torch that wait for each other leave the processor to the other processes of the
# federation: spinning, which is the default, costs sites on one machine most of their time.
CALM = {"OMP_WAIT_POLICY": "PASSIVE"}
LOOPBACK = "127.0.0.1"
SECRET = "secret"
LEAST_MEGABYTES = 20  # free on the disk of Flower's files: its database, logs and orders
KEEP_ALIVE = 120  # seconds the SuperLink keeps a connection that nobody uses
PR_SET_PDEATHSIG = 1  # of Linux's prctl


class LinkEndedError(FederationError):
    """Says that the SuperLink ended before it answered.

    Args:
        message: the message.
        killed: whether a signal ended it, as when memory runs out.
    """

    def __init__(self, message: str, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower program: no calls to anybody, and a home of its own.

    Args:
        home: The home folder.

    Returns:
        Environment variables.
    """
    home.mkdir(parents=True, exist_ok=True)
    # Flower's programs start each other by name: they must find those of this environment.
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    variables = {**CALM, **os.environ, **QUIET, "FLWR_HOME": str(home.resolve())}
    return {**variables, "PATH": os.pathsep.join(paths)}


def program(name: str) -> str:
    """Find a program of flwr in the environment of this Python.

    Args:
        name: The program's name.

    Returns:
        Its path.

    Raises:
        MissingExtra: flwr is not installed.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise MissingExtra(f"no program {name}: pip install 'focoop[flower]'")
    return str(path)


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this room as a program of this Python.

    Args:
        module: The module's name.
        *arguments: The program's arguments.

    Returns:
        The command.
    """
    # -P: a file of the folder we are started in must not be imported instead of a package.
    return [sys.executable, "-P", "-m", f"focoop.flower.deploy.{module}", *arguments]


def superlink(keys: Path, port: int, database: Path, secret: Path) -> list[str]:
    """Return the SuperLink's command: TLS on loopback, registered nodes alone, runs kept in a file.

    Args:
        keys: The coordinator's folder of keys.
        port: Port on loopback.
        database: The file of its runs.
        secret: File of the secret that its owner sends.

    Returns:
        The command.
    """
    return [
        *python("superlink", str(secret), "--host", LOOPBACK, "--port", str(port)),
        *("--ssl-ca-certfile", str(keys / "ca.crt")),
        *("--ssl-certfile", str(keys / "server.pem"), "--ssl-keyfile", str(keys / "server.key")),
        *("--enable-supernode-auth", "--database", str(database)),
        "--disable-runtime-dependency-installation",
    ]


def worker(
    kind: str, address: str, secret: str | Path, certificate: Path | None = None
) -> list[str]:
    """Return the command that runs the apps of a SuperLink or a SuperNode.

    Args:
        kind: `server` or `client`.
        address: Where the SuperLink or SuperNode listens.
        secret: File of the secret.
        certificate: Certificate of the SuperLink; None: no TLS.

    Returns:
        The command.
    """
    certificates = [str(certificate)] if certificate else []
    return python("worker", kind, address, str(secret), *certificates)


def supernode(
    keys: Path, server: str, port: int, node: Mapping[str, str | int | bool], secret: Path
) -> list[str]:
    """Return a site's command.

    Args:
        keys: The site's folder of keys.
        server: HOST:PORT of the coordinator.
        port: The site's own port, for the apps it starts on this machine.
        node: The node's configuration.
        secret: File of the secret of its worker.

    Returns:
        The command.
    """
    settings = " ".join(f"{key}={toml_value(value)}" for key, value in node.items())
    return [
        *python("supernode", str(secret), f"{LOOPBACK}:{port}", "--superlink", server),
        *("--root-certificates", str(keys / "ca.crt")),
        *("--auth-supernode-private-key", str(keys / "key")),
        *("--node-config", settings),
    ]


def new_secret(home: Path) -> Path:
    """Write a fresh secret to a file that its owner alone can read.

    Args:
        home: The folder of the file.

    Returns:
        The file.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = home / SECRET
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path.resolve()


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


def own_folder(home: Path) -> None:
    """Make a folder for Flower's files that other users cannot look into, with all it holds.

    Args:
        home: The folder.

    Raises:
        FederationError: Its disk is as good as full: Flower's programs would end without a word.
    """
    home.mkdir(parents=True, exist_ok=True)
    left = shutil.disk_usage(home).free / 1e6
    if left < LEAST_MEGABYTES:
        raise FederationError(
            f"the disk of {home} has {left:.1f} MB left, and {LEAST_MEGABYTES} are the least: make "
            "room and start again"
        )
    home.chmod(0o700)
    for path in home.glob("*.db*"):  # of a version that left them readable
        path.chmod(0o600)


def replaced(module: ModuleType, name: str, value: Any) -> None:
    """Give a module another value for a name it must have.

    Args:
        module: The module of Flower.
        name: The name.
        value: The new value.

    Raises:
        FederationError: Flower has changed, and what we would guard is elsewhere.
    """
    if not hasattr(module, name):
        raise FederationError(
            f"this version of flwr has no {module.__name__}.{name}: install 'focoop[flower]' anew"
        )
    setattr(module, name, value)


def plain_logs() -> None:
    """Have Flower write this program's log without colours: it goes to a file (`begin`)."""
    from flwr.supercore.logger import update_console_handler

    update_console_handler(colored=False)


def begin(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a program of Flower's that ends with this process, however it ends (on Linux).

    Args:
        command: The program and its arguments.
        environment: Its environment variables.
        log: The file of its output.

    Returns:
        The process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        # Not through a pipe: the programs it starts in turn would keep that open.
        return subprocess.Popen(
            command,
            env=environment,
            stdout=file,
            stderr=file,
            preexec_fn=end_with_parent(),
            umask=0o077,  # what Flower writes is nobody else's to read
        )


def end_with_parent() -> Callable[[], None] | None:
    """Return a function for `preexec_fn`: the system then stops a process when its parent ends."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)  # loaded here: between fork and exec is no time
    parent = os.getpid()

    def bind() -> None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before we were bound to it
            os._exit(1)

    return bind


def ended(process: "subprocess.Popen[bytes]") -> str:
    """Say in words how a process ended.

    Args:
        process: The process.

    Returns:
        The words.
    """
    code = process.poll()
    if code is None:
        return "still running"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def await_server(
    server: str,
    certificate: Path,
    seconds: float,
    process: "subprocess.Popen[bytes] | None" = None,
    log: Path | None = None,
) -> None:
    """Wait until the SuperLink answers over TLS.

    Args:
        server: HOST:PORT.
        certificate: The authority's certificate.
        seconds: How long to wait.
        process: Its process, where it is our own: it must stay alive.
        log: The file of its output, for messages.

    Raises:
        LinkEndedError: Its process ended.
        FederationError: It does not answer in time.
    """
    context = ssl.create_default_context(cafile=str(certificate))
    until = time.monotonic() + seconds
    while True:
        if process is not None and process.poll() is not None:
            words = f"the SuperLink did not start ({ended(process)}, see {log})"
            raise LinkEndedError(words, killed=(process.poll() or 0) < 0)
        try:
            with urlopen(f"https://{server}/health", timeout=5, context=context):
                return
        except OSError as error:
            if time.monotonic() > until:
                raise FederationError(f"no SuperLink answers at {server}: {error}") from error
        time.sleep(0.3)


def stop(processes: Sequence["subprocess.Popen[bytes]"], patience: float = 20.0) -> None:
    """End processes started here, first gently.

    Args:
        processes: The processes.
        patience: Seconds before they are killed.
    """
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
