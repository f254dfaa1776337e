"""Flower's own programs with the options a federation needs: SuperLink, SuperNode, `flwr`."""

import ctypes
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from focoop import __version__
from focoop.errors import FederationError, MissingExtra
from focoop.flower.settings import Flat
from focoop.settings import toml_value

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
CONNECTION = "federation"
ENDED = "finished"
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def environment(home: Path) -> dict[str, str]:
    """No calls to anybody, no installation per run, and a home of its own for each party."""
    home.mkdir(parents=True, exist_ok=True)
    # Flower's programs start each other by name: they must find those of this environment.
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    found = {**os.environ, **QUIET, "FLWR_HOME": str(home.resolve())}
    return {**found, "PATH": os.pathsep.join(paths)}


def program(name: str) -> str:
    """A program of flwr, from the environment this Python is of."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise MissingExtra(f"no program {name}: pip install 'focoop[flower]'")
    return str(path)


def superlink(keys: Path, host: str, port: int, database: Path) -> list[str]:
    """The server's command: TLS, only nodes with a registered key, runs kept in a file."""
    return [
        *(program("flower-superlink"), "--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str(keys / "ca.crt")),
        *("--ssl-certfile", str(keys / "server.pem"), "--ssl-keyfile", str(keys / "server.key")),
        *("--enable-supernode-auth", "--database", str(database)),
        "--disable-runtime-dependency-installation",
    ]


def supernode(
    keys: Path, server: str, port: int, node: Mapping[str, str | int | bool]
) -> list[str]:
    """A site's command; `port` is its own, for the apps it starts on this machine."""
    settings = " ".join(f"{key}={toml_value(value)}" for key, value in node.items())
    return [
        *(program("flower-supernode"), "--superlink", server),
        *("--root-certificates", str(keys / "ca.crt")),
        *("--auth-supernode-private-key", str(keys / "key")),
        *("--node-config", settings, "--host", "127.0.0.1", "--port", str(port)),
    ]


def connect(home: Path, server: str, certificate: Path) -> None:
    """Tell `flwr` of this home where the SuperLink is."""
    home.mkdir(parents=True, exist_ok=True)
    lines = [
        f"[superlink.{CONNECTION}]",
        f"address = {toml_value(server)}",
        f"root-certificates = {toml_value(str(certificate.resolve()))}",
    ]
    (home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def begin(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a program of Flower's that ends with this process, however it ends (on Linux)."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        # Not through a pipe: the programs it starts in turn would keep that open.
        return subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, preexec_fn=_end_with_parent()
        )


def _end_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)  # loaded here: between fork and exec is no time
    return lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) and None


def ended(process: "subprocess.Popen[bytes]") -> str:
    """How a process ended, in words."""
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
    """Wait until the SuperLink answers over TLS; if it is our own, it must be alive."""
    context = ssl.create_default_context(cafile=str(certificate))
    until = time.monotonic() + seconds
    while True:
        if process is not None and process.poll() is not None:
            raise FederationError(
                f"the SuperLink did not start ({ended(process)}): see {log}; is another program "
                f"listening on {server}?"
            )
        try:
            with urlopen(f"https://{server}/health", timeout=5, context=context):
                return
        except OSError as error:
            if time.monotonic() > until:
                raise FederationError(f"no SuperLink answers at {server}: {error}") from error
        time.sleep(1.0)


def flwr(home: Path, *arguments: str) -> Any:
    """The answer of a `flwr` command as JSON."""
    done = subprocess.run(
        [program("flwr"), *arguments, "--format", "json"],
        env=environment(home),
        capture_output=True,
        text=True,
    )
    start = done.stdout.find("{")
    try:
        answer = json.loads(done.stdout[start:]) if start >= 0 else None
    except ValueError:
        answer = None
    if done.returncode or not isinstance(answer, dict) or not answer.get("success", True):
        said = (answer or {}).get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise FederationError(f"flwr {arguments[0]} failed: {said[-500:]}")
    return answer


def register(home: Path, public: Path, name: str) -> None:
    """Let the node with this key in; it must be done before the node starts."""
    flwr(home, "supernode", "register", str(public), CONNECTION, "--name", name)


def admit(home: Path, public: Path, name: str) -> None:
    """Register a site unless it is registered already, as after a restart of the server."""
    try:
        register(home, public, name)
    except FederationError as error:
        if "already" not in str(error).lower():
            raise


def admit_all(home: Path, publics: Mapping[str, Path]) -> None:
    """Register all sites; each takes a program of its own, so a few at a time."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: admit(home, one[1], one[0]), publics.items()))


def write_app(folder: Path, settings: Flat) -> None:
    """A Flower app that holds a run's settings and no code: every machine has focoop itself."""
    head = [
        "[project]",
        'name = "focoop"',
        f"version = {toml_value(__version__)}",
        'license = "Apache-2.0"',
        "[tool.flwr.app]",
        'publisher = "focoop"',
        'fab-include = ["/README.md"]',
        "[tool.flwr.app.components]",
        'serverapp = "focoop.flower.server_app:app"',
        'clientapp = "focoop.flower.client_app:app"',
        "[tool.flwr.app.config]",
    ]
    lines = [f"{toml_value(key)} = {toml_value(value)}" for key, value in settings.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text("\n".join(head + lines) + "\n", encoding="utf-8")
    (folder / "README.md").write_text("The settings of one run of focoop.\n", encoding="utf-8")


def submit(home: Path, settings: Flat) -> str:
    """Start a run with these settings (those of `focoop.flower.settings`); its number."""
    app = home / "focoop"
    write_app(app, settings)
    return str(flwr(home, "run", str(app), CONNECTION)["run-id"])


def status(home: Path, run: str) -> tuple[str, str]:
    """(status, details) of a run; `flwr run` itself exits with 0 whatever becomes of it."""
    runs = flwr(home, "list", CONNECTION)["runs"]
    found = next(one for one in runs if str(one["run-id"]) == run)
    return str(found["status"]), str(found.get("status-details", ""))


def end_runs(home: Path) -> None:
    """Stop runs that have not ended, such as those of a server that was killed."""
    for one in flwr(home, "list", CONNECTION)["runs"]:
        if not str(one["status"]).startswith(ENDED):
            try:
                flwr(home, "stop", str(one["run-id"]), CONNECTION)
            except FederationError as error:
                if "already" not in str(error).lower():  # it ended between the two commands
                    raise


def follow(home: Path, run: str, every: float = 3.0) -> None:
    """Wait for a run's end; a run that did not complete raises what it ended of."""
    while True:
        state, details = status(home, run)
        if state.startswith(ENDED):
            return check(run, state, details)
        time.sleep(every)


def check(run: str, state: str, details: str) -> None:
    """Refuse any end but a complete one."""
    if state != f"{ENDED}:completed":
        raise FederationError(f"run {run} ended as {state}: {details}")


def stop(processes: Sequence["subprocess.Popen[bytes]"], patience: float = 20.0) -> None:
    """End processes started here, gently, then not."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
