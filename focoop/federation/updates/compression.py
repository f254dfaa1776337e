"""Fewer bytes on the way: how a client's change of the shared tensors is written down and read.

What is coded is the change from the tensors the client received, which both ends hold to the bit,
so that the error is a share of the change and not of the prompt. `fp16` and `bf16` round to the
nearest; `int8` has one float32 scale a row (all of the last axis), s = max |x| / 127, and rounds at
random: q = floor(x / s + u), u uniform in [0, 1), so that E[s q] = x and |s q - x| < s. The draws
are named by (seed, round, client) and known to all: they protect nothing, and whatever privacy asks
for has happened before. Whole-number tensors travel as they are.

Downward the server keeps what it sends: its tensors are rounded once, after its step (`rounded`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from focoop.errors import MethodError
from focoop.methods import Params

UP = ("fp32", "fp16", "bf16", "int8")
DOWN = ("fp32", "fp16", "bf16")
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
LEVELS = 127
SCALE = "/scale"


@dataclass(frozen=True)
class Payload:
    """How updates travel: `fp32` leaves them as they are, others code the change."""

    kind: str = "fp32"

    def encode(self, shared: Params, received: Params, generator: torch.Generator) -> Params:
        """What is sent for `shared` by a client that received `received`."""
        coded: Params = {}
        for name in sorted(shared):
            value = shared[name]
            if self.kind == "fp32" or not value.is_floating_point():
                coded[name] = value
                continue
            change = value.double() - received[name].double()
            if self.kind == "int8":
                coded[name], coded[name + SCALE] = quantised(change, generator)
            else:
                coded[name] = _bits(_half(change, self.kind, name))
        return coded

    def decode(self, coded: Params, received: Params) -> Params:
        """The shared tensors that `coded` stands for, in the order and types of `received`."""
        if self.kind == "fp32":
            return coded
        shared: Params = {}
        for name, value in received.items():
            code = coded[name]
            if not value.is_floating_point():
                shared[name] = code
                continue
            if self.kind == "int8":
                rows = _rows(code).double() * coded[name + SCALE].double()[:, None]
                change = rows.view(code.shape)
            else:
                change = code.view(HALVES[self.kind]).double()
            shared[name] = (value.double() + change.to(value.device)).to(value.dtype)
        return shared

    def through(self, shared: Params, received: Params, generator: torch.Generator) -> Params:
        """`shared` as the server reads it at the other end."""
        if self.kind == "fp32":
            return shared
        return self.decode(self.encode(shared, received, generator), received)

    def form(self, received: Params) -> Params:
        """Names, shapes and types of a coded update, without data (on the meta device)."""
        found: Params = {}
        for name, value in received.items():
            found[name] = torch.empty(value.shape, dtype=value.dtype, device="meta")
            if self.kind == "fp32" or not value.is_floating_point():
                continue
            dtype = torch.int8 if self.kind == "int8" else torch.int16
            found[name] = found[name].to(dtype)
            if self.kind == "int8":
                rows = len(_rows(found[name]))
                found[name + SCALE] = torch.empty(rows, dtype=torch.float32, device="meta")
        return found


UNCODED = Payload()


def rounded(shared: Params, kind: str) -> Params:
    """The server's tensors as clients will read them; the same again changes nothing."""
    if kind == "fp32":
        return shared
    return {
        name: _half(value, kind, name).to(value.dtype) if value.is_floating_point() else value
        for name, value in shared.items()
    }


def narrow(shared: Params, kind: str) -> Params:
    """Rounded tensors as they travel down."""
    if kind == "fp32":
        return shared
    return {
        name: _bits(_half(value, kind, name)) if value.is_floating_point() else value
        for name, value in shared.items()
    }


def widen(sent: Params, kind: str, like: Params) -> Params:
    """The inverse of `narrow`; `like` has the shared tensors' types."""
    if kind == "fp32":
        return sent
    return {
        name: value.view(HALVES[kind]).to(like[name].dtype)
        if name in like and like[name].is_floating_point()
        else value
        for name, value in sent.items()
    }


def quantised(change: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """int8 of the same shape and float32 scales (rows,), rounded at random without bias."""
    rows = _rows(change)
    top = rows.abs().amax(dim=1) if rows.numel() else rows.new_zeros(len(rows))
    scale = (top / LEVELS).float()
    # Never below max |x| / 127, or the largest number would be cut.
    scale = torch.where(scale > 0, torch.nextafter(scale, torch.full_like(scale, torch.inf)), scale)
    draws = torch.rand(rows.shape, generator=generator, dtype=torch.float64).to(rows.device)
    steps = torch.where(scale > 0, scale, torch.ones_like(scale)).double()[:, None]
    whole = (rows / steps + draws).floor().clamp(-LEVELS, LEVELS)
    return whole.to(torch.int8).view(change.shape), scale


def _rows(value: Tensor) -> Tensor:
    """(rows, last axis); a scalar is one row."""
    width = value.shape[-1] if value.dim() else 1
    return value.reshape(value.numel() // width if width else 0, width)


def _half(value: Tensor, kind: str, name: str) -> Tensor:
    half = value.to(HALVES[kind])
    if bool((half.isinf() & value.isfinite()).any()):
        raise MethodError(f"{name} is too large for {kind}: use bf16, or lower federation.lr")
    return half


def _bits(half: Tensor) -> Tensor:
    """Sixteen bits as whole numbers: numpy, and so Flower, knows no bfloat16."""
    return half.view(torch.int16)
