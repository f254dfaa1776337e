"""Peak memory of a run with 10 clients and with 100 at 10%: clients are not copies.

Prints both peaks and their ratio, each run in a process of its own on the packaged features.
"""

import subprocess
import sys
import tempfile

SCRIPT = """
import resource, sys
from pathlib import Path
from focoop import config
from focoop.experiments import run_experiment
from focoop.runs.manifest import collect
from focoop.runs import start
settings = config.load(None, sys.argv[2:])
with start(Path(sys.argv[1]), settings, collect(settings), resume=False) as folder:
    run_experiment(settings, folder)
    folder.finish("finished")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
SETTINGS = ("federation.rounds=2", "federation.epochs=1", "federation.evaluate_every=0")


def peak(clients: int, participation: float) -> int:
    """Peak resident memory of a FOCoOp run in KiB."""
    overrides = [f"partition.clients={clients}", f"federation.participation={participation}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SCRIPT, f"{folder}/run", *SETTINGS, *overrides]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main() -> None:
    few, many = peak(10, 1.0), peak(100, 0.1)
    print(
        f"peak memory: 10 clients {few / 1024:.0f} MiB, 100 clients {many / 1024:.0f} MiB", end=""
    )
    print(f": {many / few:.2f}x")


if __name__ == "__main__":
    main()
