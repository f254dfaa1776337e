"""A web server that lives as long as a test."""

import threading
from collections.abc import Iterator

import pytest

from tests.data.toy_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()
