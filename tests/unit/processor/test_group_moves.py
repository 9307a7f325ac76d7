"""A query's part in moves: groups leave and arrive whole, whatever happens meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dovetail_manager.planner import plan_query
from dovetail_processor.join.state import FUEL_ROWS
from dovetail_processor.join.transfer import Arrived, decode
from dovetail_processor.operators.links import Item
from dovetail_proto.assignment import Peer, Phase
from dovetail_proto.ids import Epoch, GroupId, MapVersion, MoveId, ProcessorId, QueryName
from dovetail_proto.messages import (
    ComputePartitionsToMove,
    DeactivatePartitions,
    EndOfMovedPartitions,
    FinishMove,
    MoveFinished,
    MoveRef,
    PartitionsToMove,
    Reactivated,
    ReactivatePartitions,
    Received,
    ReceivePartitions,
    Refused,
    Reserve,
    SendPartitions,
    Stage,
)
from dovetail_proto.partition_map import MapPatch
from kit.clusters import same_bag
from kit.hand_shell import HERE, HandWorker

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
SQL = "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k"
PLAN = plan_query(SQL, dict.fromkeys("ab", SCHEMA), name="q", partitions=4)
Q, P2 = QueryName("q"), ProcessorId("p2")
GROUPS = (GroupId(0), GroupId(1))
ROWS = 3 * FUEL_ROWS


def ref(number: int) -> MoveRef:
    """Of a move."""
    move = MoveId(f"0000000001-{number:08d}")
    return MoveRef(Q, Epoch(1), move, move)


def rows(first: int = 0, count: int = ROWS) -> pa.RecordBatch:
    """Keys that occur once."""
    keys = np.arange(first, first + count)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)


def running(owners: tuple[str, ...] = (HERE,)) -> HandWorker:
    """A query that runs, with rows of stream a."""
    one = HandWorker(PLAN, owners=owners)
    one.set(peers={HERE: Peer(), P2: Peer()})
    one.settle()
    one.send("a", rows())
    one.settle()
    return one


def drain(one: HandWorker, number: int, receiver: ProcessorId = P2) -> None:
    """Groups 0 and 1 are to be sent away, and all that came for them is joined."""
    one.say(ComputePartitionsToMove(ref(number), 0, GROUPS))
    one.say(DeactivatePartitions(ref(number), 0, GROUPS, HERE, one.splits))
    one.say(SendPartitions(ref(number), 0, GROUPS, receiver))
    one.work()


def end(one: HandWorker, number: int, owner: ProcessorId) -> None:
    """The move is over: the groups are the owner's."""
    known = one.query.moves.participant.map
    version = MapVersion(known.version + 1)
    patch = MapPatch(Q, known.version, version, tuple((g, owner) for g in GROUPS))
    one.say(ReactivatePartitions(ref(number), 0, GROUPS, owner, patch))
    one.say(FinishMove(ref(number)))


def receive(one: HandWorker, number: int, message: ReceivePartitions) -> None:
    """State of groups arrives."""
    moved = replace(message, ref=ref(number))
    one.say(Reserve(ref(number), moved.size_bytes))
    arrived: Arrived = decode(moved.payload, PLAN, moved.groups)
    one.handle(lambda: one.worker.control(moved, arrived))


def held(one: HandWorker) -> list[int]:
    """Rows of stream a in each group."""
    return one.query.state.group_rows()[:, 0].tolist()


def test_groups_are_read_by_a_job_and_leave_when_the_move_is_committed() -> None:
    """Rows that come meanwhile are held back, and go to the new owner."""
    one = running()
    before = held(one)
    drain(one, 1)
    assert one.query.moves.reading
    assert one.shell.groups == []
    one.send("a", rows(ROWS, 100))
    one.work()
    one.lane("groups").do()
    assert not one.query.moves.reading
    [(to, message, ended)] = one.shell.groups
    assert to == P2
    assert decode(message.payload, PLAN, GROUPS).rows[0].num_rows == sum(before[:2])
    one.say(SendPartitions(ref(1), 0, GROUPS, P2))
    assert not one.lane("groups").jobs, "it is being sent"
    ended()
    one.say(SendPartitions(ref(1), 0, GROUPS, P2))
    assert len(one.lane("groups").jobs) == 1, "it may have been lost"
    one.settle()
    end(one, 1, P2)
    one.settle()
    assert held(one)[:2] == [0, 0]
    assert not one.query.join.live[list(GROUPS)].any()
    sent: list[Item | None] = [item for to, _, _, item in one.shell.frames if to == P2]
    assert sent, "what was held back goes to the new owner"
    assert one.query.stage is Stage.RUNNING, one.query.cause
    answers = [type(m).__name__ for m in one.shell.said]
    expected = ["PartitionsToMove", "Deactivated", "Reactivated", "MoveFinished"]
    assert [a for a in answers if a in expected] == expected


