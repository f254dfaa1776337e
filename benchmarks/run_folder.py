"""What a commit costs: milliseconds per round as rounds and participants grow, and checksums alone.

    python benchmarks/run_folder.py --clients 1000 --rounds 500

Waiting for the disk (fsync) is left out, so that the work itself shows. The last line compares all
checksums of a small run with the run itself, in one process.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

import focoop
from focoop import caching
from focoop.config import RunConfig
from focoop.runs import RunFolder, private_store, reading


def commits(clients: int, rounds: int, private: bool) -> list[float]:
    """Milliseconds of each commit of a run in which all clients take part in every round."""
    shared = {"context": torch.zeros(16, 512)}
    took = []
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", RunConfig(), {"status": "running"})
        for index in range(rounds):
            if private:
                for client in range(clients):
                    folder.private.save(client, index, {"p": torch.zeros(8)})
            traffic = {"participants": list(range(clients)), "bytes_up": 1, "bytes_down": 1}
            began = time.perf_counter()
            folder.commit(index, shared, {"loss": 0.0}, traffic)
            took.append(1e3 * (time.perf_counter() - began))
        folder.finish("finished")
        began = time.perf_counter()
        RunFolder.open(folder.path)
        print(f"opening it: {1e3 * (time.perf_counter() - began):.0f} ms")
    return took


def share_of_checksums() -> float:
    """Seconds in checksums over seconds of a run of the demo, promptfl with five rounds."""
    spent, real = 0.0, caching.checksum

    def timed(*parts: bytes | memoryview | str) -> str:
        nonlocal spent
        began = time.perf_counter()
        digest = real(*parts)
        spent += time.perf_counter() - began
        return digest

    from focoop.assets import packaged
    from focoop.features import storage
    from focoop.runs import files, folder, ledger, snapshot

    rooms = (caching, packaged, storage, files, folder, ledger, snapshot, private_store, reading)
    for room in rooms:
        room.checksum = timed  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        settings = {"method.name": "promptfl", "federation.rounds": 5}
        focoop.run("demo", settings, out=Path(place) / "run")
        whole = time.perf_counter() - began
    print(f"checksums: {1e3 * spent:.0f} ms of {whole:.1f} s")
    return spent / whole


def main() -> None:
    """Print a line per hundred rounds, and the share of checksums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--private", action="store_true", help="clients keep private tensors")
    given = parser.parse_args()
    os.fsync = lambda handle: None  # type: ignore[assignment]
    took = commits(given.clients, given.rounds, given.private)
    for first in range(0, given.rounds, 100):
        part = took[first : first + 100]
        print(f"rounds {first} to {first + len(part) - 1}: {statistics.median(part):.2f} ms each")
    print(f"share of a run: {share_of_checksums():.2%}")


if __name__ == "__main__":
    main()
