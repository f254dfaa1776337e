"""Parts of benchmarks/gpu.py below a round: matrix products, the text tower, kernels, transport."""

import gc
import json
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any

import torch
import transport as transport_benchmark
from gpu_world import REAL, Federation, Sizes, clock, make_clients, make_task, make_tower
from text_engine import naive as slow
from torch import Tensor

from focoop.clip.text.tower import Names, TextTower
from focoop.federation.cuda_graphs import Graphs
from focoop.methods.base import Params

Row = dict[str, Any]


@dataclass
class Bench:
    """The machine, the sizes and what was found so far."""

    device: torch.device
    sizes: Sizes
    seconds: float
    quick: bool = False
    began: float = field(default_factory=time.perf_counter)
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tower = make_tower(self.sizes, self.device)
        self.task = make_task(self.tower, self.sizes.classes, self.sizes.words)
        self.real = self.sizes is REAL

    @property
    def time_left(self) -> float:
        """Seconds before sweeps stop."""
        return self.seconds - (time.perf_counter() - self.began)

    def federation(self, clients: int, name: str = "focoop", **settings: Any) -> Federation:
        """K clients on the task."""
        data = make_clients(clients, self.sizes.classes, self.tower.dim)
        return Federation(self.task, data, name, settings)

    def fresh(self) -> None:
        """Nothing of earlier parts is left on the device."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_memory(self) -> float:
        """GiB at most since `fresh`."""
        on_gpu = self.device.type == "cuda"
        return torch.cuda.max_memory_allocated() / 2**30 if on_gpu else float("nan")


def peak(bench: Bench) -> list[Row]:
    """Matrix products: the machine's peak, and the tower's own shapes at 40,000 tokens."""
    rows = []
    width = bench.tower.width
    square, tokens = (8192, 40_000) if bench.real else (256, 400)
    shapes = [("square", square, square, square)]
    for label, n, k in (("qkv", 3, 1), ("out", 1, 1), ("f1", 4, 1), ("f2", 1, 4)):
        shapes.append((label, tokens, n * width, k * width))
        if label == "qkv":
            shapes.append((f"{label} back", tokens, k * width, n * width))
    for label, m, n, k in shapes:
        kinds: list[tuple[str, torch.dtype]] = [("bf16", torch.bfloat16)]
        if label == "square":
            kinds += [("tf32", torch.float32), ("fp32", torch.float32)]
        for kind, dtype in kinds:
            torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
            a = torch.randn(m, k, device=bench.device).to(dtype)
            b = torch.randn(n, k, device=bench.device).to(dtype)
            seconds = clock(lambda a=a, b=b: a @ b.T, bench.device, 5, 3, 10)  # type: ignore[misc]
            rate = 2e-12 * m * n * k / seconds
            rows.append({"product": label, "kind": kind, "m": m, "n": n, "k": k, "TFLOP/s": rate})
    torch.backends.cuda.matmul.allow_tf32 = False
    source = torch.empty(2**30 if bench.real else 2**20, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = clock(lambda: target.copy_(source), bench.device, 10)
    rows.append({"product": "copy", "kind": "TB/s", "TFLOP/s": 2e-12 * len(source) / seconds})
    return rows


def products(tower: TextTower, contexts: Tensor, names: Names) -> tuple[float, float]:
    """FLOP of products with weights, forward and backward: those the engine does, the naive ones.

    Attention's own products, about 1%, are not counted.
    """
    shape = tower.shape
    groups, rows, tokens, _ = contexts.shape
    square, sequences = shape.width**2, groups * len(names)
    if contexts.device.type == "cuda":  # the fused step: no padding, no SOT
        assert names.known is not None
        shared = tokens if rows == 1 else 0
        count = groups * (shared + sum(tokens - shared + length for length in names.known))
    else:
        with torch.no_grad():
            x, _ = (tower.unified if rows == 1 else tower.specific)(contexts, names)
        count = len(x)
    ours = (12 * (shape.layers - 1) + 2) * square * count + 10 * square * sequences
    naive = 12 * shape.layers * square * shape.context_length * sequences
    return 4.0 * ours, 4.0 * naive


def exact(bench: Bench) -> list[Row]:
    """Features and gradients against the naive path of all positions in float64.

    Errors are |ours - exact| / |exact|; `replay` compares a recorded step with the same step eager.
    """
    wide = deepcopy(bench.tower).train_in(None).double()
    rows = []
    sets = [("id", bench.task.id_names), ("ood", bench.task.ood_names)]
    for label, names in sets[: 1 if bench.quick else None]:
        assert names is not None
        for unified in (False, True):
            inputs = tower_inputs(bench, 2 * len(names), names, unified)
            leaf = inputs["contexts"].double().requires_grad_()
            there = replace(names, embeddings=names.embeddings.double())
            expected = torch.stack([slow(wide, c[0] if unified else c, there) for c in leaf])
            slope = torch.autograd.grad((expected * inputs["slope"]).sum(), leaf)[0]
            kinds = [None, torch.bfloat16] if bench.device.type == "cuda" else [None]
            for kind in kinds[-1:] if bench.quick else kinds:
                bench.tower.train_in(kind)
                step = tower_step(bench, names)
                replayed = Graphs(step)
                for _ in range(4):
                    again = replayed(inputs)["gradient"]
                eager = step(inputs)
                rows.append({
                    "names": label, "contexts": "unified" if unified else "class-specific",
                    "kind": str(kind or torch.float32).removeprefix("torch."),
                    "features": apart(eager["features"], expected),
                    "gradient": apart(eager["gradient"], slope),
                    "replay": apart(again, eager["gradient"]),
                })  # fmt: skip
    bench.tower.train_in(torch.bfloat16 if bench.device.type == "cuda" else None)
    return rows


def apart(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).norm() / expected.norm())


def tower_step(bench: Bench, names: Names) -> Callable[[Params], Params]:
    """Features of the contexts and their gradient under a fixed slope."""

    def step(inputs: Params) -> Params:
        leaf = inputs["contexts"].detach().requires_grad_()
        out = bench.tower(leaf, names)
        gradient = torch.autograd.grad((out * inputs["slope"]).sum(), leaf)[0]
        return {"features": out.detach(), "gradient": gradient}

    return step


def tower_inputs(bench: Bench, prompts: int, names: Names, unified: bool) -> Params:
    groups = max(1, prompts // len(names))
    rows = 1 if unified else len(names)
    shape = (groups, rows, 16, bench.tower.width)
    return {
        "contexts": 0.02 * torch.randn(shape, device=bench.device),
        "slope": torch.randn(groups, len(names), bench.tower.dim, device=bench.device),
    }


def tower(bench: Bench) -> list[Row]:
    """Forward and backward of the text tower, as a graph on a GPU."""
    rows = []
    reference = bench.found.get("peak") or peak(bench)
    best = next(r["TFLOP/s"] for r in reference if r["product"] == "square" and r["kind"] == "bf16")
    names = bench.task.id_names
    counts = (200, 500, 1000, 2000, 4000) if bench.real else (20, 40)
    for unified in (False, True):
        for count in counts[-2:] if unified or bench.quick else counts:
            bench.fresh()
            inputs = tower_inputs(bench, count, names, unified)
            step = tower_step(bench, names)
            run = Graphs(step)
            seconds = clock(lambda r=run, i=inputs: r(i), bench.device, 10, 5)  # type: ignore[misc]
            few = (1, 0) if bench.quick else (3, 1)
            eager = clock(lambda s=step, i=inputs: s(i), bench.device, *few)  # type: ignore[misc]
            ours, naive = products(bench.tower, inputs["contexts"], names)
            rate = 1e-12 * ours / seconds
            rows.append({
                "contexts": "unified" if unified else "class-specific", "prompts": count,
                "ms": 1e3 * seconds, "eager ms": 1e3 * eager, "TFLOP/s": rate,
                "share of peak": rate / best, "naive TFLOP/s": 1e-12 * naive / seconds,
                "GiB": bench.peak_memory(),
            })  # fmt: skip
            del run, step
    return rows


def transport(bench: Bench) -> list[Row]:
    """SemiUOT of 1000 classes and 100,000 OOD prompts."""
    rows = []
    sizes = (1000, 100, 1000) if bench.real else (10, 3, 20)
    for near in (0.0, 0.15):
        said = StringIO()
        with redirect_stdout(said):
            for size in ((10, 3, 20), sizes):  # the small one first: libraries are loaded then
                bench.fresh()
                transport_benchmark.large(bench.device, *size, near)
        row = json.loads(said.getvalue().splitlines()[-1])
        rows.append({"total s": row["cost_s"] + row["solve_s"] + row["select_s"], **row})
    return rows