@pytest.mark.parametrize("owner", [P2, HERE], ids=["commit", "rollback"])
def test_a_group_that_a_job_reads_keeps_its_pages(owner: ProcessorId) -> None:
    """Whether the move is committed meanwhile or rolled back: what is read is what left."""
    one = running()
    before = held(one)
    drain(one, 1)
    one.lane("groups").do()
    one.shell.groups.pop()[2]()
    one.say(SendPartitions(ref(1), 0, GROUPS, P2))
    end(one, 1, owner)
    one.work()
    assert one.query.moves.reading
    assert held(one) == before
    assert one.query.state.locked[list(GROUPS)].all(), "nor are they pushed"
    one.lane("groups").do()
    one.settle()
    [(_, message, _)] = one.shell.groups
    assert decode(message.payload, PLAN, GROUPS).rows[0].num_rows == sum(before[:2])
    assert held(one) == ([0, 0, *before[2:]] if owner == P2 else before)
    assert not one.query.state.locked.any()


def test_rows_join_groups_that_were_taken_back_while_a_job_reads_them() -> None:
    """A move that was rolled back leaves the results exact."""
    one = running()
    drain(one, 1)
    end(one, 1, HERE)
    one.send("b", rows())
    one.work()
    one.settle()
    one.assign(phase=Phase.CLOSING)
    for _ in range(3):
        one.pass_time(1.0)
    assert same_bag(one.results(), SQL, a=pa.table(rows()), b=pa.table(rows()))


def test_groups_do_not_come_back_before_what_they_left_is_gone() -> None:
    """A job still reads them: their return is refused, and can be tried again."""
    one = running()
    before = held(one)
    drain(one, 1)
    one.lane("groups").do()
    [(_, message, ended)] = one.shell.groups
    ended()
    one.say(SendPartitions(ref(1), 0, GROUPS, P2))
    end(one, 1, P2)
    one.work()
    receive(one, 2, message)
    refusals = [m.domain for m in one.shell.said if isinstance(m, Refused)]
    assert refusals == ["busy", "step"]
    one.settle()
    receive(one, 3, message)
    end(one, 3, HERE)
    one.settle()
    assert held(one) == before
    one.send("b", rows())
    one.settle()
    assert one.query.produced == ROWS


def test_a_query_does_not_close_while_a_job_reads_its_groups() -> None:
    """Their pages would go with it."""
    one = running()
    drain(one, 1)
    end(one, 1, HERE)
    one.set(peers={HERE: Peer()})
    one.assign(phase=Phase.CLOSING)
    for _ in range(3):
        one.now_s += 1.0
        one.work()
    assert not one.query.closing
    one.lane("groups").do()
    one.pass_time(1.0)
    assert one.query.stage is Stage.CLOSED


def moved() -> ReceivePartitions:
    """Groups 0 and 1 as they were joined elsewhere."""
    there = running()
    drain(there, 1)
    there.lane("groups").do()
    return there.shell.groups[0][1]


def receiver() -> HandWorker:
    """Where groups 0 and 1 are not at home."""
    one = HandWorker(PLAN, owners=["p2", "p2", HERE, HERE])
    one.assign()
    one.settle()
    return one


def test_rows_that_follow_a_group_meet_what_came_with_it() -> None:
    """However early they are: the group goes in first."""
    one = receiver()
    message = moved()
    receive(one, 2, message)
    assert Received(ref(2), 0, message.size_bytes) in one.shell.said
    end(one, 2, HERE)
    one.send("b", rows())
    one.settle()
    here = decode(message.payload, PLAN, GROUPS).rows[0].num_rows
    assert one.query.produced == here
    assert one.query.load().groups == 4
    assert not one.query.state.locked.any()


def test_a_marker_waits_until_arrived_groups_are_installed() -> None:
    """Else a group that is sent on at once would leave without its rows."""
    one = receiver()
    message = moved()
    receive(one, 2, message)
    end(one, 2, HERE)
    drain(one, 3)
    assert one.query.moves.reading
    one.lane("groups").do()
    [(_, again, _)] = one.shell.groups
    rows_there = [t.num_rows for t in decode(again.payload, PLAN, GROUPS).rows]
    assert rows_there == [t.num_rows for t in decode(message.payload, PLAN, GROUPS).rows]


def test_groups_that_are_installed_can_be_pushed_in_mid_batch() -> None:
    """The batch may wait for the memory that they take; what is not installed waits for it."""
    one = receiver()
    message = moved()
    receive(one, 2, message)
    one.settle()
    assert one.query.state.locked[list(GROUPS)].all()
    one.send("a", rows(ROWS, ROWS))
    while one.query.state.idle:
        assert one.worker.step(one.now_s)
    end(one, 2, HERE)
    assert not one.query.state.locked.any()


