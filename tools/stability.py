"""How far results move when nothing that should matter is changed.

    python tools/stability.py configs/demo/*.toml --seeds 5
    python tools/stability.py configs/demo/promptfl.toml --set federation.lr=0.1 --variants same,bit

runs every file once per seed and, for the first seed, once per variant: with one bit of the first
shared tensor changed, with the kernels of other processors, and from another random start on the
same training images. A difference between methods that is smaller than these spreads is not a
result. The table gives accuracy on own and all classes in points: the mean over seeds, then largest
minus smallest over seeds (which also draw other training images), over starts on the same images,
and over bits and kernels; `last` is what the last evaluation gained over the one before.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# Environment of each variant; `bit-N` changes one bit of element N of the first shared tensor.
KERNELS = {
    "same": {},
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}
BITS = ("bit-0", "bit-101", "bit-1009")
STARTS = ("start-1", "start-2", "start-3", "start-4")
SECONDS = 1200  # of one run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", default="5", help="how many, or which: 0,4")
    parser.add_argument("--variants", default=",".join((*KERNELS, *BITS, *STARTS)))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="also write every run's numbers here")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a variant, in a process of its own
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one_run(given.files[0], given.set, given.one)))
        return
    from focoop.experiments import seeds_of

    seeds = [str(seed) for seed in seeds_of(given.seeds)]
    variants = given.variants.split(",")
    wanted = [(file, seed, "same") for file in given.files for seed in seeds]
    wanted += [(f, seeds[0], v) for f in given.files for v in variants if v != "same"]
    with ThreadPoolExecutor(given.jobs) as pool:
        found = list(pool.map(lambda one: (one, apart(*one, given.set)), wanted))
    if given.json:
        rows = [{"file": str(f), "seed": s, "variant": v, **r} for (f, s, v), r in found]
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    heads = ("own", "seeds", "starts", "bits", "all", "seeds", "starts", "bits", "last")
    print(f"{'':28} " + " ".join(f"{head:>6}" for head in heads))
    for file in given.files:
        show(file, [(s, v, r) for (f, s, v), r in found if f == file], seeds[0])


def show(file: Path, runs: list[tuple[str, str, dict[str, Any]]], first: str) -> None:
    """Print one line of the table."""
    failed = next((r["error"] for _, _, r in runs if "error" in r), None)
    if failed:
        print(f"{file.stem:28} {failed}")
        return
    cells = []
    for name in ("accuracy_own", "accuracy_all"):
        seeds = [r[name] for _, variant, r in runs if variant == "same"]
        here = [(variant, r[name]) for seed, variant, r in runs if seed == first]
        starts = [value for variant, value in here if variant in ("same", *STARTS)]
        alike = [value for variant, value in here if variant not in STARTS]
        cells += [sum(seeds) / len(seeds)]
        cells += [max(values) - min(values) for values in (seeds, starts, alike)]
    # How much of the way the last two evaluations still went: a run that rises is not finished.
    last = [r["path"][-1] - r["path"][-2] for _, _, r in runs if len(r["path"]) > 1]
    rise = sum(last) / len(last) if last else 0.0
    print(f"{file.stem:28} " + " ".join(f"{100 * c:6.2f}" for c in cells) + f" {100 * rise:+6.2f}")


def apart(file: Path, seed: str, variant: str, settings: list[str]) -> dict[str, Any]:
    """One run in a process of its own, with that variant's kernels and one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **KERNELS.get(variant, {})}
    command = [sys.executable, __file__, str(file), "--one", variant, "--set", f"seed={seed}"]
    command += [part for text in settings for part in ("--set", text)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def one_run(file: Path, settings: list[str], variant: str) -> dict[str, Any]:
    """Train and evaluate; the last round's accuracies and the way there."""
    import torch

    from focoop.config import loading as configs
    from focoop.experiments.evaluation import evaluate_state
    from focoop.federation.rounds import start
    from focoop.federation.simulator import MemoryStore, simulate
    from focoop.methods.base import Server
    from focoop.scenario.scenario import build_scenario
    from focoop.scenario.schedule import schedule_of

    config = configs.load(file, settings)
    scenario, seed = build_scenario(config), config.seed
    if variant.startswith("start-"):
        seed += 1000 * int(variant.removeprefix("start-"))
    server = Server(start(scenario.method, scenario.task, seed).shared)
    if variant.startswith("bit-") and server.shared:
        name = min(server.shared)
        changed = server.shared[name].clone()
        flat = changed.view(-1)
        place = int(variant.removeprefix("bit-")) % len(flat)
        flat[place] = torch.nextafter(flat[place], torch.tensor(torch.inf))
        server = replace(server, shared={**server.shared, name: changed})
    store, schedule, path = MemoryStore(), schedule_of(config, scenario), []
    norms = {n: float(v.float().norm()) for n, v in server.shared.items()}
    before, moved = server.shared, {}
    every = config.federation.evaluate_every
    rounds = simulate(
        scenario.method, scenario.task, scenario.training_clients(), schedule, store,
        seed=seed, resume=(0, server),
    )  # fmt: skip
    for result in rounds:
        server = result.server
        if result.round_index == 1:
            moved = {
                n: float((server.shared[n] - v).float().norm()) / max(norms[n], 1e-9)
                for n, v in before.items()
                if v.is_floating_point()
            }
        if every and result.round_index % every == 0 and result.round_index < schedule.rounds:
            summary = evaluate_state(scenario, server, store, seed).summary
            path.append(summary["accuracy_own"])
    summary = evaluate_state(scenario, server, store, seed).summary
    path.append(summary["accuracy_own"])
    return {**summary, "path": path, "moved": moved}


if __name__ == "__main__":
    main()
