"""The metric that discounts what varies within classes."""

import pytest
import torch

from focoop.methods._metric import whitening
from focoop.seeds import torch_generator

DIM = 6


@pytest.mark.parametrize("shrinkage", [1e-6, 0.4, 1.0])
def test_the_metric_makes_the_scatter_round(shrinkage: float) -> None:
    root = torch.randn(DIM, DIM, generator=torch_generator(3, "root"), dtype=torch.float64)
    spread = root @ root.T
    metric = whitening(spread, shrinkage)
    size = spread.trace() / DIM
    drawn = (1 - shrinkage) * spread + shrinkage * size * torch.eye(DIM, dtype=torch.float64)
    torch.testing.assert_close(
        metric @ drawn @ metric * DIM, torch.eye(DIM, dtype=torch.float64), atol=1e-9, rtol=0
    )
    torch.testing.assert_close(metric, metric.T)


def test_the_metric_of_nothing_is_plain_and_of_a_broken_scatter_finite() -> None:
    plain = torch.eye(4, dtype=torch.float64)
    for scatter in (torch.zeros(4, 4), torch.eye(4) / 4):
        torch.testing.assert_close(whitening(scatter, 0.3), plain)
    assert whitening(torch.diag(torch.tensor([1.0, -3.0, 4.0])), 0.5).isfinite().all()
    assert torch.equal(whitening(torch.diag(torch.tensor([1.0, -3.0, 2.0])), 0.5), plain[:3, :3])
