"""The text engine on a GPU: peak, tower, rounds, sweeps, and the way the field does it.

    PYTHONPATH=. python3 benchmarks/gpu.py --out gpu.json
    PYTHONPATH=. python3 benchmarks/gpu.py --device cpu --tiny        (tries every part)
    PYTHONPATH=. python3 benchmarks/gpu.py --parts bars --out bars.json  (the bars of issue 16)

`--parts` chooses, by commas: bars, exact, agree, peak, kernels, robust, tower, server, host, round,
paper, paper_profile, evaluation, run, naive, methods, profile, transport, classes, groups, clients.
Towers have ViT-B/16's sizes and random weights; K=10 clients, 80 images each, batch 32, E=2, C=100,
U=100, bi-level separations (4+4 steps in feature space) and transport on. A part that fails prints
its error and the others go on; a sweep stops where `--seconds` are used up. Needs torch, numpy and
safetensors; the fused step also Triton.
"""

import argparse
import cProfile
import json
import platform
import pstats
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_bars import bars
from gpu_evaluation import agree, evaluations, paper, paper_profile
from gpu_kernels import kernels, profile, robust
from gpu_tower import Bench, Row, exact, peak, tower, transport
from gpu_world import REAL, TINY, Federation, make_clients, make_sets, make_task, wait
from naive import naive_round

from focoop.federation.rounds import start
from focoop.federation.simulator import MemoryStore
from focoop.methods.base import ClientUpdate, Server


def settled(rows: list[dict[str, float]], skip: int) -> dict[str, float]:
    """Median of every part over the rounds after the first ones."""
    return {name: float(np.median([r.get(name, 0.0) for r in rows[skip:]])) for name in rows[-1]}


def one_round(bench: Bench) -> list[Row]:
    """The simulator's round, everything included, and where its time goes."""
    rows = []
    count = 10 if bench.real else 4
    for rule in ("open_loop", "dual"):
        bench.fresh()
        federation = bench.federation(10, transport_rule=rule)
        plain = federation.rounds(count)
        parts = settled(federation.rounds(count, timed=True), 3)
        parts.pop("round")
        rows.append({
            "transport": rule, "first s": plain[0]["round"], "second s": plain[1]["round"],
            "round s": settled(plain, 3)["round"], **parts, "GiB": bench.peak_memory(),
        })  # fmt: skip
    return rows


def whole_run(bench: Bench) -> list[Row]:
    """25 rounds with evaluation by the wall clock, graphs recorded anew."""
    rows, rounds = [], 25 if bench.real else 3
    sets = make_sets(bench.sizes, 10, bench.sizes.classes)
    for rule, every in (("open_loop", 0), ("dual", 0), ("dual", 1)):
        bench.fresh()
        total, spent = bench.federation(10, transport_rule=rule).whole(rounds, sets, every)
        when = "every round" if every else "the last round"
        rows.append({"transport": rule, "evaluated": when, "run s": total, "evaluation s": spent})
    return rows


def server(bench: Bench) -> list[Row]:
    """The server's step alone, on prompts that drift as in a run, by the host's threads."""
    rows, before = [], torch.get_num_threads()
    for rule in ("open_loop", "dual"):
        federation = bench.federation(10, transport_rule=rule)
        method = federation.method()
        for threads in (1, 2, 4, before):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            now = Server(start(method, bench.task, 0).shared)
            spent, steps = [], []
            for _ in range(8):
                updates = drifted(now, federation, bench.sizes.classes)
                wait(bench.device)
                began = time.perf_counter()
                now = method.aggregate(now, updates, bench.task)
                wait(bench.device)
                spent.append(time.perf_counter() - began)
                steps.append(now.report["transport_steps"])
            rows.append({
                "transport": rule, "threads": threads, "ms": 1e3 * float(np.median(spent[3:])),
                "steps": float(np.median(steps[3:])),
            })  # fmt: skip
    torch.set_num_threads(before)
    return rows


def drifted(now: Server, federation: Federation, classes: int) -> list[ClientUpdate]:
    """Updates of all clients whose prompts moved a little."""
    updates = []
    for client, data in enumerate(federation.clients):
        moved = {
            name: value + 2e-3 * torch.randn_like(value) if value.is_floating_point() else value
            for name, value in now.shared.items()
        }
        updates.append(ClientUpdate(client, moved, len(data()), data().counts(classes), 0.0))
    return updates


def host(bench: Bench) -> list[Row]:
    """Where the host spends a settled round and an evaluation, function by function."""
    federation, sets = bench.federation(10), make_sets(bench.sizes, 10, bench.sizes.classes)
    method, store = federation.method(), MemoryStore()
    rounds = federation.simulated(method, store, 6)
    results = [next(rounds) for _ in range(4)]
    federation.evaluate(method, results[-1].server, store, sets)
    jobs: dict[str, Callable[[], object]] = {
        "round": lambda: next(rounds),
        "evaluation": lambda: federation.evaluate(method, results[-1].server, store, sets),
    }
    for label, job in jobs.items():
        wait(bench.device)
        watch = cProfile.Profile()
        watch.runcall(job)
        print(f"-- {label}")
        pstats.Stats(watch).sort_stats("tottime").print_stats(16)
        pstats.Stats(watch).sort_stats("cumtime").print_stats(32)
    return []


