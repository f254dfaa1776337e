"""What a federation across hosts does when they die, beside an undisturbed run.

    sudo python tools/flower_faults.py --out faults

Three sites and a coordinator, each in a network namespace (`--here`: all on this machine's own
network). A site is killed in round 2 and back in round 4, the SuperLink is killed in round 3 and
the run resumed. Printed: the journal, and the final metrics beside those of the simulator for the
same seed and for others, whose spread is the noise to compare with.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from focoop.config.schema import RunConfig
from focoop.experiments.running import run_experiment
from focoop.runs import RunFolder, start
from focoop.runs.manifest import collect
from tools.flower_hosts import Federation, federation, separable, small

CLIENTS, ROUNDS, LOST = 3, 5, 2


def disturbed(made: Federation, wait: float = 60.0) -> RunFolder:
    """The run with both deaths; `wait` seconds the resumed one looks for the site that is dead."""
    server = made.coordinate("--deadline", "300", "--rejoin", "10")
    sites = [made.join(k) for k in range(CLIENTS)]
    seen = made.wait("asked", round=2, step="train")
    made.kill(sites[LOST])
    seen = made.wait("committed", since=seen, round=2)
    seen = made.wait("asked", since=seen, round=3, step="train")
    made.kill(server, "focoop.flower.deploy.superlink")
    if server.wait(60) != 7:
        raise RuntimeError(f"the coordinator did not say that it failed:\n{made.told()}")
    again = ("--wait", str(wait), "--resume")
    server = made.coordinate("--deadline", "300", "--rejoin", "10", *again)
    made.wait("asked", since=seen, round=3, step="train")
    made.join(LOST)
    if server.wait(600) != 0:
        raise RuntimeError(f"the resumed run failed:\n{made.told()}")
    return RunFolder.open(made.folder / "run")


def simulated(wanted: RunConfig, path: Path) -> dict[str, Any]:
    """The last line of metrics of the simulator's run."""
    with start(path, wanted, collect(wanted), resume=False) as folder:
        run_experiment(wanted, folder)
        folder.finish("finished")
    return folder.metrics()[-1]


def measures(line: dict[str, Any]) -> dict[str, float]:
    """What a site can measure: its own images, and OOD sets that all have."""
    found = {"accuracy_own": float(line["accuracy_own"])}
    for name, one in line["ood"].items():
        short = name.rpartition(":")[2]
        found |= {f"{key} {short}": float(one[key]) for key in ("auroc", "fpr95")}
    return found


def compare(found: dict[str, Any], wanted: RunConfig, folder: Path, seeds: int) -> list[str]:
    """Lines of a table: measure, disturbed, undisturbed, difference, spread over seeds."""
    plain = [
        simulated(replace(wanted, seed=wanted.seed + k), folder / f"sim-{k}") for k in range(seeds)
    ]
    lines = [f"{'measure':16} {'disturbed':>9} {'plain':>9} {'diff':>9} {'sd seeds':>9}"]
    for name, value in measures(found).items():
        values = [measures(line)[name] for line in plain]
        numbers = value, values[0], value - values[0], statistics.stdev(values)
        lines.append(f"{name:16} " + " ".join(f"{number:9.4f}" for number in numbers))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=5, help="undisturbed runs to compare with")
    parser.add_argument("--here", action="store_true", help="without network namespaces")
    told = parser.parse_args()
    if not told.here and not separable():
        parser.error("network namespaces need root and iproute2's `ip`: use sudo, or --here")
    began = time.monotonic()
    folder = told.out.resolve()
    wanted = small(folder, CLIENTS, ROUNDS)
    with federation(folder, wanted, told.port, separate=not told.here) as made:
        run = disturbed(made)
        print(made.told())
    print(f"{time.monotonic() - began:.0f} s")
    for entry in run.manifest["rounds"][1:]:
        print(f"round {entry['round']}: accepted {entry['accepted']}, left out {entry['refused']}")
    print("\n".join(compare(run.metrics()[-1], wanted, folder, told.seeds)))


if __name__ == "__main__":
    main()
