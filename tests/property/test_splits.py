"""Splits: every row reaches the owner of its group once, in order, whatever is held and when."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dovetail_manager.planner import plan_query
from dovetail_processor.batches import Keyed, Stamped, stamped
from dovetail_processor.graph.arc import Arc
from dovetail_processor.operators.link_end import LinkEnd
from dovetail_processor.operators.links import Item, Links
from dovetail_processor.operators.split import Split
from dovetail_processor.shell.frames import pack, unpack
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
    """Both joins: link ends that take one batch at a time and note what came for which group."""

    def __init__(self, window_bytes: int, near: bool) -> None:
        self.near = near
        self.ends = {p: LinkEnd(window_bytes) for p in (P1, P2)}
        self.got: dict[tuple[ProcessorId, int], list[int]] = defaultdict(list)
        self.markers: list[tuple[ProcessorId, object]] = []
        self.moving: dict[int, int] = {}  # chunk: its group, whose rows a marker may overtake with
        self.had: dict[int, int] = {}  # chunk: rows of its group when its marker came through
        self.posts = 0
        self.lossy = False

    def post(self, split: SplitId, to: ProcessorId, frames: list[tuple[int, Item | None]]) -> None:
        """Frames arrive, unless they are lost; at p2 through bytes, unless it is near."""
        self.posts += len(frames)
        for number, item in frames:
            if self.lossy and number % 2:
                continue
            size_bytes = item.size_bytes if isinstance(item, Keyed) else 0
            came = (split, number, item, size_bytes)
            if to != P1 and not self.near:
                came = unpack(pack(*came[:3]), lambda _: PLAN)
            _, number_, item_, size_ = came
            end = self.ends[to]
            if end.arrived(number_, item_, size_) and isinstance(item_, EndOfMovedPartitions):
                end.overtake(np.arange(PARTITIONS) == self.moving[item_.chunk])

    def join(self, to: ProcessorId) -> None:
        """Take in one batch, or the markers at the front."""
        end = self.ends[to]
        if len(end):
            batch = end.take()
            numbers = batch.rows["n"].to_numpy()
            for at in batch.positions.tolist():
                self.got[to, int(batch.groups[at])].append(int(numbers[at]))
            assert batch.count == batch.positions.size
            assert batch.stamped.sequences().tolist() == numbers.tolist()
            end.finished()
        while (marker := end.marker()) is not None:
            self.markers.append((to, marker))
            if isinstance(marker, EndOfMovedPartitions):
                self.had[marker.chunk] = len(self.got[to, self.moving[marker.chunk]])


class Case:
    """A split on p1 with links to both joins; `near`: they are workers of one process."""

    def __init__(self, window_bytes: int, *, near: bool = False) -> None:
        self.now_s = 0.0
        self.near = near
        self.far = Far(window_bytes, near)
        self.map = PartitionMap.initial(
            QueryName("q"), [(P1, P2)[g % 2] for g in range(PARTITIONS)]
        )
        self.links = Links(QueryName("q"), P1, self.map, piece_bytes=64, post=self.far.post)
        self._adopt()
        self.arc: Arc[Stamped] = Arc(1)
        self.split = Split(SPLIT, PLAN, 0, arcs=(self.arc,), links=self.links, piece_bytes=64)
        self.links.host({SPLIT: self.split})
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.count = 0

    def take(self, keys: list[int | None]) -> None:
        """A batch of the stream; null keys go nowhere. A row holds its own sequence."""
        numbers = list(range(self.count, self.count + len(keys)))
        for key, n in zip(keys, numbers, strict=True):
            if key is not None:
                self.sent[group_of(key)].append(n)
        rows = [pa.array(keys, pa.int64()), pa.array(numbers, pa.int64())]
        batch = pa.RecordBatch.from_arrays(rows, schema=SCHEMA)
        self.arc.offer(stamped(batch, self.count), self.now_s)
        self.count += len(keys)
        self.split.step(self.now_s)

    def hold(self, group: int) -> None:
        """Rows of a group wait from now on."""
        self.links.hold([GroupId(group)], self.now_s)

    def mark(self, chunk: int, to: ProcessorId) -> None:
        """The marker of a chunk goes behind what was sent."""
        self.links.mark(MOVE, chunk, to, [SPLIT], self.now_s)

    def acknowledge(self) -> None:
        """Both joins tell how far they are."""
        for to, end in self.far.ends.items():
            told = end.news()
            if told is not None:
                self.links.acknowledged(SPLIT, to, told, self.now_s)

    def settle(self) -> None:
        """Let everything arrive and be joined: then nothing is sent again."""
        self.far.lossy = False
        for _ in range(10_000):
            self.now_s += 1.0
            before = self.far.posts
            self.links.resend(self.now_s)
            if self.far.posts == before:
                return
            for to in (P1, P2):
                self.far.join(to)
            self.acknowledge()
        raise AssertionError("something never arrives")

    def release(self, group: int, to: ProcessorId) -> None:
        """A group's rows flow on."""
        self.links.release([GroupId(group)], to, self.now_s)

    def move(self, group: int, to: ProcessorId) -> None:
        """The end of a move: the map names another owner, and the group is released to it."""
        self.map = self.map.moved([GroupId(group)], to)
        self._adopt()
        self.release(group, to)

    def _adopt(self) -> None:
        self.links.adopt(self.map)
        if self.near:
            self.links.near = set(range(len(self.map.processors)))


