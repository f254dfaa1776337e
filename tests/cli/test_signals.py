"""Signals at any moment: one line, the right exit code, no process left, within ten seconds."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import signals
from tools.signals import CODES, Command, fault, stop


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_at_the_first_moment(number: signal.Signals, tmp_path: Path) -> None:
    ending = stop(Command(("methods",)), tmp_path, number, 0.0)
    assert ending.how == "stopped", ending.report


FIRST_LINE = """
import signal, sys
before = set(sys.modules)
def watched(number, handler):
    print(*(set(sys.modules) - before))
    raise SystemExit
signal.signal = watched
from focoop.__main__ import main
main()
"""


def test_little_is_imported_before_signals_are_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_LINE], capture_output=True, text=True, timeout=60
    )
    imported = set(done.stdout.split())
    assert "focoop.cli.interruption" in imported, done.stderr
    # Ctrl-C before the first line shows Python's own traceback: typing alone would take longer than
    # all of these.
    assert imported.isdisjoint({"typing", "contextlib", "re", "threading", "importlib.abc"})
    assert len([name for name in imported if not name.startswith("_")]) < 20


def test_who_ended_a_command_while_it_began() -> None:
    ctrl_c, term = signal.SIGINT, signal.SIGTERM
    assert signals._by_python(ctrl_c, -2, "", "Traceback ...\nKeyboardInterrupt\n")
    assert signals._by_python(term, -15, "", "")
    assert not signals._by_python(term, 143, "", "stopped by SIGTERM\n")
    assert not signals._by_python(ctrl_c, 130, "", "interrupted\n")
    assert not signals._by_python(ctrl_c, 1, "", "Traceback ...\nValueError\n")


@pytest.mark.parametrize(
    ("code", "seconds", "output", "problem"),
    [
        (143, 1.0, "stopped by SIGTERM\n", ""),
        (-15, 0.1, "", ""),
        (143, 11.0, "stopped by SIGTERM\n", "took 11.0 s"),
        (143, 1.0, "Traceback (most recent call last)\nstopped by SIGTERM\n", "a traceback"),
        (1, 1.0, "stopped by SIGTERM\n", "exit code 1"),
        (143, 1.0, "round 3\n", "no line that says so"),
        (143, 1.0, "stopped by SIGTERM\nstopped by SIGTERM\n", "says it twice"),
    ],
)
def test_what_is_wrong_with_an_ending_is_seen(
    code: int, seconds: float, output: str, problem: str
) -> None:
    assert fault(Command(("run",)), signal.SIGTERM, code, seconds, output, "") == problem


def test_a_process_that_is_left_is_found(tmp_path: Path) -> None:
    mark = f"test-{tmp_path.name}"
    command = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
    with subprocess.Popen(
        command, env={signals.MARK: mark}, start_new_session=True, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()  # before it runs its environment may not be there to read
            assert signals.processes(mark, patience=0.0) == [child.pid]
        finally:
            child.kill()
    assert signals.processes(mark, patience=0.0) == []


def test_a_hangup_that_the_caller_ignores_stays_ignored(tmp_path: Path) -> None:
    script = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from focoop.cli import interruption; interruption.watch()\n"
        "signal.raise_signal(signal.SIGHUP); print('still here')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "still here\n"


SWALLOWED = """
import signal, time
from focoop.cli import interruption
interruption.PATIENCE = 0.5
interruption.watch()
with interruption.computing():
    {what}
"""


@pytest.mark.parametrize(
    "what",
    [
        "import gc\n    class A:\n        def __del__(self): signal.raise_signal(signal.SIGTERM)\n"
        "    A(); gc.collect(); time.sleep(60)",
        "while True:\n        try: signal.raise_signal(signal.SIGTERM); time.sleep(60)\n"
        "        except BaseException: pass",
    ],
    ids=["in __del__", "caught"],
)
def test_a_signal_that_code_swallows_ends_the_command_all_the_same(what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWED.format(what=what)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    # Nobody catches the exception of the first case here; the command line does.
    assert done.returncode == 143 or "Stopped" in done.stderr.splitlines()[-1]
    assert "Exception ignored" not in done.stderr


@pytest.mark.slow
def test_signals_at_random_moments(tmp_path: Path) -> None:
    endings = list(signals.attack(tmp_path, 54, seed=1))
    assert [one.report for one in endings if one.how == "broken"] == []
    assert sum(one.how == "stopped" for one in endings) > 40


@pytest.mark.slow
def test_a_full_disk_and_a_closed_pipe_as_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "focoop", "methods"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60
        )
    assert done.returncode == 1 and "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    piped = subprocess.run(
        f"{' '.join(command)} | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert not piped.stderr and len(piped.stdout) == 1
