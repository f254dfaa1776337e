"""Records: tensors survive to the bit, lies about them are found, settings are stated once."""

import io
import tomllib
import zipfile
from dataclasses import fields
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ConfigRecord, RecordDict
from flwr.cli.build import build_fab_from_files

from focoop.config.loading import load
from focoop.config.schema import RunConfig
from focoop.config.writing import to_flat
from focoop.errors import ConfigError
from focoop.flower.records import (
    CONFIG,
    FederationError,
    Order,
    flatten,
    to_arrays,
    to_tensor,
    to_tensors,
    unflatten,
)
from focoop.flower.server.reply_checks import moved, suspects
from focoop.flower.settings import NAMES, ServerSettings, run_config, server_settings
from focoop.methods.base import ClientUpdate

ROOT = Path(__file__).resolve().parents[2]
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool)


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_tensors_travel_to_the_bit(shape: list[int], dtype: torch.dtype, seed: int) -> None:
    drawn = torch.randn(*shape, 2, generator=torch.Generator().manual_seed(seed)) * 100
    tensor = drawn.to(dtype)[..., 0]  # strided, as a column of something larger
    assert tuple(tensor.shape) == tuple(shape)
    (back,) = to_tensors(to_arrays({"a": tensor})).values()
    assert back.dtype == dtype and back.shape == tensor.shape
    assert torch.equal(back, tensor)
    assert torch.equal(to_tensor("a", to_arrays({"a": tensor})["a"], like=tensor), tensor)


def test_what_is_no_number_survives_too() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    back = to_tensors(to_arrays({"a": odd}))["a"]
    assert back.numpy().tobytes() == odd.numpy().tobytes()


def lying(shape: tuple[int, ...], dtype: str, body: bytes) -> Array:
    stream = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return Array("float32", (2,), "numpy.ndarray", stream.getvalue() + body)


@pytest.mark.parametrize(
    "array",
    [
        lying((10**13,), "<f4", b"\0" * 8),  # would take 40 TB
        lying((2**62, 2**62), "<f4", b""),
        lying((2,), "<f4", b"\0" * 7),
        lying((2,), "<f4", b"\0" * 9),
        lying((1,), "|O", b"\0" * 8),
        Array("float32", (2,), "numpy.ndarray", b"\x93NUMPY\x01\x00\xff\xff"),
        Array("float32", (2,), "numpy.ndarray", b""),
        Array("float32", (2,), "numpy.ndarray", b"PK\x03\x04 an archive"),
    ],
)
def test_lies_about_an_array_are_found_before_it_is_read(array: Array) -> None:
    with pytest.raises(FederationError, match="^a "):
        to_tensor("a", array)


def test_an_array_must_be_like_the_one_sent() -> None:
    like = torch.zeros(2, 3)
    with pytest.raises(FederationError, match=r"shape \(3, 2\), not \(2, 3\)"):
        to_tensor("a", to_arrays({"a": like.T})["a"], like)
    with pytest.raises(FederationError, match="int64, not float32"):
        to_tensor("a", to_arrays({"a": like.long()})["a"], like)


def test_an_order_names_no_folder_but_its_own() -> None:
    order = Order(3, "0123456789abcdef", "hash")
    assert Order.read(RecordDict({CONFIG: order.record()})) == order
    for key in ("../../etc", "0123456789ABCDEF", "", 7):
        record = ConfigRecord({"round": 1, "key": key, "config-hash": "hash"})
        with pytest.raises(FederationError, match="16 hex digits"):
            Order.read(RecordDict({CONFIG: record}))
    with pytest.raises(FederationError, match="order"):
        record = ConfigRecord({"round": -1, "key": order.key, "config-hash": "hash"})
        Order.read(RecordDict({CONFIG: record}))


def test_rows_are_flat_on_the_way() -> None:
    row = {"client": 1, "ood": {"sun": {"auroc": 0.25, "fpr95": 1.0}}, "corrupted": {}}
    assert unflatten(flatten(row)) == {k: v for k, v in row.items() if k != "corrupted"}


@given(st.lists(st.floats(0.01, 1000), min_size=3, max_size=7), st.integers(2, 20))
def test_the_median_decides_what_is_unusual(lengths: list[float], bound: int) -> None:
    sent = {"a": torch.ones(1, dtype=torch.float64), "words": torch.arange(3)}
    counts = torch.tensor([2, 0])
    updates = [
        ClientUpdate(k, {**sent, "a": sent["a"] + length}, 2, counts, 0.0)
        for k, length in enumerate(lengths)
    ]
    usual = median(lengths)
    wrong = {k for k, length in enumerate(lengths) if length > bound * usual * (1 + 1e-9)}
    right = {k for k, length in enumerate(lengths) if length <= bound * usual * (1 - 1e-9)}
    found = suspects(updates, sent, float(bound), 0.0)
    assert wrong <= set(found) and not right & set(found)
    assert suspects(updates, sent, 0.0, 0.0) == {} == suspects(updates[:2], sent, 1e-9, 0.0)


def test_how_far_an_update_moved() -> None:
    sent = {"a": torch.zeros(2), "b": torch.zeros(1), "words": torch.arange(2)}
    update = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0]), "words": torch.arange(2) + 9}
    assert moved(update, sent) == 5.0


def test_the_app_states_every_setting_with_its_default() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    stated = project["tool"]["flwr"]["app"]["config"]
    assert stated == {key: getattr(ServerSettings(), name) for key, name in NAMES.items()}
    assert len(stated) == len(fields(ServerSettings))
    assert server_settings(stated) == ServerSettings()
    assert run_config(stated) == RunConfig()
    assert not set(NAMES) & set(to_flat(RunConfig()))  # no key means two things


def test_a_run_is_told_by_overrides_or_by_all_its_settings() -> None:
    short = run_config({"set": "federation.rounds=3; method.name=promptfl", "quorum": 1})
    assert short == load(None, ["federation.rounds=3", "method.name=promptfl"])
    assert run_config({**to_flat(short), "out": "there"}) == short
    with pytest.raises(ConfigError, match="quorum"):
        server_settings({"quorum": 1.5})


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # flwr's own
def test_the_bundle_holds_no_code() -> None:
    files = {
        name: (ROOT / name).read_bytes()
        for name in ("pyproject.toml", "README.md", "docs/architecture.md", "focoop/errors.py")
    }
    bundle, _ = build_fab_from_files(files)
    names = zipfile.ZipFile(io.BytesIO(bundle)).namelist()
    assert sorted(names) == [".info/CONTENT", "README.md", "pyproject.toml"]
