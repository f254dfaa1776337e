"""Part of benchmarks/gpu.py: several runs, one after another and as one batch."""

import time
from functools import partial

import numpy as np
from gpu_tower import Bench, Row
from gpu_world import Federation, wait

from focoop.federation.batched_training import Train
from focoop.federation.meeting import Meeting
from focoop.federation.simulator import MemoryStore


def runs(bench: Bench) -> list[Row]:
    """A round of every run: seeds of a method, and three methods, of few clients and of ten."""
    rows = []
    count = 9 if bench.real else 4
    three = ["promptfl", "focoop", "focoop_plus"]
    cases = [(2, ["focoop"] * 3), (3, ["focoop"] * 3), (10, ["focoop"] * 3)]
    cases += [(3, ["promptfl"] * 3), (10, ["promptfl"] * 3), (3, three), (10, three)]
    for clients, names in cases if bench.real else cases[:1]:
        federations = [bench.federation(clients, name) for name in names]
        bench.fresh()
        alone = [settled(timed(one, seed, count, None)) for seed, one in enumerate(federations)]
        bench.fresh()
        jobs = [partial(timed, one, seed, count) for seed, one in enumerate(federations)]
        ended = Meeting[list[float]](limit=clients * len(names)).run(jobs)
        joined = settled(ended[-1])  # they take turns: a round of the last is one of all
        rows.append({
            "runs": " + ".join(names), "K": clients, "one after another s": sum(alone),
            "as one batch s": joined, "ratio": sum(alone) / joined, "GiB": bench.peak_memory(),
        })  # fmt: skip
    return rows


def timed(federation: Federation, seed: int, count: int, train: Train | None) -> list[float]:
    """When each round of a run ended."""
    found = []
    for _ in federation.simulated(federation.method(), MemoryStore(), count, seed, train):
        wait(federation.task.device)
        found.append(time.perf_counter())
    return found


def settled(ends: list[float]) -> float:
    """Median seconds of a round after the first three."""
    return float(np.median(np.diff(ends)[2:]))
