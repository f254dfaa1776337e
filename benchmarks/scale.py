"""How a federation's costs grow with its clients, against the formulas of docs/model/scale.md.

  clients  the simulator with K = 10, 100 and 1,000 clients of the packaged CIFAR-100 features (four
           classes each, four images per class), ten trained as one batch, private prompts on disk
  server   one server step over n made-up updates: seconds, memory, and the memory predicted
  masks    one secure sum: seconds of a client and of the server, and those predicted
  edges    FOCoOp with edge servers: accuracy and FPR95 by the number of edges

Each point runs in a process of its own, so that its peak memory is its own. Seconds are processor
seconds of one thread, wall seconds beside them.

`python benchmarks/scale.py --part clients server masks edges --out scale.json` (some minutes)
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scale_model import Sizes, mask_seconds, unmask_seconds

from focoop.config.loading import load
from focoop.experiments import evaluate_state, seeds_of
from focoop.features.lookup import open_features
from focoop.federation.rounds import aggregate, start
from focoop.federation.simulator import MemoryStore, simulate
from focoop.federation.traffic import num_bytes
from focoop.flower.masking import Masker, unmask
from focoop.methods.base import ClientUpdate, Server
from focoop.runs.private_store import PrivateStore
from focoop.scenario.scenario import build_scenario
from focoop.scenario.schedule import schedule_of
from focoop.seeds import torch_generator

Point = dict[str, Any]
CLIENTS = (
    ("promptfl", 10, 1.0),
    ("promptfl", 100, 1.0),
    ("promptfl", 1000, 1.0),
    ("focoop", 10, 1.0),
    ("focoop", 100, 0.1),
    ("focoop", 1000, 0.02),
)
SERVER = (
    ("promptfl", "", (1000, 10000, 30000)),
    ("focoop", "method.goc=false", (50, 100, 200)),
    ("focoop", "method.goc_pool=mean", (50, 100, 200)),
    ("focoop", "method.goc_pool=all", (50, 100, 200)),
)
MASKS = ((10, 3072), (10, 614400), (40, 3072), (20, 614400))
EDGES = ((0, "all"), (5, "all"), (2, "all"), (0, "mean"), (5, "mean"))
SMALL = (
    "partition.kind=overlap",
    "partition.classes_per_client=4",
    "partition.shots=4",
    "federation.epochs=1",
    "federation.batch_size=16",
    "federation.together=10",
    "data.corrupted=[]",
    'data.ood=["demo:dtd_32px"]',
)
TUNED = {"promptfl": "federation.lr=1.0", "focoop": "federation.lr=6.0"}


def peak() -> int:
    """Peak resident memory of this process since `forget_peak`, in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)


