"""Write a client's change of the shared tensors in fewer bytes, and read it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from focoop.errors import MethodError
from focoop.methods import Params

if TYPE_CHECKING:
    from torch import Tensor

UP = ("fp32", "fp16", "bf16", "int8")
DOWN = ("fp32", "fp16", "bf16")
LEVELS = 127
SCALE = "/scale"


@dataclass(frozen=True)
class Payload:
    """How updates travel: `fp32` leaves them as they are, others code the change."""

    kind: str = "fp32"

    def encode(self, shared: Params, received: Params, generator: torch.Generator) -> Params:
        """Write an update in fewer bytes.

        Args:
            shared: The client's shared tensors.
            received: What the server sent.
            generator: Draws how numbers are rounded.

        Returns:
            What is sent.
        """
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
        """Read an update that was written in fewer bytes.

        Args:
            coded: What was sent.
            received: What the server had sent.

        Returns:
            The shared tensors, in the order and types of `received`.
        """
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
                change = code.view(half_type(self.kind)).double()
            shared[name] = (value.double() + change.to(value.device)).to(value.dtype)
        return shared

    def through(self, shared: Params, received: Params, generator: torch.Generator) -> Params:
        """Return the client's tensors as the server reads them at the other end.

        Args:
            shared: The client's shared tensors.
            received: What the server sent.
            generator: Draws how numbers are rounded.

        Returns:
            The tensors.
        """
        if self.kind == "fp32":
            return shared
        return self.decode(self.encode(shared, received, generator), received)

    def form(self, received: Params) -> Params:
        """Return names, shapes and types of a coded update, without data (on the meta device).

        Args:
            received: What the server sent.

        Returns:
            Tensors without data.
        """
        payload: Params = {}
        for name, value in received.items():
            payload[name] = torch.empty(value.shape, dtype=value.dtype, device="meta")
            if self.kind == "fp32" or not value.is_floating_point():
                continue
            dtype = torch.int8 if self.kind == "int8" else torch.int16
            payload[name] = payload[name].to(dtype)
            if self.kind == "int8":
                rows = len(_rows(payload[name]))
                payload[name + SCALE] = torch.empty(rows, dtype=torch.float32, device="meta")
        return payload


UNCODED = Payload()


def rounded(shared: Params, kind: str) -> Params:
    """Round the server's tensors as clients will read them; rounding twice changes nothing more.

    Args:
        shared: The shared tensors.
        kind: The setting `federation.payload_down`.

    Returns:
        The rounded tensors.
    """
    if kind == "fp32":
        return shared
    return {
        name: _half(value, kind, name).to(value.dtype) if value.is_floating_point() else value
        for name, value in shared.items()
    }


def narrow(shared: Params, kind: str) -> Params:
    """Return rounded tensors as they travel down.

    Args:
        shared: The rounded tensors.
        kind: The setting `federation.payload_down`.

    Returns:
        Tensors of a smaller type.
    """
    if kind == "fp32":
        return shared
    return {
        name: _bits(_half(value, kind, name)) if value.is_floating_point() else value
        for name, value in shared.items()
    }


def widen(sent: Params, kind: str, like: Params) -> Params:
    """Return what travelled down in its own types, the inverse of `narrow`.

    Args:
        sent: What travelled.
        kind: The setting `federation.payload_down`.
        like: Tensors of the right types.

    Returns:
        The tensors.
    """
    if kind == "fp32":
        return sent
    return {
        name: value.view(half_type(kind)).to(like[name].dtype)
        if name in like and like[name].is_floating_point()
        else value
        for name, value in sent.items()
    }


def quantised(change: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Write numbers in eight bits, rounded at random without bias.

    Args:
        change: A tensor.
        generator: Draws how numbers are rounded.

    Returns:
        Whole numbers int8 of the same shape, and scales (rows,) float32.
    """
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
    half = value.to(half_type(kind))
    if bool((half.isinf() & value.isfinite()).any()):
        raise MethodError(f"{name} is too large for {kind}: use bf16, or lower federation.lr")
    return half


def _bits(half: Tensor) -> Tensor:
    """Sixteen bits as whole numbers: numpy, and so Flower, knows no bfloat16."""
    return half.view(torch.int16)


def half_type(kind: str) -> torch.dtype:
    """Return the torch type of a payload of two bytes.

    Args:
        kind: `fp16` or `bf16`.

    Returns:
        The type.
    """
    return {"fp16": torch.float16, "bf16": torch.bfloat16}[kind]
