"""Coded updates on Flower: the simulator's bits and bytes, and lies about codes found."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, Message

from focoop.flower.records import UPDATE
from focoop.flower.site import client_app
from focoop.runs import RunFolder
from tests.flower.federations import (
    CLIENTS,
    Tampered,
    federated,
    lines,
    simulated,
    state,
    toy_config,
)

QUIET = "federation.evaluate_every=0"


def compare(folder: Path, *overrides: str) -> tuple[RunFolder, RunFolder]:
    wanted = toy_config(folder, QUIET, *overrides)
    return simulated(wanted, folder / "sim"), federated(wanted, folder / "flower")


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        pytest.param("focoop", "int8", "fp16", marks=pytest.mark.slow),
        ("promptfl", "fp16", "bf16"),
        pytest.param("promptfl", "bf16", "fp32", marks=pytest.mark.slow),
        ("local_only", "int8", "fp16"),
    ],
)
def test_same_bits_and_bytes_as_the_simulator(
    tmp_path: Path, method: str, up: str, down: str
) -> None:
    plain, flower = compare(
        tmp_path,
        f"method.name={method}",
        f"federation.payload={up}",
        f"federation.payload_down={down}",
    )
    assert state(flower) == state(plain) and lines(flower) == lines(plain)
    for ours, theirs in zip(flower.manifest["rounds"], plain.manifest["rounds"], strict=True):
        for name in ("bytes_up", "bytes_down"):
            assert ours.get(name) == theirs.get(name)


@pytest.mark.slow
def test_with_noise_a_robust_rule_and_edge_servers(tmp_path: Path) -> None:
    plain, flower = compare(
        tmp_path,
        "method.name=promptfl",
        "federation.payload=int8",
        "privacy.clip=0.5",
        "privacy.noise=0.3",
        "robust.rule=median",
        "federation.edges=2",
    )
    assert state(flower) == state(plain)
    assert plain.manifest["rounds"][-1]["server"]["edges"] == 2
    coded = plain.manifest["rounds"][-1]["bytes_up"]
    assert coded == CLIENTS * (16 * 192 + 16 * 4 + 4 * 8)  # codes, scales, class counts


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("context", np.zeros((16, 192), np.float32), "float32, not int8"),
        ("context/scale", np.full(16, np.nan, np.float32), "no numbers"),
        ("context/scale", np.ones(3, np.float32), r"shape \(3,\)"),
    ],
)
def test_false_codes_are_refused(tmp_path: Path, name: str, value: np.ndarray, reason: str) -> None:
    def spoil(message: Message, reply: Message) -> Message:
        record = reply.content[UPDATE]
        assert isinstance(record, ArrayRecord)
        record[name] = Array(value)
        return reply

    wanted = toy_config(tmp_path, QUIET, "method.name=promptfl", "federation.payload=int8")
    answers = [*[client_app.app] * (CLIENTS - 1), Tampered(spoil)]
    run = federated(wanted, tmp_path / "run", answers)
    refused = run.manifest["rounds"][-1]["refused"]
    assert list(refused) == ["client 2"]
    assert np.char.find(refused["client 2"], reason.replace("\\", "")) >= 0
