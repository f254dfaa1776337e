"""A parcel holds a message's content to the bit, and a damaged one is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from focoop.errors import FederationError
from focoop.flower import parcel
from focoop.flower.in_process import identify
from focoop.flower.records import Order, to_arrays

QUIET = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
configs = st.dictionaries(
    st.text(max_size=6),
    st.one_of(numbers, st.booleans(), st.text(max_size=9), st.binary(max_size=9)),
    max_size=4,
).map(ConfigRecord)
metrics = st.dictionaries(st.text(max_size=6), numbers, max_size=4).map(MetricRecord)
arrays = st.lists(st.floats(width=32, allow_nan=True), max_size=9).map(
    lambda values: to_arrays({"a": torch.tensor(values), "b": torch.arange(3)})
)
contents = st.dictionaries(
    st.text(max_size=6), st.one_of(configs, metrics, arrays), max_size=4
).map(RecordDict)


@QUIET
@given(contents)
def test_what_is_packed_comes_out_to_the_bit(content: RecordDict) -> None:
    wrapped = parcel.packed(content)
    assert parcel.is_parcel(wrapped) and len(wrapped) == 1
    found = parcel.parcel_content(wrapped)
    assert list(found) == list(content)
    for name, record in content.items():
        assert type(found[name]) is type(record) and list(found[name]) == list(record)
        for key, value in record.items():
            other = found[name][key]
            assert type(other) is type(value)
            if isinstance(record, ArrayRecord):
                assert other.data == value.data and other.shape == value.shape
            else:
                assert other == value


@QUIET
@given(st.binary(max_size=60))
def test_bytes_of_nobody_are_opened_or_refused(data: bytes) -> None:
    content = RecordDict({parcel.PARCEL: ConfigRecord({parcel.BYTES: data})})
    try:
        assert isinstance(parcel.parcel_content(content), RecordDict)
    except FederationError as error:
        assert "parcel" in str(error)


@pytest.mark.parametrize(
    "record",
    [ConfigRecord(), ConfigRecord({parcel.BYTES: "text"}), MetricRecord({parcel.BYTES: 1})],
)
def test_a_parcel_without_bytes_is_refused(record: Any) -> None:
    with pytest.raises(FederationError, match="without content"):
        parcel.parcel_content(RecordDict({parcel.PARCEL: record}))


def test_large_content_travels_as_flower_sends_it() -> None:
    content = RecordDict({"a": to_arrays({"x": torch.zeros(parcel.MOST_BYTES // 4)})})
    assert parcel.packed(content) is content and parcel.parcel_content(content) is content


def message(content: RecordDict) -> Message:
    identify()
    return Message(content, 7, "train")


def test_a_site_answers_the_way_it_was_asked() -> None:
    content = RecordDict({"a": ConfigRecord({"round": 3})})
    for order in (content, parcel.packed(content)):
        sent: list[RecordDict] = []
        wrapping = parcel.Wrapping(
            lambda client, order=order: (message(order), "context", "run", "fab"),
            lambda client, reply, context, sent=sent: sent.append(reply.content),
        )
        asked, *more = wrapping.pull(None)
        assert asked.content["a"] == {"round": 3} and more == ["context", "run", "fab"]
        wrapping.push(None, message(content), None)
        assert parcel.is_parcel(sent[0]) is parcel.is_parcel(order)
        assert parcel.parcel_content(sent[0])["a"] == {"round": 3}


def test_a_damaged_order_reaches_the_app_which_refuses_it() -> None:
    """The process that takes it must not die of it: nobody would be answered."""
    torn = RecordDict({parcel.PARCEL: ConfigRecord({parcel.BYTES: b"torn"})})
    wrapping = parcel.Wrapping(lambda client: (message(torn),), lambda *given: None)
    (asked,) = wrapping.pull(None)
    with pytest.raises(FederationError, match="holds no order"):
        Order.read(asked.content)


def test_an_error_reply_has_nothing_to_pack() -> None:
    from flwr.app import Error

    sent: list[Message] = []
    wrapping = parcel.Wrapping(
        lambda client: (message(parcel.packed(RecordDict())),),
        lambda client, reply, context: sent.append(reply),
    )
    (asked,) = wrapping.pull(None)
    wrapping.push(None, Message(Error(2, "no"), reply_to=asked), None)
    assert sent[0].has_error()


def test_orders_are_pushed_in_parcels_and_stay_as_they_were() -> None:
    seen: list[list[str]] = []

    def push(messages: list[Message]) -> list[str]:
        seen.extend(list(one.content) for one in messages)
        if len(seen) > 2:
            raise OSError("the SuperLink is away")
        return ["id"] * len(messages)

    orders = [message(RecordDict({"a": ConfigRecord({"k": k})})) for k in range(2)]
    grid: Any = SimpleNamespace(_runtime_client=None, push_messages=push)
    assert list(parcel.push_parcels(grid, orders)) == ["id", "id"]
    assert seen == [[parcel.PARCEL]] * 2
    with pytest.raises(OSError, match="away"):
        parcel.push_parcels(grid, orders)
    assert [one.content["a"]["k"] for one in orders] == [0, 1]
    plain: Any = SimpleNamespace(push_messages=lambda messages: [list(m.content) for m in messages])
    assert parcel.push_parcels(plain, orders) == [["a"], ["a"]]
