"""Start a server and run it until it is told to stop."""

import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from focoop.errors import ConfigError, MissingExtra
from focoop.serve.engine import Engine
from focoop.serve.guard import is_loopback
from focoop.serve.keys import KeyFile
from focoop.serve.limits import Limits
from focoop.serve.served import ServedModel

HOST, PORT = "127.0.0.1", 8080
EXTRA = "a server needs FastAPI, uvicorn and more: pip install 'focoop[serve]'"


def serve(
    models: Sequence[str | Path],
    *,
    host: str = HOST,
    port: int = PORT,
    keys: Path | None = None,
    open_to_all: bool = False,
    limits: Limits | None = None,
    device: str | None = None,
    open_share: float | None = None,
    weights: str | Path | None = None,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve models and the page until SIGTERM or SIGINT; what was taken is answered first.

    Args:
        models: Run folders or exported models; `NAME=PATH` gives a name, else it is the folder's.
        host: Address to listen on. Others than this machine's own need keys.
        port: Port to listen on; 0: any that is free.
        keys: File of API keys (`focoop.serve.add_key`).
        open_to_all: Serve without keys on any address.
        limits: What requests may hold.
        device: Torch device of the backbone; by default that of the run, or the CPU.
        open_share: Position of the dial, 0 to 1, where a request names none; None: as each method
            was set up.
        weights: The backbone's weights, where they are no longer where they were.
        on_ready: Told the address when the server listens.

    Raises:
        MissingExtra: The extra `serve` is not installed.
        ConfigError: The port is taken, or keys are missing.
    """
    require_extra()
    if open_share is not None and not 0.0 <= open_share <= 1.0:
        raise ConfigError(f"open_share must lie between 0 and 1, got {open_share}")
    if keys is None and not is_loopback(host) and not open_to_all:
        raise ConfigError(
            f"without keys a server listens on this machine alone, not on {host}: make a key with "
            "focoop serve --keys keys.txt --add-key NAME, or say --no-keys where another server "
            "in front asks for them"
        )
    key_file = None if keys is None else KeyFile(keys)
    with _listening(host, port) as listener:
        loaded = load_models(models, device, open_share, weights)
        _run(Engine(loaded, limits), listener, host, key_file, on_ready)


def require_extra() -> None:
    """Make sure that the packages of the extra `serve` are there.

    Raises:
        MissingExtra: One is not.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra(EXTRA) from error


def load_models(
    models: Sequence[str | Path],
    device: str | None = None,
    open_share: float | None = None,
    weights: str | Path | None = None,
) -> dict[str, ServedModel]:
    """Load models by name.

    Args:
        models: Paths, or `NAME=PATH`.
        device: Torch device; by default that of the run, or the CPU.
        open_share: Position of the dial where a request names none.
        weights: The backbone's weights, where they are no longer where they were.

    Returns:
        The models, in the given order.

    Raises:
        ConfigError: Two have the same name.
    """
    from focoop.serve.loading import load

    loaded: dict[str, ServedModel] = {}
    for given in models:
        name, equals, path = str(given).partition("=")
        if not equals or "/" in name:
            name, path = Path(given).resolve().name, str(given)
        if name in loaded:
            raise ConfigError(f"two models are called {name!r}: give names, as in mine={path}")
        loaded[name] = load(Path(path), device, open_share, weights)
    return loaded


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket: a taken port is said before models are loaded."""
    with ExitStack() as stack:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --port"
            ) from error
        yield listener


def _run(
    engine: Engine,
    listener: socket.socket,
    host: str,
    keys: KeyFile | None,
    on_ready: Callable[[str], None],
) -> None:
    import uvicorn

    from focoop.serve.app import make_app

    class Server(uvicorn.Server):
        """Tells when it listens."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_ready(_address(listener, host))

    servers: list[Server] = []
    app = make_app(
        engine,
        keys=keys,
        local_only=keys is None and is_loopback(host),
    )
    limits = engine.limits
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http="h11",
        ws="none",
        lifespan="on",
        timeout_keep_alive=10,
        timeout_graceful_shutdown=max(1, int(limits.stop_seconds)),
        limit_concurrency=2 * limits.connections,
        h11_max_incomplete_event_size=16 * 1024,
    )
    servers.append(Server(config))
    with _quiet_end(lambda: setattr(servers[0], "should_exit", True)):
        servers[0].run(sockets=[listener])


@contextmanager
def _quiet_end(stop: Callable[[], None]) -> Iterator[None]:
    """Let a server that was told to stop end as one that is done: uvicorn repeats the signal.

    uvicorn knows two signals; a terminal that is closed sends the third, which stops it too.
    """
    kinds = (signal.SIGTERM, signal.SIGINT)
    before: dict[signal.Signals, Any] = {}
    try:
        for kind in kinds:
            before[kind] = signal.signal(kind, lambda *_: None)
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: stop())
    except ValueError:  # not the main thread, which alone may set handlers
        pass
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _address(listener: socket.socket, host: str) -> str:
    """Where a browser of this machine finds the page; `0.0.0.0` is no address to go to."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/"
