"""Signals at any moment: one line, the right exit code, no process left, within ten seconds."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.toy_command import TINY
from tests.toy_setting import write_setting

LIMIT = 10.0
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def start(words: list[str], folder: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "FOCOOP_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "focoop", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def wait_until_watching(process: "subprocess.Popen[str]") -> None:
    """Wait for the first line of focoop: Python itself sets no handler for SIGHUP."""
    end = time.monotonic() + 60
    status = Path(f"/proc/{process.pid}/status")
    while time.monotonic() < end and process.poll() is None:
        caught = next(row for row in status.read_text().splitlines() if row.startswith("SigCgt"))
        if int(caught.split()[1], 16) & 1 << (signal.SIGHUP - 1):
            return
        time.sleep(0.001)
    raise AssertionError("the command never began")


def stop(words: list[str], folder: Path, number: signal.Signals, delay: float) -> None:
    """Start a command, send it a signal and look at what it leaves."""
    process = start(words, folder)
    wait_until_watching(process)
    time.sleep(delay)
    if process.poll() is not None:
        process.communicate()
        return  # it was done before
    process.send_signal(number)
    began = time.monotonic()
    output, errors = process.communicate(timeout=60)
    took = time.monotonic() - began
    told = [row for row in errors.splitlines() if "note:" not in row and "warning:" not in row]
    said = f"{words} {number.name} after {delay:.3f} s: {process.returncode}\n{output}\n{errors}"
    assert took < LIMIT, said
    assert "Traceback" not in errors + output, said
    if process.returncode == 0 and "Exception" not in errors:
        return  # the signal came while it ended
    if process.returncode == -number:
        return  # Python itself was ending, and the shell tells the same code
    assert process.returncode == CODES[number], said
    lines = f"{output}\n{errors}".splitlines()
    assert sum(line.startswith(("interrupted", "stopped")) for line in lines) == 1, said
    assert told[-1:] and len(told[-1]) < 400, said
    assert not group(process.pid), said


def group(leader: int) -> list[int]:
    """Processes of a session that are still there two seconds after its leader."""
    end = time.monotonic() + 2
    left = [leader]
    while left and time.monotonic() < end:
        left = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                left.append(int(entry.parent.name))
        time.sleep(0.05)
    return left


def commands(folder: Path) -> dict[str, list[str]]:
    setting = str(write_setting(folder, rounds=200))
    few = ["--set=negatives.count=2", "--set=method.name=promptfl"]
    return {
        "run": ["run", setting, *few],
        "compare": ["compare", "--settings", setting, "--methods", "promptfl,fedotp", "--jobs=2"],
        "tune": ["tune", "--setting", setting, "--methods", "promptfl", "--budget=3", "--jobs=2"],
        "evaluate": ["evaluate", "done"],
        "encode": ["features", "demo:cifar100"],
        "demo": ["demo", *TINY],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    setting = write_setting(tmp_path, rounds=1)
    done = start(["run", str(setting), "--set=method.name=promptfl", "--out", "done"], tmp_path)
    _, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    return tmp_path


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_at_the_first_moment(number: signal.Signals, tmp_path: Path) -> None:
    stop(["methods"], tmp_path, number, 0.0)


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
@pytest.mark.parametrize("name", ["run", "compare", "tune", "evaluate", "encode", "demo"])
def test_signals_at_random_moments(name: str, folder: Path) -> None:
    words, draws = commands(folder)[name], random.Random(name)
    for turn in range(8):
        number = draws.choice(list(CODES))
        out = ["--out", f"out-{turn}"] if name in ("run", "compare", "tune", "demo") else []
        stop([*words, *out], folder, number, draws.uniform(0.0, 0.5 if turn < 4 else 6.0))


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
