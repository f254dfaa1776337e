"""Send signals to commands at random moments and look at what they leave.

    python tools/signals.py --cases 450 --seed 0 --docs docs/reliability.md

SIGINT, SIGTERM or SIGHUP arrives at a moment between focoop's first line (import time included) and
the middle of its work, the shorter the likelier. The command must say one line, end within ten
seconds with the signal's exit code (0 where it serves until it is stopped), and leave no process.
Whatever breaks this is printed; the exit code is then 1. Needs Linux's /proc.

With `--early` signals arrive in the first fifth of a second of the process, also before focoop's
first line. There Python itself answers a signal; these cases are counted apart.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.fuzz import Ground  # noqa: E402
from tools.promises import Promise, write_promise  # noqa: E402

LIMIT = 10.0  # seconds a command may take to end
EARLY = 0.2  # seconds in which a process begins, on an idle machine
SETUP_SECONDS = 4.0  # of the short run that prepares the folder, on an idle machine of two cores
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
MARK = "FOCOOP_SIGNAL_CASE"  # a variable by which all processes of a case are found
TRAINED = ("--set=negatives.count=2", "--set=method.name=promptfl")
NAMES = ("run", "compare", "tune", "evaluate", "encode", "demo", "serve")
NAMES += ("federation start", "site join")
Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Command:
    """A command to be stopped.

    Attributes:
        words: its words behind `focoop`; `{n}` stands for the number of the case.
        longest: latest moment of a signal on an idle machine, in seconds.
        serves: whether being stopped is its normal end.
    """

    words: tuple[str, ...]
    longest: float = 8.0
    serves: bool = False


@dataclass(frozen=True)
class Ending:
    """What became of a command.

    `stopped`, `done` before the signal, ended by `python` before focoop's first line, or `broken`
    with a reason.
    """

    how: str
    seconds: float = 0.0
    report: str = ""


def start(words: Sequence[str], folder: Path, mark: str = "") -> Process:
    """Start a command in a session of its own, with a mark that all its processes carry."""
    environment = {**os.environ, "FOCOOP_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(ROOT), MARK: mark}
    return subprocess.Popen(
        [sys.executable, "-m", "focoop", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def wait_until_watching(process: Process) -> None:
    """Wait for the first line of focoop: Python itself sets no handler for SIGHUP."""
    end = time.monotonic() + 600
    status = Path(f"/proc/{process.pid}/status")
    while time.monotonic() < end and process.poll() is None:
        caught = next(row for row in status.read_text().splitlines() if row.startswith("SigCgt"))
        if int(caught.split()[1], 16) & 1 << (signal.SIGHUP - 1):
            return
        time.sleep(0.001)
    raise AssertionError("the command never began")


def stop(
    command: Command,
    folder: Path,
    number: signal.Signals,
    delay: float,
    case: str = "0",
    *,
    early: bool = False,
) -> Ending:
    """Start a command, send it a signal and look at what it leaves.

    Args:
        command: The command.
        folder: Where it runs.
        number: The signal.
        delay: Seconds between focoop's first line and the signal.
        case: Something that no other case has.
        early: Count them from the start of the process.

    Returns:
        What became of it.
    """
    mark = f"{os.getpid()}-{case}"
    process = start([word.replace("{n}", case) for word in command.words], folder, mark)
    try:
        if not early:
            wait_until_watching(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        if process.poll() is not None:
            output, errors = process.communicate()
            problem = f"ended by itself with {process.returncode}" if process.returncode else ""
            return Ending("broken" if problem else "done", 0.0, f"{problem}\n{output}\n{errors}")
        process.send_signal(number)
        began = time.monotonic()
        output, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - began
        if early and _by_python(number, process.returncode, output, errors):
            return Ending("python", seconds)
        problem = fault(command, number, process.returncode, seconds, output, errors)
        left = processes(mark)
        problem = problem or (f"left {left}" if left else "")
        told = f"{command.words} {number.name} after {delay:.3f} s: {problem}\n{output}\n{errors}"
        return Ending("broken" if problem else "stopped", seconds, told if problem else "")
    except subprocess.TimeoutExpired:
        left = "\n".join(described(pid) for pid in processes(mark, patience=0.0))
        hangs = f"{command.words} {number.name} after {delay:.3f} s: hangs\n{left}"
        return Ending("broken", 60.0, hangs)
    finally:
        for pid in processes(mark, patience=0.0):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(60)


def _by_python(number: signal.Signals, code: int, output: str, errors: str) -> bool:
    """Whether Python itself has ended the command: at once, or with the lines of Ctrl-C."""
    if code == -number and not output + errors:
        return True
    lines = errors.strip().splitlines()
    ctrl_c = number == signal.SIGINT and code in (-number, 1)
    return ctrl_c and bool(lines) and lines[-1] == "KeyboardInterrupt"


def fault(
    command: Command, number: signal.Signals, code: int, seconds: float, output: str, errors: str
) -> str:
    """Return what is wrong with an ending, or nothing."""
    lines = f"{output}\n{errors}".splitlines()
    if seconds > LIMIT:
        return f"took {seconds:.1f} s"
    if "Traceback" in output + errors or "Exception ignored" in errors:
        return "a traceback"
    if code == -number:  # Python itself was ending: the shell tells the same code
        return ""
    if code == 0 and not command.serves:  # the signal came while it ended
        return ""
    if code != CODES[number] and code != 0:
        return f"exit code {code}"
    said = [line for line in lines if "interrupted" in line or "stopped" in line]
    if not said or len(said[-1]) > 400:
        return "no line that says so"
    if sum(line.startswith(("interrupted", "stopped")) for line in lines) > 1:
        return "says it twice"
    return ""


def processes(mark: str, patience: float = 2.0) -> list[int]:
    """Return processes that carry a mark still after some seconds."""
    end = time.monotonic() + patience
    while True:
        left = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes():
                    left.append(int(entry.name))
            except OSError:
                continue
        if not left or time.monotonic() >= end:
            return left
        time.sleep(0.05)


def described(pid: int) -> str:
    """Say what a process is, whose child, and where its threads wait."""
    folder = Path("/proc") / str(pid)
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        waits = [(task / "wchan").read_text() for task in (folder / "task").iterdir()]
    except OSError:
        return f"{pid} has ended"
    return f"{pid}, child of {parent}, waits in {', '.join(waits)}: {words[:300]}"


def commands(folder: Path) -> dict[str, Command]:
    """Return the commands by name; `folder` is then ready for them.

    Args:
        folder: An empty folder.

    Returns:
        Commands that train, look, serve and federate.
    """
    ground = Ground(folder)
    text = (folder / "toy.toml").read_text()
    few = text.replace("rounds = 1\n", "rounds = 300\n")
    shutil.copy(folder / "far.safetensors", folder / "held.safetensors")
    held = f'validation_ood = ["file:{ground.folder}/held.safetensors"]'
    lines = [held if line.startswith("validation_ood") else line for line in few.splitlines()]
    (folder / "long.toml").write_text("\n".join(lines) + "\n")
    _do(folder, "run", "toy.toml", *TRAINED, "--out", "done")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    address = ("--host", f"127.0.0.1:{port}", "--sites", "a", "--classes", "apple; boat; cat; drum")
    study = ("--set=federation.rounds=900", "--set=partition.shots=0", *TRAINED)
    _do(folder, "federation", "create", "fed", *address, "--quorum=1", *study)
    both = ("--methods", "promptfl,fedotp", "--jobs=2", "--out", "grid-{n}")
    listen = ("--listen", "127.0.0.1", "--status-port", "0")
    data = ("--data", "file:toy.safetensors", "--state", "site")
    return {
        "run": Command(("run", "long.toml", *TRAINED, "--out", "run-{n}")),
        "compare": Command(("compare", "--settings", "long.toml", *both)),
        "tune": Command(
            ("tune", "long.toml", "--methods", "promptfl", "--budget=3", "--jobs=2")
            + ("--validation=2", "--out", "tune-{n}")
        ),
        "evaluate": Command(("evaluate", "done"), 4.0),
        "encode": Command(("encode", "demo:cifar100"), 4.0),
        "demo": Command(("demo", "--set=partition.clients=2", "--out", "demo-{n}"), 12.0),
        "serve": Command(("serve", "done", "--port", "0"), 10.0, serves=True),
        "federation start": Command(("federation", "start", "fed", *listen), 15.0),
        "site join": Command(("site", "join", "fed/bundles/a.focoop", *data), 15.0, serves=True),
    }


def _seconds_of_a_run(folder: Path) -> float:
    """Measure a short run: on a slow or busy machine signals must come later to come at work."""
    began = time.monotonic()
    _do(folder, "run", "toy.toml", *TRAINED, "--out", "measured")
    return time.monotonic() - began


def _do(folder: Path, *words: str) -> None:
    process = start(words, folder)
    output, errors = process.communicate(timeout=300)
    if process.returncode:
        raise RuntimeError(f"{words}: {process.returncode}\n{output}\n{errors}")


@contextmanager
def partner(name: str, every: dict[str, Command], folder: Path) -> Iterator[None]:
    """Keep the other side of a federation running, so that rounds are interrupted too."""
    other = {"federation start": "site join", "site join": "federation start"}.get(name)
    if other is None or other not in every:
        yield
        return
    mark = f"{os.getpid()}-partner"
    process = start(every[other].words, folder, mark)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)
        for pid in processes(mark, patience=0.0):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(60)


def attack(
    folder: Path, cases: int, seed: int, only: Sequence[str] = (), *, early: bool = False
) -> Iterator[Ending]:
    """Stop commands at random moments, each as often as the others.

    Args:
        folder: An empty folder.
        cases: How many signals.
        seed: Seed of signals and moments.
        only: Names of commands; empty: all.
        early: Signals come while the process begins.

    Yields:
        What became of each.
    """
    every = commands(folder)
    slowness = max(1.0, _seconds_of_a_run(folder) / SETUP_SECONDS)
    names = list(only or every)
    draw, number = random.Random(seed), 0
    for place, name in enumerate(names):
        share = cases // len(names) + (place < cases % len(names))
        with partner(name, every, folder):
            for _ in range(share):
                longest = EARLY if early else every[name].longest
                delay = slowness * longest * draw.random() ** (1 if early else 2)
                kind = draw.choice(list(CODES))
                yield stop(every[name], folder, kind, delay, str(number), early=early)
                number += 1


def main() -> int:
    """Run the tool; 1 where a command did not end as it must."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], choices=NAMES, help="these commands")
    parser.add_argument("--early", action="store_true", help="while the process begins")
    parser.add_argument("--docs", type=Path, help="write the counts into this page")
    given = parser.parse_args()
    for number in CODES:  # a shell ignores SIGINT for what it starts in the background
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    counts, longest = Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        endings = attack(Path(folder), given.cases, given.seed, given.only, early=given.early)
        for ending in endings:
            counts[ending.how] += 1
            longest = max(longest, ending.seconds)
            if ending.how == "broken":
                print(f"\n{ending.report[-3000:]}", flush=True)
            if counts.total() % 25 == 0:
                print(dict(counts), f"slowest {longest:.1f} s", flush=True)
    print(dict(counts), f"slowest {longest:.1f} s")
    if given.docs:
        happened = f"{counts['stopped']:,} ended, the slowest after {longest:.1f} s; "
        happened += f"{counts['done']:,} were done before"
        if given.early:
            happened += f"; {counts['python']:,} were ended by Python before focoop's first line"
        only = "".join(f" '{name}'" if " " in name else f" {name}" for name in given.only)
        only = (f" --only{only}" if only else "") + (" --early" if given.early else "")
        moments = f"in the first {EARLY} s" if given.early else "at random moments"
        row = Promise(
            f"A signal {'that early ' if given.early else ''}"
            f"ends {', '.join(given.only) or 'a command'}: one line, the right exit code, "
            "no process left, within 10 s",
            f"SIGINT, SIGTERM, SIGHUP {moments} of {', '.join(given.only or NAMES)}",
            counts.total(),
            happened,
            counts["broken"],
            f"python tools/signals.py --cases {given.cases} --seed {given.seed}{only}",
        )
        write_promise(given.docs, row)
    return 1 if counts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
