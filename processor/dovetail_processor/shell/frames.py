"""Frames of links as bytes: packed where they are sent, checked and hashed where they come.

Nothing of a frame is used before it is checked, and its keys are hashed on the thread that reads
it: the worker gets rows that are safe, and ready for the join.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dovetail_processor.batches import Keyed, keyed, stamped
from dovetail_processor.operators.link_end import Marker
from dovetail_processor.operators.links import Item
from dovetail_proto.arrow_bytes import from_bytes, to_bytes
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.feeds import LinkFrame, TupleBatch
from dovetail_proto.ids import QueryName, SplitId, input_of, query_of
from dovetail_proto.query import QueryPlan
from dovetail_proto.wire import data as wire

Received = tuple[SplitId, int, Keyed | Marker | None, int]
"""Of which split, its number, what it carries, and what that takes of the credit."""


def pack(split: SplitId, number: int, item: Item | None) -> bytes:
    """A frame; None is a probe."""
    if not isinstance(item, Keyed):
        return wire.encode_frame(LinkFrame(split, number, item))
    assert item.chosen is None  # only the workers of a process share rows
    rows = item.stamped
    offsets = b"" if rows.offsets is None else rows.offsets.astype("<u4").tobytes()
    batch = TupleBatch(
        split, rows.first, offsets, rows.size_bytes, rows.rows.num_rows, to_bytes(rows.rows)
    )
    return wire.encode_frame(LinkFrame(split, number, batch))


def unpack(data: bytes, plan_of: Callable[[QueryName], QueryPlan]) -> Received:
    """What `pack` made; Refusal or InputError if it is anything else, or of no query here."""
    frame = wire.decode_frame(data)
    item = frame.item
    if not isinstance(item, TupleBatch):
        return frame.split, frame.number, item, 0
    plan, index = plan_of(query_of(frame.split)), input_of(frame.split)
    if index >= len(plan.inputs):
        raise Refusal(Domain.MESSAGE, f"split {frame.split!r} is none of query {plan.name!r}")
    rows = from_bytes(item.payload, plan.inputs[index].kept, f"a frame of {frame.split}")
    made = keyed(plan, index, stamped(rows, item.first, _offsets(item)))
    if item.rows != rows.num_rows or made.rows.num_rows < item.rows:
        raise Refusal(Domain.MESSAGE, f"a frame of {frame.split} has not the rows that it names")
    return frame.split, frame.number, made, item.size_bytes


def _offsets(item: TupleBatch) -> NDArray[np.uint32] | None:
    """The sequences of a batch's rows; Refusal if they are not one per row, ascending."""
    if not item.offsets:
        return None
    if len(item.offsets) != 4 * item.rows:
        raise Refusal(Domain.MESSAGE, f"a frame of {item.split} has other sequences than rows")
    offsets = np.frombuffer(item.offsets, "<u4").astype(np.uint32)
    if not (offsets[1:] > offsets[:-1]).all():
        raise Refusal(Domain.MESSAGE, f"a frame of {item.split} has sequences out of order")
    return offsets
