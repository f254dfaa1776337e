"""Let federations run long, watch what their processes hold, and judge it.

    python tools/soak.py simulator --out soak/a   # 1,000 clients, 500 rounds, 100 train in each
    python tools/soak.py everyone --out soak/b    # all 1,000 clients in each round
    python tools/soak.py flower --out soak/c      # a coordinator and two sites under TLS, an hour
    python tools/soak.py costs --out soak/d       # seconds and bytes of a round by participants
    python tools/soak.py flower --judge soak/c/raw.json   # judge and draw what was seen before

Every few seconds memory, descriptors, threads and processes of each party are noted, the size of
the run folder and the bytes that were written. Results go to docs/reliability (`--docs`); the exit
code is 1 where memory or descriptors grow (`tools/soak_judge.py` says how that is judged). The
folder of `--out` may lie in memory (/dev/shm), where no time is spent waiting for a disk. Needs
Linux's /proc.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.flower_hosts import Federation, Network, family, small  # noqa: E402
from tools.soak_costs import sweep  # noqa: E402
from tools.soak_judge import WARM_UP, judge  # noqa: E402

CLASSES = ("apple", "boat")
LEAVE = 10.0  # seconds in which all processes of a stopped party must have ended
EACH = 5  # training images of a class at each client


def look(pid: int) -> dict[str, int]:
    """Memory, descriptors, threads and processes of a process and its descendants.

    Memory is what they took for themselves, shared pages divided among those that share them. Pages
    of files do not count: the system takes them back as it likes.
    """
    found = dict.fromkeys(("memory", "descriptors", "threads", "processes", "written", "ticks"), 0)
    for one in family(pid):
        folder = Path(f"/proc/{one}")
        try:
            facts = {
                "memory": 1024 * sum(_kilobytes(folder / "smaps_rollup", "Pss_Anon", "SwapPss")),
                "descriptors": len(os.listdir(folder / "fd")),
                "threads": len(os.listdir(folder / "task")),
                "processes": 1,
                "ticks": sum(map(int, _after_name(folder / "stat")[11:13])),
                "written": int((folder / "io").read_text().split("wchar:")[1].split()[0]),
            }
        except (OSError, IndexError):  # it ended meanwhile
            if one == pid:  # its children alone would look like a fall
                return dict.fromkeys(found, 0)
            continue
        for name, value in facts.items():
            found[name] += value
    return found


def alive(pid: int) -> bool:
    """Return whether a process is there and has not ended."""
    try:
        return _after_name(Path(f"/proc/{pid}/stat"))[0] != "Z"
    except OSError:
        return False


def _kilobytes(rollup: Path, *names: str) -> list[int]:
    """Values of some lines of a process's memory."""
    lines = [line.split() for line in rollup.read_text().splitlines()]
    return [int(line[1]) for line in lines if line[0].rstrip(":") in names]


def _after_name(stat: Path) -> list[str]:
    """What /proc tells of a process, from its state on."""
    return stat.read_text().rpartition(")")[2].split()


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:  # it was removed meanwhile
                continue
    return total


@dataclass
class Watch:
    """Samples processes until they end.

    Attributes:
        folder: the run folder.
        groups: numbers of processes by name; their descendants count too.
        raw: where the samples are written now and then.
        every: seconds between samples.
    """

    folder: Path
    groups: dict[str, int]
    raw: Path
    every: float
    began: float = field(default_factory=time.monotonic)
    samples: list[dict[str, Any]] = field(default_factory=list)
    lines: int = 0
    read: int = 0

    @property
    def rounds(self) -> int:
        """Return how many rounds are committed, the one before the first not counted."""
        return max(0, self.lines - 1)

    def sample(self) -> None:
        """Take a sample."""
        path = self.folder / "rounds.jsonl"
        if path.exists():
            with open(path, "rb") as file:
                file.seek(self.read)
                new = file.read()
            self.lines += new.count(b"\n")
            self.read += len(new)
        one: dict[str, Any] = {
            "seconds": round(time.monotonic() - self.began, 2),
            "round": self.rounds,
            "folder": size_of(self.folder),
        }
        self.samples.append(one | {name: look(pid) for name, pid in self.groups.items()})

    def until(self, ended: Callable[[], bool]) -> list[dict[str, Any]]:
        """Take samples until something ended.

        Args:
            ended: Whether it has.

        Returns:
            All samples in which every group was there.
        """
        while not ended():
            self.sample()
            if len(self.samples) % 20 == 0:
                self.save()
            time.sleep(self.every)
        there = [one for one in self.samples if all(one[name]["processes"] for name in self.groups)]
        self.samples = there
        self.save()
        return there

    def save(self) -> None:
        """Write the samples."""
        self.raw.write_text(json.dumps({"samples": self.samples}), encoding="utf-8")


def make_features(folder: Path, clients: int) -> list[str]:
    """Write features of two classes around random centres.

    Args:
        folder: Where.
        clients: How many clients they must do for.

    Returns:
        The settings that name them.
    """
    import torch
    import torch.nn.functional as F

    from focoop.features import FeatureSet, save_splits
    from focoop.seeds import torch_generator

    def images(name: str, each: int) -> FeatureSet:
        centres = torch.randn(len(CLASSES), 256, generator=torch_generator(0, "centres"))
        noise = torch.randn(len(CLASSES), each, 256, generator=torch_generator(0, name))
        pooled = F.normalize(centres[:, None] + 2 * noise, dim=-1).flatten(0, 1)
        return FeatureSet(pooled, None, torch.arange(len(CLASSES)).repeat_interleave(each), CLASSES)

    folder.mkdir(parents=True, exist_ok=True)
    splits = {"train": images("train", EACH * clients), "test": images("test", clients)}
    save_splits(folder / "id.safetensors", splits)
    save_splits(folder / "far.safetensors", {"test": images("far", 20)})
    return [f"data.id=file:{folder}/id.safetensors", f'data.ood=["file:{folder}/far.safetensors"]']