def test_memory_comes_free_in_mid_batch_whatever_waits_for_its_end() -> None:
    """A chunk is dropped, and something else was to be done before, between batches."""
    one = receiver()
    receive(one, 2, moved())
    one.settle()
    one.send("a", rows(ROWS, ROWS))
    while one.query.state.idle:
        assert one.worker.step(one.now_s)
    one.query.join.later(iter(()))  # it waits for the end of the batch
    one.query.memory.short = 0
    assert not one.query.join.ready
    end(one, 2, P2)
    assert one.query.join.ready
    one.work()
    assert not one.query.state.locked.any()
    assert one.query.memory.short is None


def test_what_comes_is_kept_beside_the_minimum() -> None:
    """Others must not take what a query needs to go on beside it."""
    one = receiver()
    before = one.query.claim
    one.say(Reserve(ref(2), 100_000))
    assert one.query.claim.minimum == before.minimum + 100_000
    assert one.query.claim.held == before.held + 100_000


def test_installing_lets_messages_in() -> None:
    """It is done in steps as short as those of the join."""
    one = receiver()
    receive(one, 2, moved())
    steps = 0
    while not one.query.join.settled:
        assert one.worker.step(one.now_s)
        steps += 1
    assert steps > ROWS // 2 // FUEL_ROWS


@pytest.mark.parametrize("installed", [False, True])
def test_groups_that_arrived_for_nothing_are_dropped(installed: bool) -> None:
    """Whether they were in the state already or not; no combination of theirs is counted."""
    one = receiver()
    receive(one, 2, moved())
    assert one.query.claim.held >= one.query.moves.coming_bytes > 0
    if installed:
        one.settle()
    end(one, 2, P2)
    one.settle()
    assert held(one) == [0, 0, 0, 0]
    assert one.query.produced == 0
    assert one.query.moves.coming_bytes == 0
    assert one.query.state.held_bytes == 0


def test_combinations_are_counted_where_they_were_made() -> None:
    """A group brings its lifetime along, and the sum over all processors stays right."""
    one = running()
    one.send("b", rows())
    one.settle()
    assert one.query.produced == ROWS
    drain(one, 1)
    one.lane("groups").do()
    end(one, 1, P2)
    one.settle()
    assert one.query.produced == ROWS
    there = receiver()
    receive(there, 2, one.shell.groups[0][1])
    end(there, 2, HERE)
    there.settle()
    assert there.query.produced == 0
    assert there.query.state.produced[list(GROUPS)].sum() > 0


def test_what_may_not_be_is_refused_and_answered() -> None:
    """With the message that was refused, and what the refuser knows."""
    one = receiver()
    one.say(SendPartitions(ref(5), 2, GROUPS, P2))
    [refused] = one.shell.said
    assert isinstance(refused, Refused)
    assert (refused.refused, refused.chunk, refused.ref) == ("SendPartitions", 2, ref(5))
    assert refused.map_version == 1


def test_groups_are_chosen_by_what_they_hold_but_not_those_that_just_came() -> None:
    """A group that came a short while ago stays for a while."""
    one = HandWorker(PLAN, owners=["p2", "p2", HERE, HERE])
    one.assign(settle_s=60.0)
    one.settle()
    one.send("a", rows())
    one.settle()
    receive(one, 2, moved())
    end(one, 2, HERE)
    one.settle()
    one.say(ComputePartitionsToMove(ref(3), 10**9))
    [offer] = [m for m in one.shell.said if isinstance(m, PartitionsToMove)]
    assert offer.groups == (2, 3)
    one.say(FinishMove(ref(3)))
    one.now_s += 61.0
    one.say(ComputePartitionsToMove(ref(4), 10**9))
    assert one.shell.said[-1].groups == (0, 1, 2, 3)  # type: ignore[union-attr]


def test_a_closed_query_says_again_that_a_move_is_over() -> None:
    """The answer may have been lost, and the manager waits for it."""
    one = running()
    drain(one, 1)
    one.settle()
    end(one, 1, HERE)
    one.set(peers={HERE: Peer()})
    one.assign(phase=Phase.CLOSING)
    for _ in range(3):
        one.pass_time(1.0)
    assert one.query.stage is Stage.CLOSED
    one.shell.said.clear()
    end(one, 1, HERE)
    assert [type(m) for m in one.shell.said] == [Reactivated, MoveFinished]


def test_a_marker_of_another_move_is_passed_over() -> None:
    """One that was rolled back while it was on its way."""
    one = running()
    marker = EndOfMovedPartitions(Q, ref(9).move, 0, one.splits[0])
    one.query.moves.marker(marker, 0.0)
    assert one.shell.said == []
