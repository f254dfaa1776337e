"""Transport on the server: rounds of 100 x 1000, and 1000 x 100,000 once.

Small: 25 rounds whose prompts drift, and 25 whose ten copies of a word hardly differ, solved to the
default gap and to 1e-9 of the gain, beside the paper's 300 steps of Frank-Wolfe and the same steps
as they are usually written: dense, with a (C,J) gradient, vertex and plan in each. Times are those
of one core; all solvers take turns on each cost, so that a busy machine is the same for all.

Large: time, gap and, in a process of its own, peak memory. `--device cuda` runs it on a GPU.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from focoop.functional.transport import (
    DualPlan,
    barycentre,
    rescale,
    select_by_mass,
    semi_unbalanced_dual,
    semi_unbalanced_open_loop,
    squared_cost,
)
from focoop.methods._goc import GAP
from focoop.seeds import torch_generator

TAU, TOKENS, WIDTH = 0.1, 16, 512


def dense(cost: Tensor, tolerance: float = 5e-3, steps: int = 3000) -> tuple[float, int]:
    """The paper's Frank-Wolfe as it is usually written: gap and steps."""
    classes, columns = cost.shape
    prior = cost.new_full((columns,), 1 / columns)
    plan = cost.new_full(cost.shape, 1 / (classes * columns))
    rows = torch.arange(classes)
    for step in range(steps + 1):
        gradient = cost + TAU * (plan.sum(0) / prior).log()
        vertex = torch.zeros_like(plan)
        vertex[rows, gradient.argmin(1)] = 1 / classes
        gap = float(((plan - vertex) * gradient).sum())
        if gap <= tolerance or step == steps:
            return gap, step
        plan = plan + (vertex - plan) / (step + 2)
    raise AssertionError


def newton(cost: Tensor, relative: float) -> tuple[float, int]:
    """The dual solver to a share of the gain: gap and steps."""
    found = semi_unbalanced_dual(cost, tau=TAU, max_steps=300, tolerance=1e-13, relative=relative)
    return found.gap, found.steps


def open_loop(cost: Tensor) -> tuple[float, int]:
    """The paper's 300 steps: gap and steps."""
    found = semi_unbalanced_open_loop(cost, tau=TAU)
    return found.gap, found.steps


def drifting(noise: float, count: int = 25) -> list[Tensor]:
    """Costs of contexts that drift over rounds, ten copies of each word that differ by `noise`."""
    generator = torch_generator(0, "benchmark")
    left, right = (0.02 * torch.randn(100, TOKENS * WIDTH, generator=generator) for _ in range(2))
    copies, costs = torch.zeros(1000, TOKENS * WIDTH), []
    for _ in range(count):
        left += 2e-3 * torch.randn(left.shape, generator=generator)
        right += 2e-3 * torch.randn(right.shape, generator=generator)
        copies += noise * torch.randn(copies.shape, generator=generator)
        cost = squared_cost(left, right.repeat(10, 1) + copies)
        costs.append(rescale(cost, "quantile").double())
    return costs


def small() -> None:
    torch.set_num_threads(1)
    solvers: dict[str, Callable[[Tensor], tuple[float, int]]] = {
        "dense Frank-Wolfe, 300 steps": lambda cost: dense(cost, 0.0, 300),
        "open_loop, 300 steps": open_loop,
        f"dual to {GAP:.0e}": lambda cost: newton(cost, GAP),
        "dual to 1e-9": lambda cost: newton(cost, 1e-9),
    }
    for kind, noise in (("copies that drift", 2e-3), ("copies that hardly differ", 1e-6)):
        rows: dict[str, list[tuple[float, float, int]]] = {name: [] for name in solvers}
        for cost in drifting(noise):
            for name, solve in solvers.items():
                began = time.process_time()
                gap, steps = solve(cost)
                rows[name].append((1e3 * (time.process_time() - began), gap, steps))
        base = np.median([took for took, _, _ in rows["dense Frank-Wolfe, 300 steps"]])
        for name, measured in rows.items():
            took, gaps, steps = (np.array(column) for column in zip(*measured, strict=True))
            print(
                f"100 x 1000, {kind}, {name}: {np.median(took):.1f} ms of one core (most "
                f"{took.max():.1f}), {steps.mean():.1f} steps, largest gap {gaps.max():.1e}: "
                f"{base / np.median(took):.1f}x"
            )


def large(device: torch.device, classes: int, clients: int, words: int, near: float) -> None:
    """One server step; prompts arrive client by client and are not kept, as on a stream."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(count: int) -> Tensor:
        return torch.randn(count, TOKENS * WIDTH, generator=generator, device=device) * 0.02

    left = draw(classes)
    cost = torch.empty(classes, clients * words, device=device)
    owners = torch.randperm(words, generator=generator, device=device)[: int(near * words)]
    spent, worked = 0.0, 0.0
    for first in range(0, clients * words, words):
        prompts = draw(words)
        prompts[owners] = left[owners % classes] + 0.25 * prompts[owners]
        wait(device)
        began, busy = time.perf_counter(), time.process_time()
        cost[:, first : first + words] = squared_cost(left, prompts)
        wait(device)
        spent += time.perf_counter() - began
        worked += time.process_time() - busy
    began, busy = time.perf_counter(), time.process_time()
    result = semi_unbalanced_dual(rescale(cost, "max"), tau=TAU, tolerance=5e-3)
    wait(device)
    solved = time.perf_counter() - began
    began = time.perf_counter()
    target(result, words)
    wait(device)
    finished = time.perf_counter() - began
    worked += time.process_time() - busy
    report = {
        "near": near, "cost_s": spent, "solve_s": solved, "select_s": finished, "cpu_s": worked,
        "steps": result.steps, "gap": result.gap, "converged": result.converged,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_peak": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
    }  # fmt: skip
    print(json.dumps(report))


def target(result: DualPlan, words: int) -> Tensor:
    """What calibration needs of the plan: columns of the prompts with most mass, as shares."""
    chosen = select_by_mass(result.mass, words)
    points = torch.eye(words, device=result.mass.device, dtype=result.mass.dtype)
    fallback = points.new_zeros(len(result.cost), words)
    return barycentre(result.columns(chosen), points, fallback)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--near", type=float, help="run the large problem here, print its numbers")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--words", type=int, default=1000)
    args = parser.parse_args()
    if args.near is not None:
        large(torch.device(args.device), args.classes, args.clients, args.words, args.near)
        return
    if args.device == "cpu":
        small()
    for near in (0.0, 0.15):
        command = [sys.executable, __file__, "--device", args.device, "--near", str(near)]
        command += [f"--{n}={getattr(args, n)}" for n in ("classes", "clients", "words")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        memory = found["device_peak"] or found["peak"]
        print(
            f"{args.classes} x {args.clients * args.words}, {near:.0%} near a class: "
            f"cost {found['cost_s']:.2f} s, solve {found['solve_s']:.2f} s, "
            f"select {found['select_s']:.2f} s ({found['cpu_s']:.0f} s of one core in all), "
            f"{found['steps']} steps, gap {found['gap']:.1e}, "
            f"converged {found['converged']}, peak {memory / 1e9:.2f} GB, "
            f"{memory / (4 * args.classes * args.clients * args.words):.1f}x the cost itself"
        )


if __name__ == "__main__":
    main()
