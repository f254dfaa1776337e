"""Named random generators: the same (seed, names) gives the same draws in any order of calls."""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """Hash a run seed and a path of names to a seed of 63 bits.

    Args:
        seed: The run's seed.
        *names: What the draws are for, such as a purpose, a round and a client.

    Returns:
        The seed.

    >>> derive(1, "train", 3, 7) == derive(1, "train", 3, 7)
    True
    >>> derive(1, "train", 3, 7) == derive(1, "train", 7, 3)
    False
    """
    text = "/".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a torch generator on the CPU, where all draws are made so that devices agree.

    Args:
        seed: The run's seed.
        *names: What the draws are for.

    Returns:
        The generator.
    """
    return torch.Generator().manual_seed(derive(seed, *names))


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a NumPy generator.

    Args:
        seed: The run's seed.
        *names: What the draws are for.

    Returns:
        The generator.
    """
    return np.random.default_rng(derive(seed, *names))
