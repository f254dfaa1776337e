"""Our step of SGD against torch's."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from focoop.federation.sgd import SGD
from focoop.seeds import torch_generator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_torchs_to_the_bit(
    momentum: float, weight_decay: float, dtype: torch.dtype
) -> None:
    generator = torch_generator(0, "sgd")
    start = [torch.randn(s, generator=generator, dtype=dtype) for s in ((3, 4), (5,), (2, 2))]
    ours, theirs = ([v.clone().requires_grad_() for v in start] for _ in range(2))
    settings = {"lr": 0.3, "momentum": momentum, "weight_decay": weight_decay}
    optimisers = SGD(ours, **settings), torch.optim.SGD(theirs, **settings)
    for step in range(4):
        for params, optimiser in zip((ours, theirs), optimisers, strict=True):
            optimiser.zero_grad()
            # The second has no gradient in one step, the third never.
            loss = params[0].pow(3).sum() + (params[1].sin().sum() if step != 1 else 0.0)
            loss.backward()
            optimiser.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(ours[2], start[2]) and not torch.equal(ours[0], start[0])


@pytest.mark.slow
def test_training_does_not_import_torchs_compiler() -> None:
    code = """
import sys, torch
from focoop.federation.client import train
from focoop.federation.sgd import SGD
one = torch.ones(2, requires_grad=True)
optimiser = SGD([one], 0.1, 0.9, 0.1)
one.sum().backward()
optimiser.step()
assert "torch._dynamo" not in sys.modules
"""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
