"""Whatever a registered site sends, decoding it ends in a value or in a `FederationError`."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from focoop.errors import FederationError
from focoop.federation.updates.compression import Payload
from focoop.flower.in_process import identify
from focoop.flower.records import (
    METRICS,
    STATS,
    UPDATE,
    Order,
    flatten,
    to_arrays,
    to_tensor,
    unflatten,
)
from focoop.flower.server.reply_checks import read_row, read_update
from focoop.flower.server.roster import identified
from focoop.flower.server.secure_rounds import read_keys, read_masked, read_opened
from focoop.flower.sum_records import SUM, to_keys
from focoop.functional.frontier import Margins, frontier
from focoop.methods.base import ClientUpdate

SENT = {"a": torch.zeros(2, 3), "words": torch.arange(2)}
WHOLE = {"client": 1, "round": 1, "num-examples": 3, "loss": 0.5}
ROW = {"num_test": 3, "num_classes": 2, "accuracy_own": 0.5, "accuracy_all": 0.5, "threshold": -2.5}
ROW |= {"accuracy_own_alone": 0.5, "accuracy_all_open": 0.5}
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))


def refused_or_read(read: Any, *given_: Any, **more: Any) -> Any:
    """The value, or None where it was refused as it must be; any other error is a failure."""
    try:
        return read(*given_, **more)
    except FederationError as error:
        assert len(str(error)) < 2000
        return None


def with_header(text: bytes, body: bytes = b"", version: bytes = b"\x01\x00") -> Array:
    size = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    data = b"\x93NUMPY" + version + size + text + body
    return Array("float32", (2, 3), "numpy.ndarray", data)


@pytest.mark.parametrize(
    "text",
    [
        b"{[]:1}",
        b"((((",
        b"(" * 9000,
        b"-" * 9000 + b"1",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, " + b"9" * 300 + b")}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -6)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L)}",
        b"{'descr': ('<f4', -1), 'fortran_order': False, 'shape': (2, 3)}",
        b"{'descr': '<m8[2147483648D]', 'fortran_order': False, 'shape': (2, 3)}",
        b"{'descr': '|V0', 'fortran_order': False, 'shape': (2, 3)}",
        b"{'descr': '<U9999', 'fortran_order': False, 'shape': ()}",
        b"{'descr': [('a', '<f4')] * 9, 'fortran_order': False, 'shape': ()}",
        b"\xff\xfe\x00'",
        b"1" + b"+1j" * 3000,
        b"\x00" * 50,
        b"",
    ],
)
@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\xff\xff"])
def test_headers_that_are_no_headers(text: bytes, version: bytes) -> None:
    for body in (b"", b"\0" * 24):
        for like in (None, SENT["a"]):
            array = with_header(text, body, version)
            assert refused_or_read(to_tensor, "a", array, like) is None


@QUIET
@given(st.binary(max_size=300), st.binary(max_size=60), st.sampled_from([None, SENT["a"]]))
def test_arrays_of_any_bytes(text: bytes, body: bytes, like: torch.Tensor | None) -> None:
    refused_or_read(to_tensor, "a", Array("float32", (2, 3), "numpy.ndarray", text + body), like)
    refused_or_read(to_tensor, "a", with_header(text, body), like)


@QUIET
@given(st.lists(st.tuples(st.integers(0, 199), st.integers(0, 255)), min_size=1, max_size=6))
def test_one_byte_changed_here_and_there(changes: list[tuple[int, int]]) -> None:
    stream = io.BytesIO()
    np.save(stream, SENT["a"].numpy())
    data = bytearray(stream.getvalue())
    for place, value in changes:
        data[place % len(data)] = value
    found = refused_or_read(
        to_tensor, "a", Array("float32", (2, 3), "numpy.ndarray", bytes(data)), SENT["a"]
    )
    assert found is None or (found.shape == (2, 3) and found.dtype == torch.float32)


numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(), st.just(7.0))
names = st.one_of(
    st.sampled_from(
        ["client", "round", "num-examples", "loss", "row/num_test", "row/accuracy_own", "row/ood"]
    ),
    st.sampled_from(["row/ood/sun/auroc", "row/corrupted/fog@1/count", "row/", "row//", "row/a/b"]),
    st.text(max_size=8),
)
metric_records = st.dictionaries(
    names, st.one_of(numbers, st.lists(st.integers(0, 9), min_size=1, max_size=3)), max_size=8
).map(lambda given_: MetricRecord({**WHOLE, **given_}))
scalars = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5)
)
config_names = st.one_of(
    st.sampled_from(["client", "clients", "name", "classes", "proof", "images", "round", "key"]),
    st.sampled_from([f"mask/{'9' * 5000}", "mask/1", "channel/1", "commitment/1", "seed/-1"]),
    st.sampled_from(["mask/\u0663", "key/1", "seed/0"]),
    st.text(max_size=8),
)
config_records = st.dictionaries(
    config_names,
    st.one_of(scalars, st.binary(max_size=9), st.lists(st.text(max_size=3), min_size=1)),
    max_size=10,
).map(ConfigRecord)
array_bytes = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=40).map(lambda text: bytes(with_header(text).data)),
    st.just(bytes(to_arrays(SENT)["a"].data)),
    st.just(bytes(to_arrays({"a": torch.tensor([1, 2])})["a"].data)),
)
array_records = st.dictionaries(
    st.sampled_from(["a", "words", "class-counts", "masked", "b"]), array_bytes, max_size=4
).map(lambda given_: ArrayRecord({n: Array("f", (1,), "numpy", d) for n, d in given_.items()}))
any_record = st.one_of(metric_records, config_records, array_records)
contents = st.dictionaries(
    st.sampled_from([UPDATE, STATS, METRICS, "about", SUM, "else"]), any_record, max_size=4
).map(RecordDict)


@QUIET
@given(contents, st.sampled_from(["fp32", "int8", "fp16"]), st.booleans())
def test_any_records(content: RecordDict, kind: str, noised: bool) -> None:
    update = refused_or_read(
        read_update, content, 1, 1, SENT, 2, noised=noised, payload=Payload(kind)
    )
    assert update is None or isinstance(update, ClientUpdate)
    refused_or_read(read_row, content, 1, 1, 2)
    refused_or_read(read_masked, content, 1, 1, 5)
    refused_or_read(Order.read, content)


@QUIET
@given(metric_records, st.booleans())
def test_rows_that_pass_are_plausible(metrics: MetricRecord, whole: bool) -> None:
    if whole:
        for name, value in ROW.items():
            metrics.setdefault(f"row/{name}", value)
    row = refused_or_read(read_row, RecordDict({METRICS: metrics}), 1, 1, 2)
    if row is not None:
        assert 0 <= row["accuracy_own"] <= 1 and 0 <= row["accuracy_all"] <= 1
        assert row["num_test"] >= 1 and 1 <= row["num_classes"] <= 2


def test_an_honest_row_passes() -> None:
    measured = {"auroc": 1.0, "aupr_in": 0.5, "aupr_out": 0.5, "fpr95": 0.0, "fpr95_oodpos": 0.0}
    told = {f"row/{name}": value for name, value in ROW.items()}
    told |= {f"row/ood/sun/{name}": value for name, value in measured.items()}
    record = MetricRecord({**WHOLE, **told, "row/corrupted/fog@1/count": 3})
    record["row/corrupted/fog@1/accuracy"] = 1.0
    row = read_row(RecordDict({METRICS: record}), 1, 1, 2)
    assert row == {
        **ROW,
        "num_calibration": 0,
        "kept": None,
        "cross_alarm": None,
        "frontier": None,
        "ood": {"sun": measured},
        "corrupted": {"fog@1": {"accuracy": 1.0, "count": 3}},
    }


def test_a_frontier_passes_as_it_was_measured_and_not_otherwise() -> None:
    margins = Margins([-1.0, 2.0], [True, True]), Margins([1.0, 0.5], [True, False])
    measured = {**frontier(*margins), "harmonic": 0.5}
    told = {f"row/{name}": value for name, value in ROW.items()} | WHOLE
    flat = flatten(measured, "row/frontier/")

    def read(changed: dict[str, float]) -> dict[str, Any] | None:
        return read_row(RecordDict({METRICS: MetricRecord({**told, **changed})}), 1, 1, 2)

    row = read(flat)
    assert row is not None and row["frontier"] == measured
    for wrong in (
        {**flat, "row/frontier/ausuc": 1.5},
        {**flat, "row/frontier/curve/5": -0.1},
        {**flat, "row/frontier/curve/7": 0.1},
        {name: value for name, value in flat.items() if "bias" not in name},
        {"row/frontier": 0.5},
    ):
        with pytest.raises(FederationError, match="frontier"):
            read(wrong)


@QUIET
@given(config_records)
def test_any_description_of_a_site_and_any_keys(record: ConfigRecord) -> None:
    identify()
    order = Message(RecordDict(), 1, "query.hello", ttl=60.0)
    order.metadata.__dict__["_message_id"] = "0" * 64
    refused_or_read(
        identified, Message(RecordDict({"about": record}), reply_to=order), {}, "0" * 32
    )
    for read in (read_keys, read_opened):
        refused_or_read(read, record, 1)
    refused_or_read(to_keys, record)


@QUIET
@given(st.dictionaries(st.text("ab/", max_size=5), st.floats(0, 1)))
def test_paths_that_contradict_each_other(flat: dict[str, float]) -> None:
    refused_or_read(unflatten, flat)
