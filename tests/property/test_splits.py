"""Splits: every row reaches the owner of its group once, in order, whatever is held and when."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dovetail_manager.planner import plan_query
from dovetail_processor.cluster.input_queue import InputQueue
from dovetail_processor.cluster.splits import Item, Piece, Splits
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, QueryName, SplitId
from dovetail_proto.messages import EndOfMovedPartitions
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.partitioning import canonical_keys, partition_ids

PARTITIONS = 6
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
PLAN = plan_query(
    "SELECT a.n, b.n AS m FROM a JOIN b ON a.k = b.k",
    dict.fromkeys("ab", SCHEMA),
    name="q",
    partitions=PARTITIONS,
)
SPLIT = SplitId("q/0")
P1, P2 = ProcessorId("p1"), ProcessorId("p2")
MOVE = MoveId("0000000001-00000001")


def group_of(key: int) -> int:
    """The group of a key, by the one hash."""
    hashes = canonical_keys([pa.array([key], pa.int64())], PLAN.key_types).hashes
    return int(partition_ids(hashes, PARTITIONS)[0])


class Far:
    """Both instances: queues that take one batch at a time and note what came for which group."""

    def __init__(self, window_bytes: int) -> None:
        self.queues = {p: InputQueue(window_bytes) for p in (P1, P2)}
        self.got: dict[tuple[ProcessorId, int], list[int]] = defaultdict(list)
        self.markers: list[tuple[ProcessorId, object]] = []
        self.moving: dict[int, int] = {}  # chunk: its group, whose rows a marker may overtake with
        self.had: dict[int, int] = {}  # chunk: rows of its group when its marker came through
        self.lossy = False

    def post(self, _: SplitId, to: ProcessorId, frames: list[tuple[int, Item | None]]) -> None:
        """Frames arrive, unless they are lost."""
        for number, item in frames:
            if self.lossy and number % 2:
                continue
            if isinstance(item, Piece):
                assert isinstance(item.content, bytes) == (to == P2)
                batch = item.content
                if isinstance(batch, bytes):
                    batch = from_bytes(batch, PLAN.inputs[0].kept, "a piece")
                self.queues[to].arrived(number, batch, item.size_bytes)
            elif self.queues[to].arrived(number, item, 0) and isinstance(
                item, EndOfMovedPartitions
            ):
                group = self.moving[item.chunk]
                self.queues[to].overtake(
                    lambda rows, group=group: np.array(  # type: ignore[misc]
                        [group_of(k) == group for k in rows.column(0).to_pylist()], np.bool_
                    )
                )

    def join(self, to: ProcessorId) -> None:
        """Take in one batch, or the markers at the front."""
        queue = self.queues[to]
        if len(queue):
            batch = queue.take()
            for key, n in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                self.got[to, group_of(key)].append(n)
            queue.finished()
        while (marker := queue.marker()) is not None:
            self.markers.append((to, marker))
            if isinstance(marker, EndOfMovedPartitions):
                self.had[marker.chunk] = len(self.got[to, self.moving[marker.chunk]])


class Case:
    """A split on p1 with links to both instances."""

    def __init__(self, window_bytes: int) -> None:
        self.now_s = 0.0
        self.far = Far(window_bytes)
        self.map = PartitionMap.initial(
            QueryName("q"), [(P1, P2)[g % 2] for g in range(PARTITIONS)]
        )
        self.splits = Splits(
            QueryName("q"),
            P1,
            PLAN,
            [SPLIT],
            self.map,
            piece_bytes=64,
            post=self.far.post,
            clock=lambda: self.now_s,
        )
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.count = 0

    def take(self, keys: list[int | None]) -> None:
        """A batch of the stream; null keys go nowhere."""
        numbers = list(range(self.count, self.count + len(keys)))
        self.count += len(keys)
        for key, n in zip(keys, numbers, strict=True):
            if key is not None:
                self.sent[group_of(key)].append(n)
        rows = [pa.array(keys, pa.int64()), pa.array(numbers, pa.int64())]
        self.splits.take(SPLIT, pa.RecordBatch.from_arrays(rows, schema=SCHEMA))

    def acknowledge(self) -> None:
        """Both instances tell how far they are."""
        for to, queue in self.far.queues.items():
            told = queue.news()
            if told is not None:
                self.splits.acknowledged(SPLIT, to, *told)

    def settle(self) -> None:
        """Let everything arrive and be joined."""
        self.far.lossy = False
        for _ in range(10_000):
            self.now_s += 1.0
            self.splits.resend()
            for to in (P1, P2):
                self.far.join(to)
            self.acknowledge()
            links = self.splits.links.values()
            if not any(k.outbox.pending or k.outbox.unacked or k.undone for k in links):
                return
        raise AssertionError("something never arrives")

    def move(self, group: int, to: ProcessorId) -> None:
        """The end of a move: the map names another owner, and the group is released to it."""
        self.map = self.map.moved([GroupId(group)], to)
        self.splits.adopt(self.map)
        self.splits.release([GroupId(group)], to)


KEYS = st.lists(st.none() | st.integers(0, 30), max_size=12)
STEPS = st.lists(
    st.tuples(st.just("take"), KEYS)
    | st.tuples(st.sampled_from(["join", "ack", "lose", "resend"]), st.just(None))
    | st.tuples(st.just("move"), st.integers(0, PARTITIONS - 1)),
    max_size=40,
)


@given(STEPS, st.sampled_from([40, 200, 4000]))
def test_rows_reach_the_owner_of_their_group_once_and_in_order(
    steps: list[tuple[str, object]], window_bytes: int
) -> None:
    """Through credit, loss, and moves that hold groups back in the middle of it all."""
    case = Case(window_bytes)
    held: dict[int, int] = {}  # group on its way: how many rows its former owner must have
    for what, value in steps:
        case.now_s += 0.3
        if what == "take":
            case.take(value)  # type: ignore[arg-type]
        elif what == "join":
            for to in (P1, P2):
                case.far.join(to)
        elif what == "ack":
            case.acknowledge()
        elif what == "lose":
            case.far.lossy = not case.far.lossy
        elif what == "resend":
            case.splits.resend()
        elif value in held:
            owner = case.map.owner(GroupId(value))  # type: ignore[arg-type]
            case.settle()
            assert any(
                to == owner and isinstance(m, EndOfMovedPartitions) and m.chunk == held[value]  # type: ignore[index]
                for to, m in case.far.markers
            )
            chunk = held.pop(value)  # type: ignore[arg-type]
            assert case.far.had[chunk] == len(case.far.got[owner, value])  # type: ignore[index]
            case.move(value, P2 if owner == P1 else P1)  # type: ignore[arg-type]
        else:
            held[value] = chunk = len(case.far.moving)  # type: ignore[index]
            case.far.moving[chunk] = value  # type: ignore[assignment]
            owner = case.map.owner(GroupId(value))  # type: ignore[arg-type]
            case.splits.hold([GroupId(value)])  # type: ignore[list-item]
            case.splits.mark(MOVE, held[value], owner, [SPLIT])  # type: ignore[index]
    for group in list(held):
        case.settle()
        case.move(group, P1)
    case.settle()
    assert case.splits.joined(SPLIT) == case.splits.splits[SPLIT].taken
    for group in range(PARTITIONS):
        arrived = case.far.got[P1, group] + case.far.got[P2, group]
        assert sorted(arrived) == case.sent[group]
        for to in (P1, P2):
            assert case.far.got[to, group] == sorted(case.far.got[to, group])


def test_a_piece_larger_than_the_window_passes_alone() -> None:
    """A single row may be larger than any credit; it must not wait for ever."""
    case = Case(window_bytes=8)
    case.take([1, 2, 3, 4, 5])
    case.settle()
    assert sum(map(len, case.far.got.values())) == 5


def test_the_end_comes_behind_everything_else() -> None:
    """Also behind what is held back."""
    case = Case(window_bytes=4000)
    group = group_of(7)
    case.splits.hold([GroupId(group)])
    case.take([7, 7])
    case.splits.end([P1, P2])
    assert not any(isinstance(m, EndOfInput) for _, m in case.far.markers)
    case.move(group, P2)
    case.settle()
    case.splits.end([P1, P2])
    case.settle()
    assert {to for to, m in case.far.markers if isinstance(m, EndOfInput)} == {P1, P2}
    assert case.far.got[P2, group] == [0, 1]


def test_a_marker_overtakes_the_queue_with_the_rows_of_its_group() -> None:
    """A move does not wait for what is queued of other groups; credit returns in full."""
    case = Case(window_bytes=4000)
    keys = [k for k in range(40) if group_of(k) in (0, 2)]
    moving = [k for k in keys if group_of(k) == 0]
    case.take(keys)
    case.acknowledge()
    case.settle()
    before = case.far.queues[P1].inbox.outstanding_bytes
    for _ in range(3):
        case.take(keys)
    case.far.moving[0] = 0
    case.splits.hold([GroupId(0)])
    case.splits.mark(MOVE, 0, P1, [SPLIT])
    for _ in range(3 * len(moving)):
        if not case.far.markers:
            case.far.join(P1)
    assert case.far.markers
    assert case.far.got[P1, 0] == case.sent[0]
    assert len(case.far.got[P1, 2]) < len(case.sent[2])
    assert case.splits.joined(SPLIT) == 1  # the batches that were overtaken are not done yet
    case.settle()
    assert case.far.queues[P1].inbox.outstanding_bytes == before
    assert case.splits.joined(SPLIT) == 4


def test_only_groups_on_their_way_wait_while_there_is_memory_to_hold_them_back_in() -> None:
    """Other rows flow on; without such memory the stream waits after two batches of them."""
    case = Case(1 << 20)
    key = next(k for k in range(100) if group_of(k) == 0)
    other = next(k for k in range(100) if group_of(k) == 1)
    case.splits.hold([GroupId(0)])
    case.splits.lent_bytes = 10_000
    for _ in range(40):
        assert case.splits.has_room
        case.take([key, *[other] * 3])
        case.acknowledge()
        for to in (P1, P2):
            case.far.join(to)
    assert case.far.got[P2, 1] == case.sent[1]
    assert case.splits.held_bytes == 40 * (8 + 8 + 4), "a row and the number of its group"
    assert case.splits.borrowed_bytes == 40 * 20 - 2 * 64
    case.splits.lent_bytes = 0
    assert not case.splits.has_room
    case.splits.release([GroupId(0)], P2)
    assert case.splits.held_bytes == 0
    case.settle()
    assert case.far.got[P2, 0] == case.sent[0]


def test_rows_held_back_do_not_keep_their_batch_in_memory() -> None:
    """One row of a thousand is held: what is kept is one row."""
    case = Case(1 << 20)
    key = next(k for k in range(100) if group_of(k) == 0)
    case.splits.hold([GroupId(0)])
    other = next(k for k in range(100) if group_of(k) == 1)
    case.take([key, *[other] * 999])
    [(_, rows, groups)] = case.splits.splits[SPLIT].held
    assert rows.num_rows == 1
    assert rows.get_total_buffer_size() < 200
    assert groups.base is None