KEYS = st.lists(st.none() | st.integers(0, 30), max_size=12)
STEPS = st.lists(
    st.tuples(st.just("take"), KEYS)
    | st.tuples(st.sampled_from(["join", "ack", "lose", "resend"]), st.just(None))
    | st.tuples(st.just("move"), st.integers(0, PARTITIONS - 1)),
    max_size=40,
)


@given(STEPS, st.sampled_from([40, 200, 4000]), st.booleans())
def test_rows_reach_the_owner_of_their_group_once_and_in_order(
    steps: list[tuple[str, object]], window_bytes: int, near: bool
) -> None:
    """Through credit, loss, and moves that hold groups back in the middle of it all."""
    case = Case(window_bytes, near=near)
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
            case.links.resend(case.now_s)
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
            case.hold(value)  # type: ignore[arg-type]
            case.mark(chunk, owner)
    for group in list(held):
        case.settle()
        case.move(group, P1)
    case.settle()
    assert case.links.lowest_open(SPLIT) is None
    assert case.links.drained(SPLIT)
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
    case.hold(group)
    case.take([7, 7])
    case.links.end(SPLIT, [P1, P2], 0.0)
    assert not any(isinstance(m, EndOfInput) for _, m in case.far.markers)
    case.move(group, P2)
    case.settle()
    case.links.end(SPLIT, [P1, P2], case.now_s)
    case.settle()
    assert {to for to, m in case.far.markers if isinstance(m, EndOfInput)} == {P1, P2}
    assert case.far.got[P2, group] == [0, 1]
    assert case.links.delivered


def test_a_marker_overtakes_the_queue_with_the_rows_of_its_group() -> None:
    """A move does not wait for what is queued of other groups; credit returns in full."""
    case = Case(window_bytes=4000)
    keys = [k for k in range(40) if group_of(k) in (0, 2)]
    moving = [k for k in keys if group_of(k) == 0]
    case.take(keys)
    case.acknowledge()
    case.settle()
    before = case.far.ends[P1].inbox.outstanding_bytes
    for _ in range(3):
        case.take(keys)
    case.far.moving[0] = 0
    case.hold(0)
    case.mark(0, P1)
    for _ in range(3 * len(moving)):
        if not case.far.markers:
            case.far.join(P1)
    assert case.far.markers
    assert case.far.got[P1, 0] == case.sent[0]
    assert len(case.far.got[P1, 2]) < len(case.sent[2])
    assert case.links.lowest_open(SPLIT) == len(keys), "the first batch is joined, no other is"
    case.settle()
    assert case.far.ends[P1].inbox.outstanding_bytes == before
    assert case.links.lowest_open(SPLIT) is None


def test_only_groups_on_their_way_wait_while_there_is_memory_to_hold_them_back_in() -> None:
    """Other rows flow on; without such memory the stream waits after two batches of them."""
    case = Case(1 << 20)
    key = next(k for k in range(100) if group_of(k) == 0)
    other = next(k for k in range(100) if group_of(k) == 1)
    case.hold(0)
    case.links.lent_bytes = 10_000
    for _ in range(40):
        assert case.links.has_room
        case.take([key, *[other] * 3])
        case.acknowledge()
        for to in (P1, P2):
            case.far.join(to)
    assert case.far.got[P2, 1] == case.sent[1]
    assert case.links.held_bytes == 40 * (8 + 8 + 4), "a row and its sequence"
    assert case.links.borrowed_bytes == 40 * 20 - 2 * 64
    case.links.lent_bytes = 0
    assert not case.links.has_room
    case.release(0, P2)
    assert case.links.held_bytes == 0
    case.settle()
    assert case.far.got[P2, 0] == case.sent[0]


def test_rows_held_back_do_not_keep_their_batch_in_memory() -> None:
    """One row of a thousand is held: what is kept is one row."""
    case = Case(1 << 20)
    key = next(k for k in range(100) if group_of(k) == 0)
    case.hold(0)
    other = next(k for k in range(100) if group_of(k) == 1)
    case.take([key, *[other] * 999])
    [held] = case.split.held
    assert held.rows.num_rows == 1
    assert held.rows.get_total_buffer_size() < 200
    assert held.groups.base is None
    assert held.stamped.offsets is not None
    assert held.stamped.offsets.base is None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_the_workers_of_a_process_share_a_batch_and_count_all_of_it(keys: list[int]) -> None:
    """Nothing is copied where both have rows; what both say that they hold is all of the batch."""
    case = Case(window_bytes=1 << 20, near=True)
    case.split = Split(SPLIT, PLAN, 0, arcs=(case.arc,), links=case.links, piece_bytes=1 << 20)
    case.links.host({SPLIT: case.split})
    case.take(keys)
    case.acknowledge()
    shared = [end.take() for end in case.far.ends.values() if len(end)]
    assert sum(x.count for x in shared) == len(keys)
    assert sum(x.size_bytes for x in shared) >= max(x.stamped.size_bytes for x in shared) - 1
    assert len({id(x.rows) for x in shared}) == 1
