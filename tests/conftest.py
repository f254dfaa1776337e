"""Fixtures for all tests."""

import atexit
import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest

from focoop import caching, processor
from focoop.processor import apply_remembered_limit, bfloat16_on_cpu

# Where bfloat16 products need a smaller instruction set, it must be chosen before torch loads; the
# worker processes of a parallel test run inherit it.
PRODUCTS = bfloat16_on_cpu()
apply_remembered_limit()

import torch  # noqa: E402

from focoop.clip import load_backbone  # noqa: E402
from focoop.clip import mini as packaged_backbone  # noqa: E402
from focoop.clip.base import Backbone  # noqa: E402

# A test that takes longer hangs. The slow ones start processes and wait for them.
SECONDS, SLOW_SECONDS = 120, 900
# How long one example takes says more about the machine's other work than about the code.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
# Tests read what commands print into a pipe, whatever terminal they are started from.
for _name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)


def pytest_configure(config: pytest.Config) -> None:
    """Let Triton interpret the GPU's kernels on the CPU, unless GPU tests alone are asked for.

    Triton reads the variable when it is first imported; a process can do one of the two.
    """
    if config.getoption("markexpr") != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while modules are imported, and none of them afterwards.

    They are most of a million objects, which every full collection would look through.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # or extension modules complain that objects were left


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of Flower, skip those of absent devices, give every test a time limit."""
    for item in items:
        # Tests in tests/flower and examples in focoop/flower.
        if "flower" in item.nodeid.partition("::")[0].split("/")[:2]:
            item.add_marker(pytest.mark.flower)
        if item.get_closest_marker("gpu") is not None and (reason := why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("timeout") is None:
            slow = item.get_closest_marker("slow") is not None
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS if slow else SECONDS))


def why_no_gpu() -> str:
    """Say why tests of a GPU cannot run in this process; empty where they can."""
    if not torch.cuda.is_available():
        return "needs a CUDA device"
    return "run by `make test-gpu`, apart from others" if "TRITON_INTERPRET" in os.environ else ""


@pytest.fixture(scope="session", autouse=True)
def no_waiting() -> Iterator[None]:
    """Tests end processes, not machines, and change no packaged weights.

    So what was written is there without syncing, `mini` is loaded once for all runs, and features
    stay in memory, as in a process that makes many runs (`focoop compare`).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(packaged_backbone, "load_mini", cache(packaged_backbone.load_mini))
        patch.setattr(caching.FEATURES, "limit", 2**26)
        yield


@pytest.fixture
def tried_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a test with a cache folder of its own the child processes that try bfloat16."""
    monkeypatch.setattr(processor, "try_products", lambda: PRODUCTS)


@pytest.fixture(scope="session")
def bfloat16_products() -> None:
    """Skips tests that multiply in bfloat16 where this machine's processor cannot."""
    answer = bfloat16_on_cpu()
    if not answer.usable_now:
        pytest.skip(str(answer))


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