def settings_of(folder: Path, method: str, clients: int, rounds: int, share: float) -> list[str]:
    """Return the settings of a cheap run with real files, and make its features."""
    return [
        *make_features(folder, clients),
        "data.corrupted=[]",
        "partition.kind=iid",
        "partition.shots=0",
        f"partition.clients={clients}",
        f"method.name={method}",
        *(["method.context_tokens=1"] if method == "promptfolio" else []),
        f"federation.rounds={rounds}",
        f"federation.participation={share}",
        "federation.epochs=1",
        "federation.batch_size=16",
        "federation.together=100",
        f"federation.evaluate_every={max(1, rounds // 5)}",
    ]


def simulator(
    folder: Path, method: str, clients: int, rounds: int, share: float, every: float
) -> list[dict[str, Any]]:
    """Run the simulator as a user does, and watch it.

    Args:
        folder: Where its files go.
        method: The method.
        clients: Number of clients.
        rounds: Number of rounds.
        share: Share of the clients in a round.
        every: Seconds between samples.

    Returns:
        The samples.

    Raises:
        RuntimeError: The run failed.
    """
    settings = settings_of(folder, method, clients, rounds, share)
    command = [sys.executable, "-m", "focoop", "run", "--untuned", "--out", str(folder / "run")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(
            [*command, *(f"--set={text}" for text in settings)],
            stdout=log,
            stderr=log,
            env=environment,
        )
    try:
        watch = Watch(folder / "run", {"simulator": process.pid}, folder / "raw.json", every)
        samples = watch.until(lambda: process.poll() is not None)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
    if process.returncode:
        raise RuntimeError((folder / "log.txt").read_text())
    return samples


def flower(
    folder: Path, sites: int, seconds: float, every: float, rounds: int = 0, port: int = 0
) -> list[dict[str, Any]]:
    """Run a coordinator and sites under TLS, watch them, and stop them.

    Args:
        folder: Where their files go.
        sites: Number of sites.
        seconds: How long.
        every: Seconds between samples.
        rounds: Rounds after which to stop; 0: none.
        port: The coordinator's port; 0: any free one.

    Returns:
        The samples.

    Raises:
        RuntimeError: The coordinator ended by itself, or did not end as it must when stopped.
    """
    if not port:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
    extra = ("method.name=promptfolio", "federation.evaluate_every=100", "negatives.count=4")
    wanted = small(folder, sites, 100_000, *extra, "method.context_tokens=4")
    with Network(False) as network:
        made = Federation(folder, wanted, network, port)
        try:
            made.prepare()
            for name in made.sites:  # a site's own policy allows 1,000 rounds unless it says more
                policy = folder / "keys" / "sites" / name / "policy.toml"
                policy.write_text("rounds = 100000\n", encoding="utf-8")
            server = made.coordinate("--deadline", "300", "--status-port", "0")
            nodes = {name: made.join(k).pid for k, name in enumerate(made.sites)}
            groups = {"coordinator": server.pid, **nodes}
            watch = Watch(folder / "run", groups, folder / "raw.json", every)
            end = time.monotonic() + seconds
            samples = watch.until(
                lambda: (
                    server.poll() is not None
                    or time.monotonic() > end
                    or bool(rounds and watch.rounds >= rounds)
                )
            )
            if server.poll() is not None:
                raise RuntimeError(f"the coordinator ended by itself:\n{made.told()[-3000:]}")
            everyone = family(server.pid)
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
            end = time.monotonic() + LEAVE
            while (left := [pid for pid in everyone if alive(pid)]) and time.monotonic() < end:
                time.sleep(0.1)
            if code != 143 or left:
                raise RuntimeError(f"stopped, the coordinator ended with {code} and left {left}")
        finally:
            made.close()
    return samples


def main() -> int:
    """Run the tool; 1 where something grows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=("simulator", "everyone", "flower", "costs"))
    parser.add_argument("--out", type=Path, help="a new folder for runs and raw samples")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of flower")
    parser.add_argument("--clients", type=int, default=1000, help="of the simulator")
    parser.add_argument("--rounds", type=int, default=500, help="of the simulator")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--warm-up", type=float, default=WARM_UP, help="share of rounds left out")
    parser.add_argument("--judge", type=Path, metavar="RAW", help="judge samples of an earlier run")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "reliability")
    given = parser.parse_args()
    if given.judge is None and given.out is None:
        parser.error("give --out, a new folder")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = (given.out or Path("soak")).resolve()
    if given.part == "costs":
        sweep(folder, settings_of, given.docs)
        return 0
    command = f"python tools/soak.py {given.part} --out soak"
    if given.judge is not None:
        samples = json.loads(given.judge.read_text(encoding="utf-8"))["samples"]
    elif given.part == "flower":
        samples = flower(folder, 2, given.seconds, given.every)
    else:
        method, share = ("fedncm", 1.0) if given.part == "everyone" else ("promptfolio", 0.1)
        samples = simulator(folder, method, given.clients, given.rounds, share, given.every)
    return 0 if judge(given.part, command, samples, given.docs, given.warm_up) else 1


if __name__ == "__main__":
    sys.exit(main())
