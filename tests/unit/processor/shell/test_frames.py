"""Frames of links as bytes: what was packed comes out, and nothing else gets in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_processor.batches import Keyed, keyed, stamped
from dovetail_processor.shell.frames import pack, unpack
from dovetail_proto.arrow_bytes import to_bytes
from dovetail_proto.errors import DovetailError, Refusal
from dovetail_proto.feeds import SEQUENCE_MAX, EndOfInput, LinkFrame, TupleBatch
from dovetail_proto.ids import MoveId, QueryName, SplitId
from dovetail_proto.messages import EndOfMovedPartitions
from dovetail_proto.query import QueryPlan
from dovetail_proto.wire import data as wire
from kit.spills import make_plan

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
PLAN = make_plan([SCHEMA, SCHEMA])
SPLIT = SplitId("test/1")
BATCH = pa.record_batch([["a", "", "long " * 50], [1, None, 3]], schema=SCHEMA)
GENUINE = TupleBatch(SPLIT, 7, b"", 100, 3, to_bytes(BATCH))


def plan_of(query: QueryName) -> QueryPlan:
    """Of the one query that there is."""
    if query != "test":
        raise Refusal("query", f"query {query!r} does not run here")
    return PLAN


def frame(item: TupleBatch) -> bytes:
    """As somebody else might make it."""
    return wire.encode_frame(LinkFrame(item.split, 5, item))


def test_rows_arrive_with_their_sequences_keys_and_groups() -> None:
    """And with the size that the sender counts."""
    sent = keyed(PLAN, 1, stamped(BATCH, 1_000))
    split, number, item, size_bytes = unpack(pack(SPLIT, 5, sent), plan_of)
    assert (split, number, size_bytes) == (SPLIT, 5, sent.size_bytes)
    assert isinstance(item, Keyed)
    assert item.rows.equals(BATCH)
    assert item.stamped.offsets is None
    assert item.stamped.first == 1_000
    assert item.groups.tolist() == sent.groups.tolist()
    assert item.keys.hashes.tolist() == sent.keys.hashes.tolist()


def test_rows_with_gaps_arrive_with_theirs() -> None:
    """As a filter, or another owner's rows between, leave them."""
    sent = keyed(PLAN, 1, stamped(BATCH, 1_000)).take(np.array([0, 2]))
    _, _, item, size_bytes = unpack(pack(SPLIT, 5, sent), plan_of)
    assert isinstance(item, Keyed)
    assert item.stamped.sequences().tolist() == [1_000, 1_002]
    assert size_bytes == sent.size_bytes


@pytest.mark.parametrize(
    "item",
    [
        None,
        EndOfInput(QueryName("test"), SPLIT),
        EndOfMovedPartitions(QueryName("test"), MoveId("0000000001-00000001"), 2, SPLIT),
    ],
    ids=["probe", "end", "marker"],
)
def test_what_carries_no_rows_takes_no_credit(item: EndOfInput | None) -> None:
    """A probe has number 0."""
    number = 0 if item is None else 9
    assert unpack(pack(SPLIT, number, item), plan_of) == (SPLIT, number, item, 0)


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        (replace(GENUINE, split=SplitId("other/0")), "does not run here"),
        (replace(GENUINE, split=SplitId("test/2")), "'test/2' is none of query 'test'"),
        (replace(GENUINE, rows=2), "not the rows that it names"),
        (replace(GENUINE, rows=4), "not the rows that it names"),
        (replace(GENUINE, offsets=b"\0" * 8), "other sequences than rows"),
        (replace(GENUINE, offsets=b"\0" * 11), "other sequences than rows"),
        (replace(GENUINE, offsets=b"\0" * 12), "sequences out of order"),
        (
            replace(GENUINE, offsets=np.array([3, 2, 9], "<u4").tobytes()),
            "sequences out of order",
        ),
        (replace(GENUINE, first=SEQUENCE_MAX + 1), "first"),
        (replace(GENUINE, size_bytes=0), "size_bytes"),
        (replace(GENUINE, payload=b"no Arrow"), "a frame of test/1"),
        (
            replace(GENUINE, payload=to_bytes(BATCH.set_column(0, "k", pa.nulls(3, pa.string())))),
            "not the rows that it names",
        ),
        (replace(GENUINE, payload=to_bytes(BATCH.select(["v"]))), "a frame of test/1"),
    ],
)
def test_a_forged_frame_is_refused(forged: TupleBatch, message: str) -> None:
    """With an error of ours, before the worker sees anything of it."""
    unpack(frame(GENUINE), plan_of)
    with pytest.raises(DovetailError, match=message):
        unpack(frame(forged), plan_of)


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=6))
def test_a_damaged_frame_is_refused_or_read_and_never_crashes(at: int, junk: bytes) -> None:
    """What is read is valid, and hashed here."""
    damaged = bytearray(frame(GENUINE))
    at %= len(damaged)
    damaged[at : at + len(junk)] = junk
    try:
        _, _, item, _ = unpack(bytes(damaged), plan_of)
    except DovetailError:
        return
    if isinstance(item, Keyed):
        item.rows.validate(full=True)
        assert item.groups.size == item.rows.num_rows
