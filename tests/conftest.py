"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest

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