def forget_peak() -> int:
    """Start the peak anew where the system allows it; what is in use now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return peak()


def clients_point(method: str, clients: int, share: float, rounds: int = 2) -> Point:
    """Time of the last round, peak memory and bytes of a simulated federation."""
    given = [*SMALL, f"method.name={method}", f"partition.clients={clients}", TUNED[method]]
    given += [f"federation.participation={share}", f"federation.rounds={rounds}"]
    config = load(None, given)
    scenario = build_scenario(config)
    ready = forget_peak()
    schedule = schedule_of(config, scenario)
    with tempfile.TemporaryDirectory() as folder:
        store = PrivateStore(Path(folder), None)
        everyone = scenario.training_clients()
        rounds_ = simulate(scenario.method, scenario.task, everyone, schedule, store, seed=0)
        spent = [(result, time.process_time()) for result in rounds_]
    (_, earlier), (last, now) = spent[-2:]
    count = len(last.participants)
    return {
        "method": method,
        "clients": clients,
        "participants": count,
        "cpu_seconds": now - earlier,
        "wall_seconds": last.seconds,
        "cpu_per_client": (now - earlier) / count,
        "peak": peak(),
        "beside_the_data": peak() - ready,
        "bytes_up": last.bytes_up,
        "bytes_down": last.bytes_down,
    }


def server_point(method: str, setting: str, count: int) -> Point:
    """One server step over `count` updates, with what memory the formula says it takes."""
    given = [*SMALL, f"method.name={method}", *([setting] if setting else [])]
    scenario = build_scenario(load(None, given))
    task, classes = scenario.task, len(scenario.task.classes)
    server = Server(start(scenario.method, task, 0).shared)
    generator = torch_generator(0, "scale")
    before = forget_peak()
    updates = []
    for client in range(count):
        shared = {
            n: v + 0.01 * torch.randn(v.shape, generator=generator) if v.is_floating_point() else v
            for n, v in scenario.method.sent(server.shared).items()
        }
        counts = torch.randint(0, 9, (classes,), generator=generator)
        updates.append(ClientUpdate(client, shared, int(counts.sum()), counts, 1.0))
    cpu = time.process_time()
    aggregate(scenario.method, server, updates, task)
    spent = time.process_time() - cpu
    shapes = {n: v.shape for n, v in server.shared.items() if v.is_floating_point()}
    contexts = {n: shape[0] if len(shape) == 3 else 1 for n, shape in shapes.items()}
    tokens, width = next(iter(shapes.values()))[-2:]
    ood = contexts.pop("ood", 0)
    sizes = Sizes(classes, sum(contexts.values()), ood, tokens, width, "pool=all" in setting)
    return {
        "method": method,
        "setting": setting,
        "updates": count,
        "cpu_seconds": spent,
        "predicted_seconds": sizes.seconds(count),
        "memory": peak() - before,
        "predicted": sizes.memory(count),
        "update_bytes": num_bytes(scenario.method.sent(server.shared)) + 8 * classes,
        "predicted_bytes": sizes.update_bytes(),
    }


def masks_point(clients: int, words: int) -> Point:
    """A secure sum of zeros from which one client drops out: a client's seconds, the server's."""
    maskers = {k: Masker(k, 2 * clients // 3 + 1) for k in range(clients)}
    keys = {k: masker.keys() for k, masker in maskers.items()}
    packages = {k: maskers[k].share(keys) for k in range(1, clients)}
    zeros, alive = np.zeros(words, dtype=np.uint64), range(clients - 1)
    began = time.process_time()
    packages[0] = maskers[0].share(keys)
    masked = {0: maskers[0].mask(zeros, {j: packages[j][0] for j in range(1, clients)})}
    one = time.process_time() - began
    for k in alive[1:]:
        masked[k] = maskers[k].mask(zeros, {j: packages[j][k] for j in maskers if j != k})
    revealed = [maskers[k].reveal(alive) for k in alive]
    began = time.process_time()
    total, _ = unmask(masked, maskers, keys, revealed, 2 * clients // 3 + 1)
    assert not total.any()
    return {
        "client_seconds": one,
        "predicted_client": mask_seconds(clients, words),
        "server_seconds": time.process_time() - began,
        "predicted_server": unmask_seconds(clients, 1, words),
    }


def edges_point(edges: int, pool: str, seed: int) -> Point:
    """FOCoOp on twenty classes, ten clients with two classes each."""
    names = open_features("demo:cifar100", "test").classes
    dropped = "[" + ", ".join(f'"{name}"' for name in names[20:]) + "]"
    given = ["partition.kind=pathological", "partition.clients=10", "partition.shots=8"]
    given += ["federation.rounds=5", "federation.batch_size=16", "negatives.count=20"]
    given += ["data.corrupted=[]", 'data.ood=["demo:dtd_32px"]', "backbone.logit_scale=10.0"]
    given += [f"data.drop_classes={dropped}", "method.name=focoop", "federation.lr=6.0"]
    given += [f"method.goc_pool={pool}", f"federation.edges={edges}", f"seed={seed}"]
    config = load(None, [*given, "method.score_scale=30.0"])
    scenario, store = build_scenario(config), MemoryStore()
    schedule, everyone = schedule_of(config, scenario), scenario.training_clients()
    *_, last = simulate(scenario.method, scenario.task, everyone, schedule, store, seed=seed)
    found = evaluate_state(scenario, last.server, store, seed).summary
    (ood,) = found["ood"].values()
    return {"accuracy": found["accuracy_own"], "fpr95": ood["fpr95"], **last.server.report}


POINTS = {
    "clients": clients_point,
    "server": server_point,
    "masks": masks_point,
    "edges": edges_point,
}


def apart(part: str, *arguments: object) -> Point:
    """A point in a process of its own."""
    command = [sys.executable, __file__, "--point", part, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: Point = json.loads(done.stdout.splitlines()[-1])
    return found


def show_clients() -> list[Point]:
    print("method      clients  a round  cpu s  wall s  cpu ms each  peak MiB  kB up each")
    points = []
    for method, clients, share in CLIENTS:
        one = apart("clients", method, clients, share)
        count = one["participants"]
        print(
            f"{method:<12}{clients:>7}{count:>9}{one['cpu_seconds']:>7.1f}"
            f"{one['wall_seconds']:>8.1f}{1000 * one['cpu_per_client']:>13.0f}"
            f"{one['peak'] / 2**20:>10.0f}{one['bytes_up'] / count / 1000:>12.1f}",
            flush=True,
        )
        points.append(one)
    return points


def show_server() -> list[Point]:
    heads = ("updates", "cpu s", "predicted", "MiB", "predicted")
    print(f"{'method':<10}{'setting':<16}" + "".join(f"{head:>11}" for head in heads))
    points = []
    for method, setting, counts in SERVER:
        for count in counts:
            one = apart("server", method, setting, count)
            assert one["update_bytes"] == one["predicted_bytes"]
            cells = (one["cpu_seconds"], one["predicted_seconds"])
            sizes = (one["memory"] / 2**20, one["predicted"] / 2**20)
            row = [f"{count:>11}", *(f"{x:>11.2f}" for x in cells), *(f"{x:>11.0f}" for x in sizes)]
            print(f"{method:<10}{setting.removeprefix('method.'):<16}" + "".join(row), flush=True)
            points.append(one)
    return points


def show_masks() -> list[Point]:
    print("clients   words   client s   predicted   server s   predicted")
    points = []
    for clients, words in MASKS:
        one = apart("masks", clients, words)
        row = "".join(f"{one[name]:>12.2f}" for name in one)
        print(f"{clients:>7}{words:>9}{row}", flush=True)
        points.append({"clients": clients, "words": words, **one})
    return points


def show_edges(seeds: Sequence[int]) -> list[Point]:
    print("FOCoOp      edges   accuracy      FPR95  (one column per seed)")
    points = []
    for edges, pool in EDGES:
        found = [apart("edges", edges, pool, seed) for seed in seeds]
        accuracy = " ".join(f"{100 * one['accuracy']:5.1f}" for one in found)
        fpr = " ".join(f"{100 * one['fpr95']:5.1f}" for one in found)
        print(f"pool {pool:<7}{edges:>5}   {accuracy}   {fpr}", flush=True)
        points += [{"edges": edges, "pool": pool, **one} for one in found]
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="+", default=list(POINTS), choices=POINTS)
    parser.add_argument("--seeds", type=seeds_of, default="2", help="how many, or which: 0,4")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        torch.set_num_threads(1)
        print(json.dumps(POINTS[given.point[0]](*json.loads(given.point[1]))))
        return
    found: dict[str, list[Point]] = {}
    for part in given.part:
        print(f"\n{part}")
        if part == "clients":
            found[part] = show_clients()
        elif part == "server":
            found[part] = show_server()
        elif part == "masks":
            found[part] = show_masks()
        else:
            found[part] = show_edges(given.seeds)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
