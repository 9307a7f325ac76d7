"""Groups on their way between processors: out of one join's state, as bytes, into another's.

    sender:    view ─▶ encode: the groups take no rows any more
    receiver:  decode ─▶ install: rows go in silently, for they have met; then the counters

The bytes: a JSON head with the groups' counters, then per input an Arrow IPC stream of its rows.
Invariant: what is installed equals what was viewed: rows, generation, combinations produced in
this generation and before, and for how long no row came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.join.state import Detached, JoinState, Short
from dovetail_proto.arrow_bytes import refuse_swelling
from dovetail_proto.errors import Domain, InputError, Refusal
from dovetail_proto.query import QueryPlan

LENGTH_BYTES = 8
INSTALL_ROWS = 64 << 10
"""Rows that go in at once: the batch that the kernels are measured with."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What travels with groups beside their rows; one entry per group, ascending."""

    groups: list[int]
    generation: list[int]
    produced: list[int]
    produced_before: list[int]
    recent: list[float]  # P_o as it counted when they left
    idle_s: list[float]  # clocks of two machines differ, so: since the last insertion


@dataclass(frozen=True, slots=True)
class Arrived:
    """Groups that were decoded and checked."""

    counters: Counters
    rows: list[pa.Table]  # per input

    @property
    def held_bytes(self) -> int:
        """What the rows take until they are installed."""
        return sum(t.nbytes for t in self.rows)


def counters(
    state: JoinState, ids: NDArray[np.int64], output: RecentOutput, now_s: float
) -> Counters:
    """The counters of groups as they are now."""
    return Counters(
        ids.tolist(),
        state.generation[ids].tolist(),
        state.produced[ids].tolist(),
        state.produced_before[ids].tolist(),
        output.counted(now_s)[ids].tolist(),
        np.maximum(0.0, now_s - state.last_insert_s[ids]).tolist(),
    )


def encode(state: JoinState, viewed: Detached, known: Counters) -> bytes:
    """The groups as bytes."""
    head = json.dumps(asdict(known)).encode()
    parts = [_length(head), head]
    for i, rows_at in enumerate(state.rows_of(viewed)):
        body = _to_ipc(state.read_rows(i, rows_at))
        parts += [_length(body), body]
    return b"".join(parts)


def decode(payload: bytes, plan: QueryPlan, groups: Sequence[int]) -> Arrived:
    """Read what `encode` wrote; Refusal if it is anything else, or of other groups."""
    try:
        pieces = _pieces(payload, 1 + len(plan.inputs))
        known = Counters(**json.loads(bytes(pieces[0])))
        rows = [_from_ipc(p, i.kept) for p, i in zip(pieces[1:], plan.inputs, strict=True)]
        sizes = {len(getattr(known, name)) for name in Counters.__dataclass_fields__}
        if known.groups != list(groups) or sizes != {len(groups)}:
            raise ValueError("other groups than announced")
    except (ValueError, TypeError, KeyError, OSError, pa.ArrowException, InputError) as e:
        raise Refusal(Domain.MESSAGE, f"state of groups cannot be read: {e}") from e
    return Arrived(known, rows)


def install(
    state: JoinState, arrived: Arrived, make_room: Callable[[], None], now_s: float
) -> Iterator[None]:
    """Put arrived groups into the state, step by step; it must be idle and hold nothing of them.

    Until the last step the state is not to be used otherwise. `make_room` is called when memory
    is short; it returns when there is more, or raises.
    """
    known = arrived.counters
    ids = np.array(known.groups, np.int64)
    state.locked[ids] = True  # before `make_room` chooses what to push
    for i, table in enumerate(arrived.rows):
        for batch in table.to_batches(max_chunksize=INSTALL_ROWS):
            touched = state.begin(i, batch, now_s, silent=True)
            if not np.isin(touched, ids).all():
                raise Refusal(Domain.MESSAGE, "state of a group holds rows of another group")
            while (event := state.advance()) is not None:
                if event is Short.OF_MEMORY:
                    make_room()
                yield
    state.generation[ids] = known.generation
    state.produced[ids] = known.produced
    state.produced_before[ids] = known.produced_before
    state.last_insert_s[ids] = now_s - np.array(known.idle_s)


def _length(part: bytes) -> bytes:
    return len(part).to_bytes(LENGTH_BYTES, "little")


def _pieces(payload: bytes, count: int) -> list[memoryview]:
    view, at, out = memoryview(payload), 0, []
    for _ in range(count):
        size = int.from_bytes(view[at : at + LENGTH_BYTES], "little")
        at += LENGTH_BYTES
        if at + size > len(view):
            raise ValueError("cut short")
        out.append(view[at : at + size])
        at += size
    if at != len(view):
        raise ValueError("longer than it says")
    return out


def _to_ipc(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    taken: bytes = stream.getvalue().to_pybytes()
    return taken


def _from_ipc(part: memoryview, schema: pa.Schema) -> pa.Table:
    refuse_swelling(part, "state of groups")
    with pa.ipc.open_stream(pa.py_buffer(part)) as reader:
        if not reader.schema.equals(schema):
            raise ValueError(f"schema {reader.schema}, not {schema}")
        table = reader.read_all()
    table.validate(full=True)
    return table
