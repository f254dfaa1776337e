"""Requests to an app in this process, one after another or at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from focoop.serve import Engine, make_app

HOST = "http://localhost"


class Caller:
    """Sends requests to an app, without a network."""

    def __init__(self, app: Any) -> None:
        self.loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url=HOST, timeout=20)

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.wait(self.client.get(path, **given))

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.wait(self.client.post(path, **given))

    def wait(self, asked: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(asked, 30))

    def at_once(self, asked: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(one() for one in asked))

        return list(self.wait(all_of_them()))

    def predict(self, *images: bytes, **fields: Any) -> httpx.Response:
        return self.post("/v1/predict", **form(*images, **fields))

    def close(self) -> None:
        self.wait(self.client.aclose())
        self.loop.close()


def form(*images: bytes, **fields: Any) -> dict[str, Any]:
    """A multipart body with images and fields."""
    files = [("images", (f"{k}.png", content, "image/png")) for k, content in enumerate(images)]
    return {"files": files, "data": {name: str(value) for name, value in fields.items()}}


@contextmanager
def calling(engine: Engine, **given: Any) -> Iterator[Caller]:
    """A caller of an engine's app; the engine ends with it."""
    caller = Caller(make_app(engine, **given))
    try:
        yield caller
    finally:
        caller.close()
        engine.stop()
