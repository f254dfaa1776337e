"""Flower's SuperNode that takes the app of the installed focoop and refuses all others.

The fingerprint of an app bundle is checked before the bundle is fetched, and its bytes before they
are opened. Who sent another one is told so. The tasks of the node are run by `worker.py`, which is
started again whenever it dies.

`python -m focoop.flower.deploy.supernode SECRET ADDRESS OPTION...` takes the options
of `flower-supernode`; ADDRESS is where the node serves its worker.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import uvicorn
from flwr.app import Error
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab

from focoop.flower.app_bundle import fingerprint, is_ours, refusal
from focoop.flower.deploy.processes import end_with_parent, plain_logs, replaced, worker
from focoop.flower.held import Held, Hold
from focoop.flower.patience import Clock, soon

loop = import_module("flwr.supernode.start_client_internal")
program = import_module("flwr.supernode.cli.flower_supernode")
LICENSE = "valid_license"  # Flower asks for it before it asks `_verify_fab`
ACQUIRE, REPLIES = "/v1/runtime/acquire-task", "replies"
HOLDS = {
    ACQUIRE: Hold(1.0),
    REPLIES: Hold(0.0, until=("/v1/runtime/push-messages", "/v1/runtime/push-object")),
}
PAUSE = 2.0  # seconds before a worker that died is started again
RECEIVE, SEND, GET_FAB, CONFIRM = 1, 2, 4, 7  # places in the tuple that Flower's connection is


def only_ours(get_fab: Callable[[str, int], Fab]) -> Callable[[str, int], Fab]:
    """Fetch an app bundle only if it is ours; any other one comes without content and license.

    Args:
        get_fab: Flower's function.

    Returns:
        The guarded function.
    """

    def get(fab_hash: str, run_id: int) -> Fab:
        if fab_hash != fingerprint():
            return Fab(fab_hash, b"", {})
        fab = get_fab(fab_hash, run_id)
        if not is_ours(fab.content):
            return Fab(fab_hash, b"", {})
        return Fab(fab_hash, fab.content, {LICENSE: "focoop"})

    return get


def noted(act: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    """Note on the clock how long a look took and whether a message came or went.

    Args:
        act: Receives or sends a message; None if there was none.
        clock: That of the node's loop.

    Returns:
        The same function, noted.
    """

    def acted(*given: Any) -> Any:
        began = time.monotonic()
        result = act(*given)
        clock.looked(time.monotonic() - began, result is not None)
        return result

    return acted


class Answers:
    """The replies of the node's loop, which goes on only when the message at hand is answered.

    Flower's loop sends the replies there are after each message. A reply that was left over, as the
    coordinator stopped while its order was confirmed, would go in the place of the one at hand,
    which then waits for the next message: the new run would wait for this site and it for the run.
    """

    def __init__(self) -> None:
        self.asked = ""  # the message at hand
        self.answered = ""  # the last message that a reply was sent for

    def receiving(self, receive: Callable[[], Any]) -> Callable[[], Any]:
        """Note which message is at hand.

        Args:
            receive: Flower's function that asks for a message.

        Returns:
            The same function, noted.
        """

        def received() -> Any:
            pulled = receive()
            if pulled is not None:
                self.asked = pulled[0].metadata.message_id
            return pulled

        return received

    def sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Note which message a reply is for.

        Args:
            send: Flower's function that sends a reply.

        Returns:
            The same function, noted.
        """

        def sent(message: Any, *more: Any) -> Any:
            self.answered = message.metadata.reply_to_message_id
            return send(message, *more)

        return sent

    def pushing(self, push: Callable[..., None]) -> Callable[..., None]:
        """Send replies until the message at hand is answered.

        Args:
            push: Flower's function that waits for replies and sends them.

        Returns:
            The function that repeats it.
        """

        def pushed(**given: Any) -> None:
            push(**given)
            while self.answered != self.asked:
                push(**given)

        return pushed


class Runtime:
    """uvicorn, as Flower's node calls it for its own tasks: a worker without a task is held.

    Args:
        clock: That of the node's loop, rung when a task has left its answer.
    """

    Server = uvicorn.Server

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.held: Held | None = None

    def Config(self, app: Any, **options: Any) -> uvicorn.Config:
        """Return the settings of a server.

        Args:
            app: The app to serve.
            **options: Options of uvicorn.

        Returns:
            The settings.
        """
        self.held = Held(app, HOLDS, lambda _: self.clock.ring())
        return uvicorn.Config(self.held, **options)

    def offering(self, confirm: Callable[..., Any]) -> Callable[..., Any]:
        """Call the worker when a message is here as a whole.

        Args:
            confirm: Flower's function that tells the sender so.

        Returns:
            The same function with the call.
        """

        def confirmed(*given: Any) -> Any:
            result = confirm(*given)
            if self.held is not None:
                self.held.ring(ACQUIRE)
            return result

        return confirmed


def guard() -> None:
    """Make this process's SuperNode verify all app bundles by their fingerprint.

    Flower has the place for it: with `trusted_entities` a node verifies bundles before it opens
    them and answers what it does not trust with an error.
    """
    connect, start, clock = loop.http_request_response, loop.start_client_internal, Clock()
    runtime, answers = Runtime(clock), Answers()

    @contextmanager
    def connected(*args: Any, **options: Any) -> Iterator[tuple[Any, ...]]:
        with connect(*args, **options) as connection:
            parts = list(connection)
            parts[GET_FAB] = only_ours(parts[GET_FAB])
            parts[RECEIVE] = noted(answers.receiving(parts[RECEIVE]), clock)
            parts[SEND] = noted(answers.sending(parts[SEND]), clock)
            parts[CONFIRM] = runtime.offering(parts[CONFIRM])
            yield tuple(parts)

    def started(**options: Any) -> None:
        start(**{**options, "trusted_entities": {"focoop": fingerprint()}})

    replaced(loop, "http_request_response", connected)
    replaced(loop, "_verify_fab", lambda fab, trusted: is_ours(fab.content))
    replaced(loop, "FAB_VERIFICATION_ERROR", Error(ErrorCode.INVALID_FAB, refusal()))
    replaced(loop, "_push_messages", answers.pushing(loop._push_messages))
    replaced(loop, "time", clock)
    replaced(loop, "pull_objects", soon(loop.pull_objects))
    replaced(program, "start_client_internal", started)
    replaced(program, "uvicorn", runtime)


def attend(command: list[str]) -> None:
    """Keep a worker running.

    Args:
        command: The worker's command.
    """
    while True:
        process = subprocess.Popen(command, preexec_fn=end_with_parent())
        process.wait()
        print(f"the worker ended ({process.returncode}); another is started", flush=True)
        time.sleep(PAUSE)


def main() -> None:
    """Serve until a signal."""
    plain_logs()
    secret, address, *options = sys.argv[1:]
    guard()
    own = ("--isolation", "process", "--superexec-auth-secret-file", secret)
    host, _, port = address.rpartition(":")
    sys.argv = ["flower-supernode", *options, *own, "--host", host, "--port", port]
    command = worker("client", address, secret)
    threading.Thread(target=attend, args=(command,), daemon=True).start()
    program.flower_supernode()


if __name__ == "__main__":
    main()
