"""What a join does that is short of memory: it pushes, or waits for what others give back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.join.state import JoinState, Short
from dovetail_processor.spill.pusher import Pusher
from dovetail_processor.state_memory import StateMemory
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.spill_format import SpillStore
from kit import join_cases as cases
from kit.hand_shell import HandLane
from kit.spills import make_plan

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PLAN = make_plan([SCHEMA, SCHEMA])
LIMIT_BYTES = 4_000_000
MINIMUM_BYTES = 500_000


class Case:
    """A state of which some is filled, and its memory."""

    def __init__(self, folder: Path) -> None:
        self.state = JoinState(PLAN, LIMIT_BYTES, chunk_rows=1_000)
        output = RecentOutput(self.state.produced, self.state.generation, 0.0)
        self.moving = False
        self.memory = StateMemory(self.state, output, MINIMUM_BYTES, lambda: self.moving)
        self.lane = HandLane()
        store = SpillStore.create(str(folder), PLAN)
        self.failures: list[Exception] = []
        self.pusher = Pusher(self.state, store, self.lane, 64 << 10, self.failures.append)
        self.rows = 0

    def fill(self, ratio: float) -> None:
        """Up to a part of the limit, but for a page or so."""
        while self.state.held_bytes < ratio * self.state.limit_bytes:
            keys = np.arange(self.rows, self.rows + 1_000)
            self.rows += 1_000
            arrays = [pa.array(keys), pa.array(keys * 1.0)]
            cases.begin(self.state, 0, pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
            while (event := self.state.advance()) is not None:
                assert event is not Short.OF_MEMORY


def test_a_push_begins_above_the_threshold_and_the_join_goes_on(tmp_path: Path) -> None:
    """Not below it, not beside another one, not beside a move."""
    case = Case(tmp_path)
    case.memory.use(case.pusher, DiskSettings(allowed=True, spill_above_ratio=0.5))
    case.fill(0.4)
    case.memory.before_batch(0.0)
    assert not case.memory.pushing
    case.fill(0.6)
    case.moving = True
    case.memory.before_batch(0.0)
    assert not case.memory.pushing
    case.moving = False
    case.memory.before_batch(0.0)
    assert case.memory.pushing
    assert not case.memory.waits
    case.memory.before_batch(0.0)
    assert len(case.lane.jobs) == 1
    case.lane.do()
    assert case.pusher.pushes == 1
    assert not case.memory.pushing


def test_groups_that_come_leave_the_minimum(tmp_path: Path) -> None:
    """Without it a query could neither join a row nor push."""
    case = Case(tmp_path)
    assert case.memory.reservable_bytes == LIMIT_BYTES - MINIMUM_BYTES
    case.fill(0.5)
    assert case.memory.reservable_bytes == LIMIT_BYTES - case.state.held_bytes
    case.memory.set_limit(MINIMUM_BYTES // 2)
    assert case.memory.reservable_bytes == 0


def test_a_join_waits_while_all_its_groups_are_locked(tmp_path: Path) -> None:
    """A job may read them after their move was rolled back; then they can be pushed again."""
    case = Case(tmp_path)
    case.memory.use(case.pusher, DiskSettings(allowed=True))
    case.fill(0.9)
    case.state.locked[:] = True
    case.memory.now(0.0)
    assert case.memory.waits
    assert not case.memory.pushing
    case.state.locked[:] = False
    case.memory.unlocked()
    assert not case.memory.waits
    case.memory.now(0.0)
    assert case.memory.pushing


def test_output_may_borrow_what_neither_the_minimum_nor_a_push_needs(tmp_path: Path) -> None:
    """Without the disk all that is free; above the threshold nothing."""
    case = Case(tmp_path)
    assert case.memory.spare_bytes == LIMIT_BYTES - MINIMUM_BYTES
    case.fill(0.3)
    assert case.memory.spare_bytes == LIMIT_BYTES - case.state.held_bytes
    case.memory.use(case.pusher, DiskSettings(allowed=True, spill_above_ratio=0.5))
    assert case.memory.spare_bytes == LIMIT_BYTES - 2 * case.state.held_bytes
    case.memory.set_limit(LIMIT_BYTES - case.memory.spare_bytes)
    case.memory.before_batch(0.0)
    assert not case.memory.pushing, "it was all lent, and no push begins for it"
    case.memory.set_limit(LIMIT_BYTES)
    case.fill(0.6)
    assert case.memory.spare_bytes == 0


def test_a_join_without_a_page_waits_for_the_push_it_has_begun(tmp_path: Path) -> None:
    """Also beside a move, which would never end without room."""
    case = Case(tmp_path)
    case.memory.use(case.pusher, DiskSettings(allowed=True))
    case.fill(0.9)
    case.moving = True
    case.memory.now(0.0)
    assert case.memory.waits
    assert case.memory.pushing
    case.memory.now(0.0)
    assert len(case.lane.jobs) == 1
    case.lane.do()
    assert not case.memory.waits
    assert case.memory.short is None


def test_a_row_that_fits_into_no_memory_ends_the_query(tmp_path: Path) -> None:
    """There is nothing that could be pushed for it."""
    case = Case(tmp_path)
    case.memory.use(case.pusher, DiskSettings(allowed=True))
    with pytest.raises(MemoryLimitError, match="a row does not fit"):
        case.memory.now(0.0)


@pytest.mark.parametrize("policy", ["none", "disk, below the minimum", "no place"])
def test_without_the_disk_a_join_waits_for_what_others_give_back(
    policy: str, tmp_path: Path
) -> None:
    """Until it has more than when it began to wait."""
    case = Case(tmp_path)
    pusher = None if policy == "no place" else case.pusher
    case.memory.use(pusher, DiskSettings(allowed=policy != "none"))
    assert case.memory.spills == (policy == "disk, below the minimum")
    case.fill(0.5)
    held = case.state.held_bytes
    case.memory.set_limit(MINIMUM_BYTES - 1 if case.memory.spills else held)
    case.memory.now(0.0)
    assert case.memory.waits
    assert case.memory.short == case.state.limit_bytes - held
    assert not case.lane.jobs
    case.memory.set_limit(case.state.limit_bytes)
    assert case.memory.waits, "as much as before is not enough"
    case.memory.set_limit(case.state.limit_bytes + 1)
    assert not case.memory.waits


def test_a_push_is_ordered_of_those_that_may_use_the_disk_only(tmp_path: Path) -> None:
    """The answer is what it takes from memory."""
    case = Case(tmp_path)
    case.fill(0.5)
    case.memory.use(case.pusher, DiskSettings(allowed=False))
    assert case.memory.push(1, 0.0) == 0
    case.memory.use(case.pusher, DiskSettings(allowed=True))
    sizes = case.state.group_bytes().tolist()
    assert case.memory.push(1, 0.0) in sizes
    case.lane.do()
    case.state.locked[:] = True
    assert case.memory.push(1, 0.0) == 0, "groups that travel stay"