def naive(bench: Bench) -> list[Row]:
    """One whole round as the field does it, all clients one after another."""
    names = [bench.task.id_names, bench.task.ood_names]
    found = naive_round(bench.sizes, bench.tower, names, 10 if bench.real else 2, bench.device)
    ours = {r["transport"]: r["round s"] for r in bench.found.get("round", []) if "round s" in r}
    less = found["round"] - found["reading images"]
    found |= {f"times ours ({n})": found["round"] / s for n, s in ours.items()}
    return [found | {f"without reading ({n})": less / s for n, s in ours.items()}]


def methods(bench: Bench) -> list[Row]:
    """Rounds of PromptFL (shared prefix) and FOCoOp in prompt space.

    In prompt space clients train one after another; with `reuse_slopes` by fewer passes.
    """
    rows: list[Row] = []
    space = {"space": "prompt"}
    reused = {**space, "reuse_slopes": True}
    sizes = (10, 100) if bench.real else (3,)
    kinds: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
        ("promptfl", {}, sizes),
        ("focoop", reused, (2,)), ("focoop", space, (2,)),
    ]  # fmt: skip
    for name, settings, counts in kinds:
        for clients in counts:
            bench.fresh()
            count = 2 if settings else 6
            found = bench.federation(clients, name, **settings).rounds(count)
            told = ", ".join(f"{key}={value}" for key, value in settings.items())
            rows.append({
                "method": f"{name} {told}".strip(), "K": clients,
                "round s": settled(found, min(3, count - 1))["round"], "GiB": bench.peak_memory(),
            })  # fmt: skip
    return rows


def sweep(bench: Bench, federation: Federation, label: str, value: int) -> Row:
    """Seconds of the rounds after the second: their median and, per client too, the best."""
    bench.fresh()
    count = 8 if len(federation.clients) <= 20 else 5 if len(federation.clients) <= 200 else 3
    try:
        found = federation.rounds(count)
    except torch.OutOfMemoryError:
        return {label: value, "error": "out of memory"}
    clients = len(federation.clients)
    best = min(row["round"] for row in found[2:])
    return {label: value, "round s": settled(found, 2)["round"], "best s": best,
            "s per client": best / clients, "GiB": bench.peak_memory()}  # fmt: skip


def clients(bench: Bench) -> list[Row]:
    """K from 1 to 1000."""
    rows: list[Row] = []
    for count in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if bench.real else (1, 3):
        known = [row["s per client"] for row in rows if "s per client" in row]
        if known and bench.time_left < 4.0 * count * known[-1]:
            print(f"K={count} is left out: {bench.time_left:.0f} s are left")
            break
        rows.append(sweep(bench, bench.federation(count, transport_rule="dual"), "K", count))
    for before, row in zip(rows, rows[1:], strict=False):
        if "error" in before or "error" in row:
            continue
        row["MiB per extra client"] = 1024 * (row["GiB"] - before["GiB"]) / (row["K"] - before["K"])
    return rows


def groups(bench: Bench) -> list[Row]:
    """100 clients, trained as batches of some of them."""
    rows = []
    for size in (5, 10, 20, 50, 100) if bench.real else (1, 3):
        federation = bench.federation(100 if bench.real else 3, transport_rule="dual")
        federation.together = size
        rows.append(sweep(bench, federation, "together", size))
    return rows


def classes(bench: Bench) -> list[Row]:
    """C from 10 to 1000 at K=10."""
    rows = []
    for count in (10, 50, 100, 200, 500, 1000) if bench.real else (10, 15):
        if bench.time_left < 10.0:
            print(f"C={count} is left out: {bench.time_left:.0f} s are left")
            break
        task = make_task(bench.tower, count, bench.sizes.words)
        data = make_clients(10, count, bench.tower.dim)
        federation = Federation(task, data, settings={"transport_rule": "dual"})
        rows.append(sweep(bench, federation, "C", count))
    return rows


PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "bars": bars,
    "exact": exact,
    "agree": agree,
    "peak": peak,
    "kernels": kernels,
    "robust": robust,
    "tower": tower,
    "server": server,
    "host": host,
    "round": one_round,
    "paper": paper,
    "paper_profile": paper_profile,
    "evaluation": evaluations,
    "run": whole_run,
    "naive": naive,
    "methods": methods,
    "profile": profile,
    "transport": transport,
    "classes": classes,
    "groups": groups,
    "clients": clients,
}


def show(name: str, rows: list[Row]) -> None:
    """A plain table of what a part found."""
    print(f"\n== {name}")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([shown(row.get(c, "")) for c in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def machine(device: torch.device) -> Row:
    """What the numbers were measured on."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor(),
        "torch": torch.__version__, "python": platform.python_version(),
        "threads": torch.get_num_threads(), "date": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("--quick", action="store_true", help="fewer rows of exact and tower")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU here: try the parts with --device cpu --tiny")
        return
    bench = Bench(device, TINY if args.tiny else REAL, args.seconds, args.quick)
    bench.found["machine"] = machine(device)
    print(bench.found["machine"])
    for name in args.parts.split(","):
        began = time.perf_counter()
        try:
            bench.fresh()
            bench.found[name] = PARTS[name](bench)
            show(name, bench.found[name])
        except Exception:
            bench.found[name] = [{"error": traceback.format_exc()}]
            print(f"\n== {name} failed\n{traceback.format_exc()}")
        print(f"({time.perf_counter() - began:.1f} s)", flush=True)
        if args.out:
            args.out.write_text(json.dumps(bench.found, indent=1))


if __name__ == "__main__":
    main()
