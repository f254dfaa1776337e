"""A smooth float64 task with prompts small enough to write every sum out."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.text.tower import Names
from focoop.federation.client import trains
from focoop.methods.base import Batch, Method, Task
from focoop.seeds import torch_generator

C, U, N_TOKENS, WIDTH, DIM = 4, 5, 2, 3, 6


def make_names(count: int, prefix: str) -> Names:
    """Names whose single embedding differs, so that a tower can tell them apart."""
    rows = torch.arange(count, dtype=torch.float64)[:, None, None]
    return Names(
        tuple(f"{prefix}{i}" for i in range(count)),
        torch.cat([torch.sin(rows + i) for i in range(WIDTH)], dim=2),
        torch.ones(count, dtype=torch.int64),
    )


def make_task(*, linear: bool = False, width: int = WIDTH, dim: int = DIM) -> Task:
    """A smooth float64 tower; `linear` returns the context itself, brought to unit length."""
    generator = torch_generator(0, "tower")
    mix = torch.randn(N_TOKENS * width, dim, generator=generator, dtype=torch.float64)
    word = torch.randn(width, dim, generator=generator, dtype=torch.float64)

    def encode(contexts: Tensor, names: Names) -> Tensor:
        if linear:
            return F.normalize(contexts.flatten(1), dim=-1)
        hidden = torch.tanh(contexts.flatten(1) @ mix + names.embeddings[:, 0] @ word)
        return F.normalize(hidden, dim=-1)

    ramp = torch.arange(1, dim + 1, dtype=torch.float64)
    anchors = F.normalize(torch.randn(C, dim, generator=generator, dtype=torch.float64), dim=-1)
    return Task(
        classes=tuple(f"c{i}" for i in range(C)),
        encode=encode,
        id_names=make_names(C, "c"),
        ood_names=make_names(U, "w"),
        anchors=anchors,
        logit_scale=7.0,
        width=width,
        bare_names=make_names(C, "c"),
        texts=lambda texts: F.normalize(
            torch.stack([torch.sin(float(zlib.crc32(t.encode()) % 997) * ramp) for t in texts]),
            dim=-1,
        ),
        embed=lambda text: torch.cos(
            torch.arange(len(text.split()) * width, dtype=torch.float64)
        ).view(-1, width),
    )


def make_params(seed: int = 0, width: int = WIDTH, tokens: int = N_TOKENS) -> dict[str, Tensor]:
    generator = torch_generator(seed, "params")

    def draw(count: int) -> Tensor:
        return torch.randn(count, tokens, width, generator=generator, dtype=torch.float64)

    return {
        "global": draw(C),
        "local": draw(C),
        "ood": draw(U),
        "ood_words": torch.arange(U),
    }


def make_batch(size: int = 8, seed: int = 0, dim: int = DIM) -> Batch:
    generator = torch_generator(seed, "batch")
    pooled = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(C, (size,), generator=generator)
    return Batch(F.normalize(pooled, dim=-1), None, labels)


def step_loss(
    method: Method, params: dict[str, Tensor], batch: Batch, task: Task, seed: int = 0
) -> Tensor:
    """One step's loss, the way the local loop computes it."""
    noise = method.noise(len(batch.labels), task, torch_generator(seed))
    return method.loss(params, method.encode(params, task), batch, task, noise)


def unified_task(method: Method | None = None) -> Task:
    """The toy task, its tower open to one context for all names and to many clients at once."""
    task = make_task()
    mix = torch.randn(N_TOKENS * WIDTH, DIM, generator=torch_generator(1), dtype=torch.float64)
    word = torch.randn(WIDTH, DIM, generator=torch_generator(2), dtype=torch.float64)

    def encode(contexts: Tensor, names: Names) -> Tensor:
        flat = contexts.flatten(-2)  # (n d_t) or (..., N, n d_t)
        return F.normalize(torch.tanh(flat @ mix + names.embeddings[:, 0] @ word), dim=-1)

    return replace(task, encode=encode, frozen={} if method is None else method.prepare(task))


def trained(method: Method, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters, ready for gradients where SGD moves them."""
    return {
        name: value.clone().requires_grad_(trains(method, name, value))
        for name, value in params.items()
    }


def check_gradients(
    method: Method,
    params: dict[str, Tensor],
    batch: Batch,
    task: Task,
    seed: int = 0,
    *,
    places: Sequence[int] = (),
    times: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Gradients of a step against finite differences: at the first, a middle and the last entry.

    `places` are other entries, of the flat tensor; `times` what a gradient is of the difference.
    """
    leaves = trained(method, params)
    step_loss(method, leaves, batch, task, seed).backward()
    for name, leaf in leaves.items():
        if not leaf.requires_grad:
            continue
        assert leaf.grad is not None, name
        for place in places or (0, leaf.numel() // 2, leaf.numel() - 1):
            value = []
            for sign in (1, -1):
                moved = {k: v.clone() for k, v in params.items()}
                moved[name].view(-1)[place] += sign * 1e-6
                value.append(float(step_loss(method, moved, batch, task, seed)))
            slope = times.get(name, 1.0) * (value[0] - value[1]) / 2e-6
            assert float(leaf.grad.view(-1)[place]) == pytest.approx(slope, rel=1e-5, abs=1e-9)
