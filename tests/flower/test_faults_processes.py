"""A site's node comes back when it gives up; a coordinator says how a run ended."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.cli import coordinator, interruption
from focoop.cli.live_table import Watch
from focoop.errors import FederationError
from focoop.flower.deploy import supervise
from focoop.flower.deploy.serving import Served
from focoop.flower.journal import Journal, Tail

# A node that counts its lives in a file and then does as its argument says.
NODE = """
import pathlib, signal, sys, time
lives = pathlib.Path(sys.argv[1])
count = len(lives.read_text()) if lives.exists() else 0
lives.write_text("x" * (count + 1))
words = sys.argv[2:]
word = words[min(count, len(words) - 1)]
if word == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(word, flush=True)
if count >= len(words) - 1 or "recognize" in word:
    time.sleep(60)
sys.exit(1)
"""


def kept(tmp_path: Path, *words: str, lives: int, patience: float = 20.0) -> list[str]:
    """What is said of a node with these last words, stopped in its `lives`-th life."""
    said: list[str] = []
    counter = tmp_path / "lives"

    def stop() -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if counter.exists() and len(counter.read_text()) >= lives:
                time.sleep(0.3)
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        command = [sys.executable, "-c", NODE, str(counter), *words]
        log = tmp_path / "node.log"
        pauses = {"first_pause": 0.05, "poll": 0.02, "patience": patience}
        supervise.keep(lambda: command, os.environ, log, said.append, **pauses)
    finally:
        thread.join()
        for name, handler in before.items():
            signal.signal(name, handler)
    assert len(counter.read_text()) == lives
    return said


def test_a_node_that_gives_up_is_started_again_until_it_is_stopped(tmp_path: Path) -> None:
    said = kept(
        tmp_path,
        "[code: 2004] Failed to activate SuperNode.",
        "killed by nobody knows whom",
        "SuperNode ID: 7",
        lives=3,
    )
    assert "not registered there" in said[0] and "trying again in 0.05 s" in said[0]
    assert "the node ended (exit code 1, see" in said[1] and "trying again in 0.1 s" in said[1]
    assert said[2:] == ["connected", "stopped"]


def test_a_node_that_does_not_end_is_killed_while_the_command_has_time(tmp_path: Path) -> None:
    assert supervise.STOP_SECONDS < interruption.PATIENCE  # else nobody says that it was stopped
    began = time.monotonic()
    assert kept(tmp_path, "stubborn", lives=1, patience=0.5) == ["stopped"]
    assert time.monotonic() - began < 30  # it sleeps for 60 s


def test_a_node_the_server_has_forgotten_is_replaced(tmp_path: Path) -> None:
    """Its heartbeat has ended, but Flower's process goes on: it is no use."""
    words = "SuperNode ID: 7\nThe SuperLink does not recognize this SuperNode."
    started = time.monotonic()
    said = kept(tmp_path, words, "SuperNode ID: 7", lives=2)
    assert time.monotonic() - started < 30
    assert said[:2] == [
        "connected",
        "the server does not know this node any more; trying again in 0.05 s",
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate", "keys of another federation"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] IP address mismatch", "another name or address"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", "focoop keys --renew"),
    ],
)
def test_a_certificate_that_was_never_right_is_told_at_once(
    tmp_path: Path, words: str, reason: str
) -> None:
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    command = [sys.executable, "-c", NODE, str(tmp_path / "lives"), words, "never"]
    try:
        with pytest.raises(FederationError, match=reason):
            supervise.keep(
                lambda: command, os.environ, tmp_path / "node.log", lambda text: None, poll=0.02
            )
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
from focoop.flower.deploy import processes
code = "import time; time.sleep(60)"
process = processes.begin([sys.executable, "-c", code], os.environ, Path({str(tmp_path / "log")!r}))
print(process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        if "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{child}").exists()


