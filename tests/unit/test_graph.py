"""The query graph: bounded arcs, the loop, and depth first."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail_processor.graph import loop
from dovetail_processor.graph.arc import Arc
from dovetail_processor.scheduling.depth_first import DepthFirst
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.memory import shares


def batch(rows: int) -> pa.RecordBatch:
    """Eight bytes a row."""
    return pa.record_batch({"x": pa.array(range(rows), pa.int64())})


class Pass:
    """A node that copies one batch a step and notes that it ran."""

    def __init__(self, name: str, source: Arc, out: Arc | None, log: list[str]) -> None:
        self._name, self._source, self._out, self._log = name, source, out, log

    @property
    def ready(self) -> bool:
        """There is input and room."""
        room = self._out is None or self._out.has_room
        return (len(self._source) > 0 and room) or (self._source.exhausted and not self.finished)

    @property
    def finished(self) -> bool:
        """Everything is passed on."""
        return self._source.exhausted and (self._out is None or self._out.ended)

    def step(self) -> None:
        """Copy one, or pass on the end."""
        if self._source.exhausted:
            assert self._out is not None
            self._out.end()
            return
        taken = self._source.take()
        self._log.append(self._name)
        if self._out is not None:
            self._out.offer(taken)


def test_an_arc_counts_its_bytes_and_has_no_room_beyond_its_bound() -> None:
    """A batch without rows is dropped; the end is seen after the last batch."""
    arc = Arc(100)
    arc.offer(batch(0))
    assert len(arc) == 0
    arc.offer(batch(10))
    assert (arc.held_bytes, arc.has_room) == (80, True)
    arc.offer(batch(10))
    assert (arc.held_bytes, arc.has_room) == (160, False)
    arc.end()
    assert not arc.exhausted
    arc.take()
    arc.take()
    assert (arc.held_bytes, arc.exhausted) == (0, True)


def test_depth_first_follows_a_batch_down_before_the_next_one_starts() -> None:
    """Sources take turns; what they give goes all the way at once."""
    log: list[str] = []
    first, second, middle = Arc(1 << 20), Arc(1 << 20), Arc(1 << 20)
    for arc in (first, second):
        for _ in range(2):
            arc.offer(batch(1))
        arc.end()
    ended = [0]

    class Merge(Pass):
        """Passes to the shared arc, which ends when both sources have."""

        @property
        def finished(self) -> bool:
            return self._source.exhausted

        def step(self) -> None:
            super().step()
            if self._source.exhausted:
                ended[0] += 1
                if ended[0] == 2:
                    middle.end()

    nodes = [Merge("a", first, middle, log), Merge("b", second, middle, log)]
    sink = Pass("sink", middle, None, log)
    loop.run([*nodes, sink], DepthFirst([0, 0, 1]), between=lambda: None)
    assert log == ["a", "sink", "b", "sink", "a", "sink", "b", "sink"]


@pytest.mark.parametrize("inputs", [2, 3, 10])
@pytest.mark.parametrize("limit_mb", [8, 64, 1024])
def test_the_shares_of_a_limit_never_exceed_it(inputs: int, limit_mb: int) -> None:
    """State and all bounded buffers together are the limit, and state has most of it."""
    found = shares(limit_mb << 20, inputs=inputs, partitions=100)
    buffers = 2 * inputs * found.batch + 4 * found.output + found.spill
    assert buffers + found.state <= limit_mb << 20
    assert found.state > (limit_mb << 20) // 2


def test_the_smallest_workable_limit_is_a_few_megabytes_and_the_error_states_it() -> None:
    """What the error says is enough works, and a little less does not."""
    with pytest.raises(MemoryLimitError, match="give at least") as refused:
        shares(1 << 20, inputs=3, partitions=300)
    smallest = refused.value.details["smallest_bytes"]
    assert 2 << 20 < smallest < 8 << 20
    shares(smallest, inputs=3, partitions=300)
    with pytest.raises(MemoryLimitError):
        shares(smallest - (256 << 10), inputs=3, partitions=300)
