"""A site's node that comes back: started again when it gives up, until somebody stops it.

Flower's node waits for a server that is away, but it ends when the server does not let it in, as in
the minute after a node of the same key was killed, and when the server has lost its database.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from focoop.errors import FederationError
from focoop.flower.deploy import processes
from focoop.flower.site.status import SiteWatch

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds between two starts
STEADY = 120.0  # seconds: a node that ran as long is started again at once
POLL = 0.5
# A node that still starts on a busy machine takes long to end. It holds nothing that must be
# closed, and a site's command that is told to stop has ten seconds.
STOP_SECONDS = 4.0
CONNECTED = "SuperNode ID:"
FORGOTTEN = "does not recognize this SuperNode"  # its heartbeat has ended, it itself has not
CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
REASONS = {
    "certificate is not yet valid": "the server's certificate is not valid yet: is this "
    "machine's clock right, and the coordinator's?",
    "certificate has expired": "the server's certificate has expired: the coordinator must renew "
    "it (focoop keys --renew)",
    "mismatch": "the server's certificate is for another name or address: join by the one given "
    "to focoop keys --host, or have the certificate renewed for this one",
    CERTIFICATE: "the server's certificate is not signed by the authority in this site's ca.crt: "
    "this is another server, or these are keys of another federation",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS: is it a coordinator of focoop?",
    "record layer failure": "the server does not speak TLS: is it a coordinator of focoop?",
    "code: 2004": "the server does not let this key in: it is not registered there, or a node "
    "with the same key was connected less than a minute ago",
    FORGOTTEN: "the server does not know this node any more",
}


def keep(
    command: Callable[[], Sequence[str]],
    environment: Mapping[str, str],
    log: Path,
    say: Callable[[str], None],
    watch: SiteWatch | None = None,
    first_pause: float = FIRST_PAUSE,
    poll: float = POLL,
    patience: float = STOP_SECONDS,
) -> None:
    """Run the node and start it again whenever it ends; returns when a signal says stop.

    Args:
        command: makes the command anew for each start.
        environment: of the node's process.
        log: file for what the node says.
        say: told what a person should know.
        watch: waits for the server before each start, and follows the node.
        first_pause: seconds before a node that has ended is started again; later pauses are longer.
        poll: seconds between two looks at the node.
        patience: seconds that a node has to end before it is killed.

    Raises:
        FederationError: if the server's certificate was never right.
    """
    known, pause = False, first_pause
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.default_int_handler)
    try:
        while True:
            if watch is not None:
                watch.await_server()
            began, start = time.monotonic(), log.stat().st_size if log.exists() else 0
            text, how = _once(command(), environment, log, start, say, watch, poll, patience)
            known |= CONNECTED in text
            why = explain(text) or f"the node ended ({how}, see {log})"
            if watch is not None:
                why = watch.ended(why)
            if CERTIFICATE in text and not known:
                raise FederationError(why)
            pause = first_pause if time.monotonic() - began > STEADY else pause
            say(f"{why}; trying again in {pause:g} s")
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
    except KeyboardInterrupt:
        if watch is not None:
            watch.stopped()
        say("stopped")
    except FederationError as error:
        if watch is not None:
            watch.stopped("failed", str(error))
        raise


def _once(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    start: int,
    say: Callable[[str], None],
    watch: SiteWatch | None,
    poll: float,
    patience: float,
) -> tuple[str, str]:
    """One life of the node: what it wrote, and how it ended."""
    process = processes.begin(command, environment, log)
    announced = False
    try:
        while process.poll() is None:
            text = _since(log, start)
            if CONNECTED in text and not announced:
                say("connected") if watch is None else watch.connected()
                announced = True
            if watch is not None:
                watch.tick()
            if FORGOTTEN in text:
                break
            time.sleep(poll)
    finally:
        processes.stop([process], patience)
    return _since(log, start), processes.ended(process)


def explain(text: str) -> str:
    """Say what a person should know of a node's last words.

    Args:
        text: The end of its output.

    Returns:
        A sentence; empty where the words are not known.

    >>> explain("... [SSL: CERTIFICATE_VERIFY_FAILED] ... certificate has expired")[:35]
    "the server's certificate has expire"
    """
    return next((reason for mark, reason in REASONS.items() if mark in text), "")


def _since(log: Path, start: int) -> str:
    with open(log, "rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")
