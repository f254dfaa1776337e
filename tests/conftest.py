"""Fixtures for all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from focoop.clip import load_backbone
from focoop.clip.base import Backbone

# The GPU's kernels run on the CPU in tests; Triton reads this when it is first imported.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The developers' reference folder beside the checkout; tests that need it skip without it."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip("no folder `shared` beside the checkout: its features and images are needed")
    return path


@pytest.fixture(scope="session")
def mini() -> Backbone:
    """The packaged backbone, loaded once."""
    return load_backbone("mini")


@pytest.fixture
def three_threads() -> Iterator[None]:
    """Torch with three threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)
