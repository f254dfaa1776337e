"""Gaussian-process regression from what a word means to a direction in the joint space."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from wordnet import WordNet


def rbf(a: Tensor, b: Tensor, length: float) -> Tensor:
    """(N, d), (M, d) -> (N, M) squared-exponential kernel."""
    squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return torch.exp(squares.clamp_min(0) / (-2 * length**2))


@dataclass(frozen=True)
class Process:
    """A fitted process: `weights` (M, D), the inverse (M, M) of the noisy kernel of its data."""

    weights: Tensor
    inverse: Tensor

    def predict(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        """Kernel (N, M) to the data -> mean (N, D), confidence (N,) = 1 - posterior variance.

        The prior variance is 1, so the confidence is 0 far from all data.
        """
        explained = ((cross @ self.inverse) * cross).sum(1)
        return cross @ self.weights, explained.clamp(0, 1)


def fit(kernel: Tensor, values: Tensor, noise: float) -> Process:
    """Fit (M, M) kernel, (M, D) values, with `noise` the variance of the observations."""
    noisy = kernel.double() + noise * torch.eye(len(kernel), dtype=torch.double).to(kernel.device)
    inverse = torch.linalg.inv(noisy)
    return Process((inverse @ values.double()).to(kernel.dtype), inverse.to(kernel.dtype))


def ancestry(net: WordNet, keys: Sequence[str], basis: Sequence[str]) -> Tensor:
    """(N, B) rows with inner product: common ancestors / sqrt(ancestors of one x of the other).

    Exact where one of the two lies in `basis` and `basis` holds all ancestors of its members.
    """
    column = {key: i for i, key in enumerate(basis)}
    rows, columns, values = [], [], []
    for row, key in enumerate(keys):
        above = net.ancestors[key]
        for ancestor in above:
            if ancestor in column:
                rows.append(row)
                columns.append(column[ancestor])
                values.append(len(above) ** -0.5)
    out = torch.zeros(len(keys), len(basis))
    out[torch.tensor(rows), torch.tensor(columns)] = torch.tensor(values)
    return out


def hierarchy(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Kernel of two ancestries, 1 for the same synset and 0 where nothing is shared."""
    common = a @ b.T
    return torch.exp((common - 1) / scale) * (common > 0)
