"""Bytes that a round sends up and down."""

from focoop.federation.updates.compression import Payload
from focoop.methods import Params


def round_bytes(
    sent: Params,
    received: Params,
    classes: int,
    payload: Payload,
    down: str,
    *,
    asked: int,
    answered: int,
) -> tuple[int, int]:
    """Bytes up and down of a round: tensors and class counts up, tensors down.

    Args:
        sent: the shared tensors that a client sends.
        received: the shared tensors that it is sent.
        classes: number of classes, each with a count of 8 bytes.
        payload: how updates are written.
        down: how shared tensors are written on their way down.
        asked: how many clients were sent the shared tensors.
        answered: how many updates came.

    Returns:
        (up, down), each over all clients.
    """
    up = num_bytes(payload.form(sent)) + 8 * classes
    return answered * up, asked * num_bytes(Payload(down).form(received))


def num_bytes(params: Params) -> int:
    """Count the bytes of named tensors on the wire.

    Args:
        params: Tensors by name.

    Returns:
        Their number.

    >>> import torch
    >>> num_bytes({"a": torch.zeros(2, 3)})
    24
    """
    return sum(v.numel() * v.element_size() for v in params.values())
