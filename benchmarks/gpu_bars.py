"""Part `bars` of benchmarks/gpu.py: the default round and the paper's.

One command measures what issue 16 asks for, everything beside each other in one process:

    PYTHONPATH=. python3 benchmarks/gpu.py --parts bars --out bars.json

The federations are brought to where they stay, the paper's until its words have not changed for
three rounds. Then they take turns, one round each, so that a clock that slows down slows all of
them. `round s` is the median of the turns, `best s` the least, `all s` every one. A second set of
turns is timed by parts, with waits between them. The last rows are the server's transport alone, on
the costs that these rounds had, on the GPU and on one core of the host. It takes a minute on one
H200.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gpu_evaluation import paper_settings, patched
from gpu_tower import Bench, Row
from gpu_world import Federation, parts_timed, wait

from focoop.federation.simulator import MemoryStore, RoundResult
from focoop.functional import transport
from focoop.methods import _goc
from focoop.methods.base import Method
from focoop.threads import one_core

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "focoop-paper": paper_settings(),
    "focoop-paper, words stay": {**paper_settings(), "keep": "slot"},
}
# Rounds at most before the turns; rounds whose words are the same in a row; turns.
LONGEST, SAME, TURNS = 24, 3, 9


@dataclass
class Run:
    """A federation that goes on round by round."""

    federation: Federation
    method: Method
    rounds: Iterator[RoundResult]
    spent: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    settled: int = 0
    words: int = 0
    last: RoundResult | None = None

    def turn(self) -> float:
        """Seconds of the next round."""
        device = self.federation.task.device
        wait(device)
        began = time.perf_counter()
        self.last = next(self.rounds)
        wait(device)
        return time.perf_counter() - began


def begun(bench: Bench, settings: dict[str, Any], turns: int) -> Run:
    """A federation after its first rounds, once its words and its recorded steps stay."""
    federation = bench.federation(10 if bench.real else 2, **settings)
    method = federation.method()
    longest = LONGEST if bench.real else 3
    run = Run(federation, method, federation.simulated(method, MemoryStore(), longest + 2 * turns))
    before, same = None, 0
    for run.settled in range(1, longest + 1):
        run.turn()
        assert run.last is not None
        words = run.last.server.shared["ood_words"].tolist()
        same = same + 1 if words == before else 0
        before, run.words = words, len(set(words))
        if same >= SAME and run.settled >= 2 * SAME:
            break
    return run


def bars(bench: Bench) -> list[Row]:
    """Rounds of all kinds in turns, then by parts, then their transport alone."""
    turns = TURNS if bench.real else 2
    costs: list[tuple[torch.Tensor, float]] = []
    solve = _goc.Consistency.solve

    def kept(self: _goc.Consistency, cost: torch.Tensor) -> _goc.Plan:
        if self.rule == "dual":
            costs.append((cost.clone(), self.tau))
        return solve(self, cost)

    runs = {name: begun(bench, settings, turns) for name, settings in KINDS.items()}
    for _ in range(turns):
        for run in runs.values():
            run.spent.append(run.turn())
    with patched(_goc.Consistency, "solve", kept):
        for _ in range(turns):
            for run in runs.values():
                with parts_timed(run.method, bench.device) as clocks:
                    run.turn()
                    run.parts.append(clocks.take())
                del run.method.__dict__["noise"], run.method.__dict__["aggregate"]
    rows = [row_of(name, run) for name, run in runs.items()]
    with one_core():
        return rows + [r for device in {"cpu", bench.device.type} for r in alone(costs, device)]


def row_of(name: str, run: Run) -> Row:
    """What the turns of a federation took."""
    assert run.last is not None
    parts = {
        part: float(np.median([turn.get(part, 0.0) for turn in run.parts]))
        for part in ("training", "server", "noise")
    }
    return {
        "what": name, "round s": float(np.median(run.spent)), "best s": min(run.spent),
        **parts, "best training": min(turn["training"] for turn in run.parts),
        "best server": min(turn["server"] for turn in run.parts), "words": run.words,
        "rounds before": run.settled, "gap": run.last.server.report["transport_gap"],
        "steps": run.last.server.report["transport_steps"],
        "all s": [round(seconds, 4) for seconds in run.spent],
    }  # fmt: skip


def alone(costs: list[tuple[torch.Tensor, float]], device: str) -> list[Row]:
    """The solver alone on the costs of the rounds, to the default gap and to others."""
    rows = []
    for relative in (1e-4, _goc.GAP, 1e-9):
        spent, gaps = [], []
        for cost, tau in costs:
            there = cost.to(device)
            for _ in range(2):  # the first loads libraries
                wait(there.device)
                began = time.perf_counter()
                found = transport.semi_unbalanced_dual(
                    there, tau=tau, max_steps=300, tolerance=1e-13, relative=relative
                )
                wait(there.device)
                seconds = time.perf_counter() - began
            spent.append(seconds)
            gaps.append(found.gap)
        rows.append({
            "what": f"transport alone, {device}, gap {relative:.0e}",
            "round s": float(np.median(spent)), "best s": min(spent), "gap": max(gaps),
            "all s": [round(seconds, 4) for seconds in spent],
        })  # fmt: skip
    return rows
