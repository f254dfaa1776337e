"""Transport on the server: 25 warm-started rounds of 100 x 1000, and 1000 x 100,000 once.

`python benchmarks/transport.py --exact` compares Newton's gap of 1e-4 with the optimum itself, on
prompts that drift and on copies of words that hardly differ, which is the solver's worst case.

The usual way, written here, keeps the plan dense: Frank-Wolfe of the paper with a (C,J) gradient,
vertex and plan in every step, started anew each round. Prints times as ratios, the duality gap of
every answer and, for the large problem, the peak memory of a process of its own.

`python benchmarks/transport.py --device cuda` runs the large problem on a GPU.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from focoop.functional.transport.costs import rescale
from focoop.functional.transport.costs import squared_cost as distances
from focoop.functional.transport.dual import DualPlan, semi_unbalanced_dual
from focoop.functional.transport.frank_wolfe import (
    Plan,
    barycentre,
    select_by_mass,
    semi_unbalanced,
)
from focoop.seeds import torch_generator

TAU, GAP = 0.1, 5e-3
TOKENS, WIDTH = 16, 512


def dense(cost: Tensor) -> tuple[float, int]:
    """The paper's Frank-Wolfe as it is usually written: gap and steps."""
    classes, columns = cost.shape
    prior = cost.new_full((columns,), 1 / columns)
    plan = cost.new_full(cost.shape, 1 / (classes * columns))
    rows = torch.arange(classes)
    for step in range(3000):
        gradient = cost + TAU * (plan.sum(0) / prior).log()
        vertex = torch.zeros_like(plan)
        vertex[rows, gradient.argmin(1)] = 1 / classes
        gap = float(((plan - vertex) * gradient).sum())
        if gap <= GAP:
            return gap, step
        plan = plan + (vertex - plan) / (step + 2)
    return gap, step


def rounds(count: int = 25, classes: int = 100, columns: int = 1000) -> list[Tensor]:
    """Costs of contexts that drift: ten clients' copies of each word, moved a little each round."""
    generator = torch_generator(0, "benchmark")
    words = columns // 10
    left = 0.02 * torch.randn(classes, TOKENS * WIDTH, generator=generator)
    right = (0.02 * torch.randn(words, TOKENS * WIDTH, generator=generator)).repeat(10, 1)
    costs = []
    for _ in range(count):
        left += 2e-3 * torch.randn(left.shape, generator=generator)
        right += 2e-3 * torch.randn(right.shape, generator=generator)
        costs.append(rescale(distances(left, right), "range"))
    return costs


def frank_wolfe(costs: list[Tensor]) -> tuple[float, int]:
    """All rounds by Armijo steps from the last plan: worst gap, steps in all."""
    last: Plan | None = None
    worst, steps = 0.0, 0
    for cost in costs:
        last = semi_unbalanced(
            cost, tau=TAU, tolerance=GAP, step="armijo", max_steps=3000, start=last
        )
        worst, steps = max(worst, last.gap), steps + last.steps
    return worst, steps


def dual(costs: list[Tensor]) -> tuple[float, int]:
    """All rounds through the dual from the last potentials: worst gap, steps in all."""
    start: Tensor | None = None
    worst, steps = 0.0, 0
    for cost in costs:
        result = semi_unbalanced_dual(cost, tau=TAU, tolerance=GAP, start=start)
        start, worst, steps = result.potential, max(worst, result.gap), steps + result.steps
    return worst, steps


