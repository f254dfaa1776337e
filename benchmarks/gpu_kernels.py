"""Parts of benchmarks/gpu.py that look into kernels: each fused one alone, and profiles."""

import time
from collections.abc import Callable
from functools import partial

import torch
from gpu_tower import Bench, Row, tower_inputs, tower_step
from gpu_world import clock, wait
from torch import Tensor

from focoop.federation.cuda_graphs import Graphs
from focoop.federation.simulator import MemoryStore
from focoop.methods._bos import Ascent, Outer, Separation
from focoop.methods.base import Batch, Text


def kernels(bench: Bench) -> list[Row]:
    """Each fused kernel on the tokens of 2000 prompts: microseconds, and bytes it must move."""
    from focoop.clip.text import fused
    from focoop.clip.text import kernels as own
    from focoop.clip.text import kernels_attention as attention

    shape, names = bench.tower.shape, bench.task.id_names
    layout = fused.flat(bench.tower.pos, names, 16, unified=False)
    groups, d = 2000 // len(names) if bench.real else 1, shape.width
    t, s = groups * layout.tokens, groups * len(names)
    half = torch.bfloat16 if bench.device.type == "cuda" else torch.float32

    def draw(rows: int, times: int, dtype: torch.dtype = half) -> Tensor:
        return torch.randn(rows, times * d, device=bench.device).to(dtype)

    x, one, qkv, wide = draw(t, 1, torch.float32), draw(t, 1), draw(t, 3), draw(t, 4)
    kv, query, rstd = draw(t, 2), draw(s, 1), torch.ones(t, device=bench.device)
    hat, eps = draw(t, 1), shape.norm_eps
    heads, sot = shape.heads, draw(1, 2)[0]
    jobs: list[tuple[str, float, Callable[[], object]]] = [
        ("norm", 8, lambda: own.norm(x, one, None, eps, half)),
        ("norm of both", 14, lambda: own.norm(x, one, hat, eps, half)),
        ("norm back", 8, lambda: own.norm_back(one, hat, rstd, one)),
        ("act", 16, lambda: own.act(wide, shape.activation)),
        ("act back", 24, lambda: own.act_back(wide, wide, shape.activation)),
        ("read", 4, lambda: attention.read(query, kv, sot, layout, heads)),
        ("read back", 8, lambda: attention.read_back(query, kv, sot, query, layout, heads)),
    ]
    for warps in (1, 2, 4):
        jobs.append((f"attend, {warps}", 8, partial(attention.attend, qkv, sot, layout, heads)))
        back = partial(attention.attend_back, qkv, sot, one, layout, heads)
        jobs.append((f"attend back, {warps}", 14, back))
    rows = []
    before = attention.WARPS, attention.WARPS_BACK
    for label, per_cell, job in jobs:
        if "," in label:
            attention.WARPS = attention.WARPS_BACK = int(label.split(",")[1])
        seconds = clock(job, bench.device, 5, 3, 10)
        rate = 1e-12 * per_cell * t * d / seconds
        rows.append({"kernel": label, "us": 1e6 * seconds, "TB/s": rate})
    attention.WARPS, attention.WARPS_BACK = before
    return rows


def profile(bench: Bench) -> list[Row]:
    """Kernels of one step of 10 clients, and of one whole round."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    names = bench.task.id_names
    inputs = tower_inputs(bench, 2000 if bench.real else 20, names, unified=False)
    run = Graphs(tower_step(bench, names))
    for _ in range(5):
        run(inputs)
    federation = bench.federation(10)
    rounds = federation.simulated(federation.method(), MemoryStore(), 5)
    for _ in range(3):
        next(rounds)
    rows = []
    jobs: tuple[tuple[str, Callable[[], object]], ...] = (
        ("tower, 2000 prompts", lambda: run(inputs)),
        ("round", lambda: next(rounds)),
    )
    for label, job in jobs:
        wait(bench.device)
        with torch.profiler.profile(activities=activities) as profiler:
            began = time.perf_counter()
            job()
            wait(bench.device)
            wall = time.perf_counter() - began
        events = [e for e in profiler.key_averages() if "cuda" in str(e.device_type).lower()]
        events = events or list(profiler.key_averages())
        on_gpu = bench.device.type == "cuda"
        own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        total = sum(getattr(e, own) for e in events)
        rows.append({"of": label, "kernel": "wall, all", "ms": 1e3 * wall, "calls": 0, "%": 0.0})
        rows.append({"of": label, "kernel": "sum", "ms": total / 1e3, "calls": 0, "%": 100.0})
        for event in sorted(events, key=lambda e: -getattr(e, own))[:24]:
            spent = getattr(event, own)
            rows.append({
                "of": label, "kernel": event.key[:100], "ms": spent / 1e3, "calls": event.count,
                "%": 100.0 * spent / max(total, 1e-9),
            })  # fmt: skip
    return rows


def robust(bench: Bench) -> list[Row]:
    """The robust loss of 10 clients with its gradient: kernels and torch, against float64."""
    clients, classes, words, width = 10, bench.sizes.classes, bench.sizes.words, bench.tower.dim
    torch.manual_seed(0)

    def unit(rows: int) -> Tensor:
        found = torch.randn(clients, rows, width, device=bench.device, dtype=torch.float64)
        return torch.nn.functional.normalize(found, dim=-1)

    given = [unit(classes), unit(words), unit(32)]
    start = [1e-3 * torch.randn_like(rows) for rows in given[:2]]
    labels = torch.randint(classes, (clients, 32), device=bench.device)
    moves = [Ascent(radius, 1.0, 4, 0.1) for radius in (0.01, 1.0)]

    def one(
        kernels: bool | None, i: Tensor, o: Tensor, x: Tensor, y: Tensor, ni: Tensor, no: Tensor
    ) -> Tensor:
        separation = Separation(Batch(x, None, y), 100.0, 1.0, kernels=kernels)
        return separation.loss(Text(i, o), {"id": ni, "ood": no}, *moves, Outer())

    def step(dtype: torch.dtype, kernels: bool | None = None) -> list[Tensor]:
        ids, oods, images = (rows.to(dtype) for rows in given)
        leaves = [ids.clone().requires_grad_(), oods.clone().requires_grad_()]
        noise = [rows.to(dtype) for rows in start]
        losses: Tensor = torch.func.vmap(partial(one, kernels))(*leaves, images, labels, *noise)
        return [losses.detach(), *torch.autograd.grad(losses.sum(), leaves)]

    expected, rows = step(torch.float64, False), []
    for kind, kernels in (("torch", False), ("kernels", None)):  # None: where they can be used
        found = step(torch.float32, kernels)
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)]
        seconds = clock(partial(step, torch.float32, kernels), bench.device, 5, 3)
        names = ("loss", "slope of classes", "slope of OOD rows")
        rows.append(
            {"by": kind, **dict(zip(names, errors, strict=True)), "eager ms": 1e3 * seconds}
        )
    return rows
