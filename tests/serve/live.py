"""A server on loopback, in a thread of the test."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from focoop.serve import Engine, make_app


@contextmanager
def live(engine: Engine, **given: Any) -> Iterator[str]:
    """The address of a server, which ends with the context."""
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    servers: list[uvicorn.Server] = []
    app = make_app(engine, **given)
    config = uvicorn.Config(app, log_level="error", ws="none", lifespan="on", http="h11")
    servers.append(uvicorn.Server(config))
    thread = threading.Thread(target=servers[0].run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not servers[0].started and time.monotonic() < until:
        time.sleep(0.01)
    assert servers[0].started
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        servers[0].should_exit = True
        thread.join(20)
        listener.close()
    assert not thread.is_alive()
