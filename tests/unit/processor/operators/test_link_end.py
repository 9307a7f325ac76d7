"""The end of a link at a join: order, markers behind what is joined, credit given back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dovetail_processor.batches import Keyed, keyed, stamped
from dovetail_processor.operators.link_end import LinkEnd
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.ids import MoveId, QueryName, SplitId
from dovetail_proto.messages import EndOfMovedPartitions
from kit.spills import make_plan

SCHEMA = pa.schema([("k", pa.int64())])
PLAN = make_plan([SCHEMA, SCHEMA], partitions=4)
SPLIT = SplitId("test/0")
WINDOW = 1_000
MARKER = EndOfMovedPartitions(QueryName("test"), MoveId("0000000001-00000001"), 0, SPLIT)
END = EndOfInput(QueryName("test"), SPLIT)


def rows(first: int, count: int = 40) -> Keyed:
    """Of all groups."""
    batch = pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=SCHEMA)
    return keyed(PLAN, 0, stamped(batch, first))


def group(number: int) -> np.ndarray:
    """A mask of one."""
    return np.arange(PLAN.partitions) == number


def test_frames_are_taken_once_and_in_order() -> None:
    """Each one that is not the next asks for another answer, and so does a probe."""
    end = LinkEnd(WINDOW)
    assert end.news() == (0, WINDOW, 0)
    assert end.news() is None
    assert not end.arrived(2, rows(40), 100)
    assert end.news() == (0, WINDOW, 0)
    assert end.arrived(1, rows(0), 100)
    assert not end.arrived(1, rows(0), 100)
    assert end.arrived(2, rows(40), 100)
    assert end.held_bytes == 200
    assert end.news() == (2, WINDOW, 0)
    assert not end.arrived(0, None, 0)
    assert end.news() == (2, WINDOW, 0)


def test_credit_comes_back_when_rows_are_joined_and_not_before() -> None:
    """So what waits here is within the window."""
    end = LinkEnd(WINDOW)
    end.arrived(1, rows(0), 300)
    assert len(end) == 1
    assert end.take().rows.num_rows == 40
    assert len(end) == 0
    assert (end.held_bytes, end.done_number) == (300, 0)
    end.finished()
    assert (end.held_bytes, end.done_number) == (0, 1)
    assert end.news() == (1, WINDOW + 300, 1)


def test_a_marker_comes_out_when_all_before_it_is_joined() -> None:
    """The join does not see what is behind it until then."""
    end = LinkEnd(WINDOW)
    end.arrived(1, rows(0), 1)
    end.arrived(2, END, 0)
    end.arrived(3, rows(40), 1)
    assert end.marker() is None
    end.take()
    assert len(end) == 0
    assert not end.ended
    end.finished()
    assert end.marker() == END
    assert end.ended
    assert not end.exhausted
    assert (len(end), end.done_number) == (1, 2)
    end.take()
    end.finished()
    assert end.exhausted


def test_a_marker_overtakes_with_the_rows_of_its_groups() -> None:
    """They go first, in order; frames are done when their last row is, and credit is whole."""
    end = LinkEnd(WINDOW)
    for number in (1, 2):
        end.arrived(number, rows(40 * number), 100)
    end.arrived(3, MARKER, 0)
    end.overtake(group(1))
    moving = []
    while end.urgent and len(end):
        taken = end.take()
        assert (taken.groups == 1).all()
        moving += taken.stamped.sequences().tolist()
        end.finished()
    everything = [*rows(40).stamped.sequences(), *rows(80).stamped.sequences()]
    groups = [*rows(40).groups, *rows(80).groups]
    assert moving == [s for s, g in zip(everything, groups, strict=True) if g == 1]
    assert end.done_number == 0, "no frame is done: the others' rows wait"
    assert end.marker() == MARKER
    rest = []
    for number in (1, 2):
        taken = end.take()
        rest += taken.stamped.sequences().tolist()
        end.finished()
        assert end.done_number == (1 if number == 1 else 3), "the marker's frame is behind them"
    assert sorted(moving + rest) == everything
    assert (end.held_bytes, end.news()) == (0, (3, WINDOW + 200, 3))


def test_a_frame_of_moving_groups_only_is_done_when_its_turn_comes() -> None:
    """All of it went ahead; nothing of it waits."""
    end = LinkEnd(WINDOW)
    batch = rows(0)
    end.arrived(1, batch.take(np.flatnonzero(batch.groups == 2)), 50)
    end.arrived(2, MARKER, 0)
    end.overtake(group(2))
    end.take()
    end.finished()
    assert end.marker() == MARKER
    assert (end.done_number, end.held_bytes) == (2, 0)
    assert end.inbox.outstanding_bytes == WINDOW


def test_two_markers_overtake_one_behind_the_other() -> None:
    """The second one finds its rows behind the first one's, and in order within its group."""
    end = LinkEnd(WINDOW)
    end.arrived(1, rows(0), 10)
    end.arrived(2, MARKER, 0)
    end.overtake(group(0))
    end.arrived(3, rows(40), 10)
    second = EndOfMovedPartitions(QueryName("test"), MoveId("0000000001-00000002"), 0, SPLIT)
    end.arrived(4, second, 0)
    end.overtake(group(3))
    assert set(end.take().groups.tolist()) == {0}
    end.finished()
    assert end.marker() == MARKER
    sequences = []
    while end.urgent and len(end):
        taken = end.take()
        assert set(taken.groups.tolist()) == {3}
        sequences += taken.stamped.sequences().tolist()
        end.finished()
    assert sequences == sorted(sequences)
    assert sequences[0] < 40 <= sequences[-1]
    assert end.marker() == second


def test_a_marker_without_rows_before_it_comes_at_once() -> None:
    """Nothing is queued, or nothing of its groups."""
    end = LinkEnd(WINDOW)
    end.arrived(1, MARKER, 0)
    end.overtake(group(1))
    assert not len(end)
    assert end.marker() == MARKER
    assert end.done_number == 1


def test_another_host_counts_from_one_with_the_credit_that_is_left() -> None:
    """Rows that came from the former one are joined by then."""
    end = LinkEnd(WINDOW)
    end.arrived(1, rows(0), 100)
    with pytest.raises(AssertionError):
        end.relink()
    end.take()
    end.finished()
    end.arrived(2, MARKER, 0)
    end.relink()
    assert end.news() == (0, WINDOW, 0)
    assert end.marker() is None, "of no use any more"
    assert end.arrived(1, rows(40), 10)