def optimum(rounds_of: dict[str, list[Tensor]]) -> None:
    """To a gap of 1e-4 of the gain and to the optimum, each round from the last one's potentials.

    Both in turn, so that a busy machine is the same for both.
    """
    for name, costs in rounds_of.items():
        starts: dict[bool, Tensor | None] = {False: None, True: None}
        spent: dict[bool, list[float]] = {False: [], True: []}
        worst, steps = dict.fromkeys(starts, 0.0), dict.fromkeys(starts, 0)
        for cost in costs:
            for exact in starts:
                began = time.process_time()
                result = semi_unbalanced_dual(
                    cost, tau=TAU, max_steps=300, tolerance=1e-9, relative=1e-4,
                    start=starts[exact], exact=exact,
                )  # fmt: skip
                spent[exact].append(time.process_time() - began)
                starts[exact] = result.potential
                worst[exact] = max(worst[exact], result.gap)
                steps[exact] += result.steps
        for exact, seconds in spent.items():
            middle = 1e3 * sorted(seconds)[len(seconds) // 2]
            print(
                f"100 x 1000, {len(costs)} rounds, {name}, {'optimum' if exact else 'gap 1e-4'}: "
                f"{middle:.1f} ms of one core a round (median; most {1e3 * max(seconds):.1f}), "
                f"{steps[exact] / len(costs):.1f} steps a round, largest gap {worst[exact]:.1e}"
            )


def copies(count: int = 25) -> list[Tensor]:
    """Costs of ten copies of each word that differ by their last bits, in float32 like prompts."""
    generator = torch_generator(0, "copies")
    left, right = (0.02 * torch.randn(100, TOKENS * WIDTH, generator=generator) for _ in range(2))
    costs = []
    for _ in range(count):
        left += 2e-3 * torch.randn(left.shape, generator=generator)
        right += 2e-3 * torch.randn(right.shape, generator=generator)
        moved = right.repeat(10, 1)
        moved += 1e-6 * torch.randn(moved.shape, generator=generator)
        costs.append(rescale(distances(left, moved), "quantile").double())
    return costs


def usual(costs: list[Tensor]) -> tuple[float, int]:
    answers = [dense(cost) for cost in costs]
    return max(gap for gap, _ in answers), sum(steps for _, steps in answers)


def small() -> None:
    costs = rounds()
    solvers: dict[str, Callable[[list[Tensor]], tuple[float, int]]] = {
        "dense Frank-Wolfe": usual, "Frank-Wolfe, armijo": frank_wolfe, "dual": dual,
    }  # fmt: skip
    base = 0.0
    for name, solve in solvers.items():
        solve(costs[:1])
        began = time.perf_counter()
        gap, steps = solve(costs)
        seconds = time.perf_counter() - began
        base = base or seconds
        print(
            f"100 x 1000, 25 rounds, {name}: {1e3 * seconds / 25:.2f} ms a round, {steps} steps, "
            f"largest gap {gap:.1e}: {base / seconds:.1f}x"
        )


def large(device: torch.device, classes: int, clients: int, words: int, near: float) -> None:
    """One server step; prompts arrive client by client and are not kept, as on a stream."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(count: int) -> Tensor:
        return torch.randn(count, TOKENS * WIDTH, generator=generator, device=device) * 0.02

    left = draw(classes)
    wide = left.double()
    cost = torch.empty(classes, clients * words, device=device)
    owners = torch.randperm(words, generator=generator, device=device)[: int(near * words)]
    spent, worked = 0.0, 0.0
    for first in range(0, clients * words, words):
        prompts = draw(words)
        prompts[owners] = left[owners % classes] + 0.25 * prompts[owners]
        wait(device)
        began, busy = time.perf_counter(), time.process_time()
        distances(wide, prompts, out=cost[:, first : first + words])
        wait(device)
        spent += time.perf_counter() - began
        worked += time.process_time() - busy
    began, busy = time.perf_counter(), time.process_time()
    result = semi_unbalanced_dual(rescale(cost, "range"), tau=TAU, tolerance=GAP)
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
    parser.add_argument("--exact", action="store_true", help="compare with the optimum, alone")
    args = parser.parse_args()
    if args.exact:
        torch.set_num_threads(1)
        drifting = rounds()
        costs = [rescale(cost, "quantile").double() for cost in drifting]
        optimum({"drifting prompts": costs, "copies that hardly differ": copies()})
        return
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
