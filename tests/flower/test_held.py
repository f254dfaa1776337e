"""Empty answers wait until there may be something; all others leave at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.flower.deploy import superlink, supernode
from focoop.flower.held import WAIT, Held, Hold
from focoop.flower.patience import Clock

PULL, PUSH, ASKED = "/pull", "/push", "/asked"
HOLDS = {PULL: Hold(5.0, until=(PUSH,)), ASKED: Hold(5.0, until=(PUSH,), asked=True)}


class Store:
    """An app that answers /pull with what /push has brought."""

    def __init__(self, status: int = 200) -> None:
        self.found, self.status, self.served = b"", status, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.served += 1
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == PUSH:
            self.found = b"message"
        body = b"" if scope["path"] == PUSH else self.found
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": body})


async def ask(
    app: Held, path: str, leave: asyncio.Event | None = None, **headers: str
) -> tuple[int, bytes, float] | None:
    """(status, body, seconds) of a request; None if the asker left without an answer."""
    sent: list[Any] = []
    first = [{"type": "http.request", "body": b"x", "more_body": False}]

    async def receive() -> Any:
        if first:
            return first.pop()
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    began = time.monotonic()
    await app({"type": "http", "path": path, "headers": raw}, receive, send)
    if not sent:
        return None
    return sent[0]["status"], sent[1]["body"], time.monotonic() - began


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await story()

    asyncio.run(limited())


def test_an_empty_answer_waits_for_what_is_brought_and_carries_nothing() -> None:
    async def story() -> None:
        store = Store()
        app = Held(store, HOLDS)
        asked = asyncio.ensure_future(ask(app, PULL))
        await asyncio.sleep(0.05)
        assert not asked.done()
        await ask(app, PUSH)
        found = await asked
        # The message leaves with the next request only: no cut connection can lose it.
        assert found is not None and found[1] == b"" and found[2] < 2.0
        assert store.served == 2
        again = await ask(app, PULL)
        assert again is not None and again[1] == b"message" and again[2] < 1.0
        assert not any(app.waiting.values())

    run(story)


def test_something_brought_while_the_app_looks_is_not_missed() -> None:
    async def story() -> None:
        looks, go = asyncio.Event(), asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == PULL:
                looks.set()
                await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        app = Held(slow, HOLDS)
        asked = asyncio.ensure_future(ask(app, PULL))
        await looks.wait()
        await ask(app, PUSH)
        await asyncio.sleep(0.05)
        go.set()
        found = await asked
        assert found is not None and found[2] < 2.0

    run(story)


def test_a_wait_ends_with_its_time() -> None:
    async def story() -> None:
        found = await ask(Held(Store(), {PULL: Hold(0.05)}), PULL)
        assert found is not None and found[1] == b"" and 0.04 < found[2] < 2.0

    run(story)


def test_who_left_is_not_answered() -> None:
    async def story() -> None:
        leave, app = asyncio.Event(), Held(Store(), HOLDS)
        asked = asyncio.ensure_future(ask(app, PULL, leave))
        await asyncio.sleep(0.02)
        leave.set()
        assert await asked is None and not app.waiting[PULL]

    run(story)


def test_errors_and_other_paths_are_answered_at_once() -> None:
    async def story() -> None:
        refused = await ask(Held(Store(status=401), HOLDS), PULL)
        assert refused is not None and refused[0] == 401 and refused[2] < 1.0
        other = await ask(Held(Store(), HOLDS), "/health")
        assert other is not None and other[2] < 1.0

    run(story)


@pytest.mark.parametrize(("told", "held"), [({}, False), ({WAIT: "nonsense"}, False)])
def test_only_who_asks_for_it_is_held(told: dict[str, str], held: bool) -> None:
    async def story() -> None:
        found = await ask(Held(Store(), HOLDS), ASKED, **told)
        assert found is not None and found[2] < 1.0
        short = await ask(Held(Store(), HOLDS), ASKED, **{WAIT: "0.05"})
        assert short is not None and 0.04 < short[2] < 2.0

    run(story)


def test_a_ring_from_another_thread_lets_go_and_bringing_is_told() -> None:
    async def story() -> None:
        told: list[str] = []
        app = Held(Store(), HOLDS, told.append)
        asked = asyncio.ensure_future(ask(app, PULL))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(app.ring, PULL)
        found = await asked
        assert found is not None and found[2] < 2.0 and told == []
        await ask(app, PUSH)
        await asyncio.sleep(0.05)
        assert sorted(told) == [ASKED, PULL]

    run(story)


def test_what_is_held_is_there_in_flower() -> None:
    """A path that Flower no longer serves would be held never, and rung by nobody."""
    from flwr.supercore.routers.runtime import router as runtime
    from flwr.superlink.routers.control.router import router as control
    from flwr.superlink.routers.fleet.router import router as fleet

    routers = (control, fleet, runtime)
    paths = {getattr(route, "path", "") for one in routers for route in one.routes}
    for holds in (superlink.HOLDS, supernode.HOLDS):
        for path, hold in holds.items():
            assert path in paths or path == supernode.REPLIES
            assert set(hold.until) <= paths


def test_the_node_wakes_its_worker_and_its_own_loop() -> None:
    async def story() -> None:
        clock = Clock()
        runtime = supernode.Runtime(clock)
        runtime.Config(Store(), host="127.0.0.1", port=1)
        assert runtime.held is not None
        asked = asyncio.ensure_future(ask(runtime.held, supernode.ACQUIRE))
        await asyncio.sleep(0.02)
        confirm = runtime.offering(lambda run, name: f"{run} {name}")
        assert await asyncio.to_thread(confirm, 1, "id") == "1 id"
        found = await asked
        assert found is not None and found[2] < 0.9
        assert not clock.bell.is_set()
        await ask(runtime.held, "/v1/runtime/push-object")
        await asyncio.sleep(0.05)
        assert clock.bell.is_set()

    run(story)
