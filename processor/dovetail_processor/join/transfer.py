"""Groups on their way between processors: out of one join's state, as bytes, into another's.

    sender:    view ─▶ encode: the groups take no rows any more
    receiver:  decode ─▶ install: rows go in silently, for they have met; then the counters

The bytes: a JSON head with the groups' counters, then per input an Arrow IPC stream of its rows,
then where each of these ends.
Invariant: what is installed equals what was viewed: rows, generation, combinations produced in
this generation and before, the last sequences taken, and for how long no row came.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.batches import keyed, stamped
from dovetail_processor.join.detached import Detached
from dovetail_processor.join.state import JoinState, Short
from dovetail_proto.arrow_bytes import refuse_swelling
from dovetail_proto.errors import Domain, InputError, Refusal
from dovetail_proto.feeds import SEQUENCE_MAX
from dovetail_proto.query import QueryPlan

END_BYTES = 8
INSTALL_ROWS = 64 << 10
"""Rows that go in at once: the batch that the kernels are measured with."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What travels with groups beside their rows; one entry per group, ascending.

    But for `marks`, which has such a list per input.
    """

    groups: list[int]
    generation: list[int]
    produced: list[int]
    produced_before: list[int]
    unkept: list[int]
    recent: list[float]  # P_o as it counted when they left
    idle_s: list[float]  # clocks of two machines differ, so: since the last insertion
    marks: list[list[int]]  # per input: the last sequence taken


@dataclass(frozen=True, slots=True)
class Arrived:
    """Groups that were decoded and checked."""

    counters: Counters
    rows: list[pa.Table]  # per input
    state_bytes: int = 0  # what they took where they come from, and was reserved for them

    @property
    def held_bytes(self) -> int:
        """What is kept for them until they are installed."""
        return max(self.state_bytes, int(sum(t.nbytes for t in self.rows)))


def counters(
    state: JoinState, ids: NDArray[np.int64], output: RecentOutput, now_s: float
) -> Counters:
    """The counters of groups as they are now."""
    return Counters(
        ids.tolist(),
        state.generation[ids].tolist(),
        state.produced[ids].tolist(),
        state.produced_before[ids].tolist(),
        state.unkept[ids].tolist(),
        output.counted(now_s)[ids].tolist(),
        np.maximum(0.0, now_s - state.last_insert_s[ids]).tolist(),
        state.marks[:, ids].tolist(),
    )


def encode(
    state: JoinState,
    viewed: Detached,
    known: Counters,
    since: NDArray[np.int64] | None = None,
) -> memoryview:
    """The groups as bytes, or what came `since` (see `JoinState.rows_of`).

    Rows are read and written a batch at a time: beside the bytes, which are as long as the rows,
    only a batch is in memory.
    """
    out = pa.BufferOutputStream()
    out.write(json.dumps(asdict(known)).encode())
    ends = [out.tell()]
    for i, rows_at in enumerate(state.rows_of(viewed, since)):
        with pa.ipc.new_stream(out, state.plan.inputs[i].kept) as writer:
            for start in range(0, rows_at.size, INSTALL_ROWS):
                writer.write_table(state.read_rows(i, rows_at[start : start + INSTALL_ROWS]))
        ends.append(out.tell())
    out.write(np.array(ends, "<u8").tobytes())
    return memoryview(out.getvalue())


def decode(payload: bytes | memoryview, plan: QueryPlan, groups: Sequence[int]) -> Arrived:
    """Read what `encode` wrote; Refusal if it is anything else, or of other groups."""
    try:
        pieces = _pieces(payload, 1 + len(plan.inputs))
        known = Counters(**json.loads(bytes(pieces[0])))
        rows = [_from_ipc(p, i.kept) for p, i in zip(pieces[1:], plan.inputs, strict=True)]
        _check(known, len(plan.inputs), groups)
    except (ValueError, TypeError, KeyError, OSError, pa.ArrowException, InputError) as e:
        raise Refusal(Domain.MESSAGE, f"state of groups cannot be read: {e}") from e
    return Arrived(known, rows)


def _check(known: Counters, inputs: int, groups: Sequence[int]) -> None:
    """ValueError or TypeError if these are no counters of the groups."""
    if len(known.marks) != inputs:
        raise ValueError("marks of another number of inputs")
    counts = [known.generation, known.produced, known.produced_before, known.unkept]
    floats = [known.recent, known.idle_s]
    sizes = {*map(len, counts), *map(len, floats), *map(len, known.marks)}
    if known.groups != list(groups) or sizes != {len(groups)}:
        raise ValueError("other groups than announced")
    for lowest, columns in ((0, counts), (-1, known.marks)):
        for number in chain.from_iterable(columns):
            if not isinstance(number, int) or not lowest <= number <= SEQUENCE_MAX:
                raise ValueError(f"{number!r} is no count")
    for value in chain.from_iterable(floats):
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{value!r} is no amount")


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
            rows = keyed(state.plan, i, stamped(batch, 0))
            touched = state.begin(i, rows, now_s, silent=True)
            if not np.isin(touched, ids).all():
                raise Refusal(Domain.MESSAGE, "state of a group holds rows of another group")
            while (event := state.advance()) is not None:
                if event is Short.OF_MEMORY:
                    make_room()
                yield
    state.generation[ids] = known.generation
    state.produced[ids] = known.produced
    state.produced_before[ids] = known.produced_before
    state.unkept[ids] = known.unkept
    state.last_insert_s[ids] = now_s - np.array(known.idle_s)
    state.set_marks(ids, np.array(known.marks, np.int64).reshape(state.n, -1))


def _pieces(payload: bytes | memoryview, count: int) -> list[memoryview]:
    view = memoryview(payload)
    body = len(view) - count * END_BYTES
    if body < 0:
        raise ValueError("cut short")
    ends = [0, *np.frombuffer(view[body:], "<u8").tolist()]
    if ends[-1] != body or any(a > b for a, b in pairwise(ends)):
        raise ValueError("cut short, or longer than it says")
    return [view[a:b] for a, b in pairwise(ends)]


def _from_ipc(part: memoryview, schema: pa.Schema) -> pa.Table:
    refuse_swelling(part, "state of groups")
    with pa.ipc.open_stream(pa.py_buffer(part)) as reader:
        if not reader.schema.equals(schema):
            raise ValueError(f"schema {reader.schema}, not {schema}")
        table = reader.read_all()
    table.validate(full=True)
    return table