class Process:
    """A SuperLink, or a front, that lives or has been killed."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    @property
    def alive(self) -> bool:
        return self.code is None

    def poll(self) -> int | None:
        return self.code


class Asked:
    """A SuperLink that says how a run goes."""

    def __init__(self, run: tuple[str, str]) -> None:
        self.run = run

    def status(self, number: int) -> tuple[str, str]:
        return self.run


def followed(
    tmp_path: Path,
    *,
    code: int | None = None,
    status: str = "running",
    run: tuple[str, str] = ("running", ""),
    happened: tuple[dict[str, Any], ...] = (),
    terminal: bool = False,
) -> str:
    """What a coordinator shows while it follows a run of which this is known."""
    file = io.StringIO()
    journal = Journal(tmp_path / "journal.jsonl")

    def happens() -> None:
        for event in happened:
            journal.note(**event)

    journal.note("began")  # of an earlier run
    tail = Tail(tmp_path / "journal.jsonl")
    tail.new()
    timer = threading.Timer(0.1, happens)
    timer.start()
    console = Console(file=file, force_terminal=terminal, width=200)
    with Watch(console, 3, ["ghent", "utrecht"]) as watch:
        link: Any = Process(code)
        control: Any = Asked(run)
        served = Served(control, link, link, link, tmp_path)
        try:
            looks = coordinator.Looks(lambda path: status, every=0.02)
            coordinator.follow(served, 7, tmp_path / "run", watch, tail, looks)
        except FederationError as error:
            file.write(f"\nerror: {error}")
        finally:
            timer.join()
    return file.getvalue()


def test_the_end_of_a_server_is_noticed_and_told(tmp_path: Path) -> None:
    shown = followed(tmp_path, code=-9)
    assert "error: the SuperLink ended (killed by signal 9" in shown and "--resume" in shown
    (tmp_path / "b").mkdir()
    shown = followed(tmp_path / "b", status="killed", happened=({"event": "began"},))
    assert "error: the server's process died in a round" in shown and "--resume" in shown


HAPPENED: tuple[dict[str, Any], ...] = (
    {"event": "began"},
    {"event": "joined", "site": "ghent", "client": 0},
    {"event": "refused", "site": "utrecht", "reason": "it differs in its classes (dog)"},
    {"event": "asked", "round": 1, "step": "train", "sites": ["ghent"]},
    {"event": "left out", "round": 1, "site": "ghent", "reason": "it did not answer in time"},
    {"event": "committed", "round": 1, "accepted": [], "accuracy": 0.5},
    {"event": "ended", "reason": "finished"},
)


def test_sites_that_are_refused_or_late_are_shown_by_name(tmp_path: Path) -> None:
    done = ("finished:completed", "")
    shown = followed(tmp_path, run=done, happened=HAPPENED)
    assert "utrecht refused: it differs in its classes (dog)" in shown
    assert "round 1: ghent left out: it did not answer in time" in shown
    assert "round 1/3, 0 updates, accuracy 50.0%" in shown
    (tmp_path / "b").mkdir()
    live = followed(tmp_path / "b", run=done, happened=HAPPENED, terminal=True)
    assert "round 1 of 3, accuracy 50.0%" in live and "\nutrecht " in live


def test_a_failed_run_raises(tmp_path: Path) -> None:
    failed = ("finished:failed", "round 2 has 1 updates of 2 needed")
    shown = followed(tmp_path, run=failed, happened=HAPPENED)
    assert "error: run 7 ended as finished:failed: round 2 has 1 updates of 2 needed" in shown


def test_the_last_rounds_line_is_shown_however_late_it_comes(tmp_path: Path) -> None:
    """The run ends between a look into the journal and the question how it stands."""
    looks = coordinator.Looks(lambda path: "running", every=0.02, ask_every=-1.0)
    path, file = tmp_path / "journal.jsonl", io.StringIO()

    class Ends(Asked):
        def status(self, number: int) -> tuple[str, str]:
            Journal(path).note("committed", round=3, accepted=["ghent"], accuracy=0.75)
            return super().status(number)

    with Watch(Console(file=file, width=200), 3, ["ghent"]) as watch:
        watch.show([{"event": "began", "after": 2}])
        link: Any = Process(None)
        control: Any = Ends(("finished:completed", ""))
        served = Served(control, link, link, link, tmp_path)
        coordinator.follow(served, 7, tmp_path / "run", watch, Tail(path), looks)
    assert "going on after round 2\nround 3/3, 1 updates, accuracy 75.0%" in file.getvalue()
