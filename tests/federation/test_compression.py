"""Coded updates: error bounds, no bias, exact bytes, and the same bits at both ends."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.config import loading
from focoop.errors import ConfigError, MethodError
from focoop.federation.traffic import num_bytes
from focoop.federation.updates.compression import (
    LEVELS,
    UP,
    Payload,
    narrow,
    quantised,
    rounded,
    widen,
)
from focoop.federation.updates.differential_privacy import Privacy
from focoop.methods.base import ClientUpdate
from focoop.seeds import torch_generator


def pair(seed: int, scale: float = 1e-2) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What a client received, and what it made of it."""
    generator = torch_generator(seed, "pair")
    received = {
        "context": torch.randn(5, 3, 16, generator=generator),
        "flat": torch.randn(7, generator=generator),
        "one": torch.randn((), generator=generator),
        "none": torch.zeros(0, 4),
        "words": torch.arange(6),
    }
    shared = {
        n: v + scale * torch.randn(v.shape, generator=generator) if v.is_floating_point() else v
        for n, v in received.items()
    }
    return received, shared


def error(kind: str, change: np.ndarray) -> np.ndarray:
    """Largest error of each number, by the number of bits of the code."""
    size = np.abs(change)
    if kind == "int8":
        top = size.max(axis=-1, keepdims=True) if size.size else size
        return np.broadcast_to(top / LEVELS * (1 + 1e-6), size.shape)
    digits, least = {"fp16": (11, 2.0**-25), "bf16": (8, 0.0)}[kind]
    return np.maximum(size * 2.0**-digits, least)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(UP[1:]), st.floats(1e-3, 10))
def test_the_error_is_a_share_of_the_change(seed: int, kind: str, scale: float) -> None:
    received, shared = pair(seed, scale)
    found = Payload(kind).through(shared, received, torch_generator(seed, "coins"))
    assert list(found) == list(received)
    for name, value in shared.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        if not value.is_floating_point():
            assert torch.equal(found[name], value)
            continue
        true, old = value.double().numpy(), received[name].double().numpy()
        back = found[name].double().numpy()
        # The sum is rounded to float32 once more.
        allowed = error(kind, np.atleast_1d(true - old)) + 2.0**-23 * np.atleast_1d(np.abs(back))
        assert (np.abs(np.atleast_1d(back - true)) <= allowed).all()


def test_rounding_at_random_has_no_bias() -> None:
    change = torch.randn(40, 8, generator=torch_generator(0, "x"), dtype=torch.float64)
    total, draws = torch.zeros_like(change), 4000
    generator = torch_generator(0, "coins")
    for _ in range(draws):
        codes, scale = quantised(change, generator)
        total += codes.double() * scale.double()[:, None]
    step = change.abs().amax(1, keepdim=True) / LEVELS
    # A number between two steps has deviation at most half a step; 320 means, five deviations.
    assert ((total / draws - change).abs() < 5 * 0.5 * step / math.sqrt(draws)).all()
    # Rounding to the nearest would be off by far more somewhere.
    nearest = (change / step).round() * step
    assert ((nearest - change).abs() > 5 * 0.5 * step / math.sqrt(draws)).any()


def test_the_largest_number_and_still_rows_are_exact() -> None:
    change = torch.tensor([[0.3, -1.7, 0.0], [0.0, 0.0, 0.0], [1e-40, 0.0, -1e-40]])
    for seed in range(20):
        codes, scale = quantised(change, torch_generator(seed, "c"))
        assert codes[0, 1] == -LEVELS and codes[0, 2] == 0
        assert not codes[1].any() and scale[1] == 0
        assert codes.abs().max() <= LEVELS


@pytest.mark.parametrize("kind", UP)
def test_a_client_that_changed_nothing_sends_exactly_that(kind: str) -> None:
    received, _ = pair(3)
    found = Payload(kind).through(dict(received), received, torch_generator(0, "c"))
    assert all(torch.equal(found[n], v) for n, v in received.items())


@pytest.mark.parametrize(("kind", "bytes_"), [("fp32", 4), ("fp16", 2), ("bf16", 2), ("int8", 1)])
def test_bytes_are_those_of_the_codes(kind: str, bytes_: int) -> None:
    received, shared = pair(1)
    payload = Payload(kind)
    coded = payload.encode(shared, received, torch_generator(0, "c"))
    form = payload.form(received)
    assert {n: (v.shape, v.dtype) for n, v in coded.items()} == {
        n: (v.shape, v.dtype) for n, v in form.items()
    }
    rows = 15 + 1 + 1 if kind == "int8" else 0
    assert num_bytes(form) == num_bytes(coded) == (240 + 7 + 1) * bytes_ + 4 * rows + 6 * 8
    if kind != "fp32":
        assert all(not v.is_floating_point() or n.endswith("/scale") for n, v in coded.items())


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_what_goes_down_is_what_the_server_keeps(kind: str) -> None:
    received, _ = pair(2)
    kept = rounded(received, kind)
    sent = narrow(kept, kind)
    back = widen(sent, kind, received)
    for name, value in kept.items():
        assert torch.equal(back[name], value) and back[name].dtype == received[name].dtype
        assert torch.equal(rounded(kept, kind)[name], value)  # again changes nothing
    half = torch.float16 if kind == "fp16" else torch.bfloat16
    assert torch.equal(kept["context"], received["context"].to(half).float())
    assert num_bytes(sent) == num_bytes(Payload(kind).form(received))


def test_what_is_no_number_stays_none_and_what_is_too_large_is_named() -> None:
    received, shared = pair(4)
    for bad in (math.nan, math.inf):
        spoiled = {**shared, "flat": shared["flat"] * bad}
        for kind in UP:
            found = Payload(kind).through(spoiled, received, torch_generator(0, "c"))
            assert not found["flat"].isfinite().all()
            assert found["context"].isfinite().all()
    far = {**shared, "flat": shared["flat"] * 1e6}
    with pytest.raises(MethodError, match="flat is too large for fp16: use bf16"):
        Payload("fp16").through(far, received, torch_generator(0, "c"))
    Payload("bf16").through(far, received, torch_generator(0, "c"))


def test_noise_comes_before_the_code() -> None:
    """What is coded is the noised change: coding adds its error to it and takes nothing off."""
    received, shared = pair(5, 1.0)
    update = ClientUpdate(0, shared, 4, torch.tensor([4]), 0.5)
    noised = Privacy(clip=0.1, noise=2.0).release(
        update, received, torch_generator(0, "n"), torch_generator(0, "c")
    )
    found = Payload("int8").through(noised.shared, received, torch_generator(0, "coins"))
    moved = (found["context"] - noised.shared["context"]).abs()
    top = (noised.shared["context"] - received["context"]).abs().amax(-1, keepdim=True)
    assert (moved <= top / LEVELS + 1e-6).all() and moved.max() > 0


def test_secure_sums_and_codes_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="set it to fp32"):
        loading.load(
            None,
            ["privacy.secure_sum=true", "federation.payload=int8", "method.name=promptfl"],
        )
    with pytest.raises(ConfigError, match=r"federation\.payload_down"):
        loading.load(None, ["federation.payload_down=int8"])
