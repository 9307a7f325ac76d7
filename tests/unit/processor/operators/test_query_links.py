"""Links of a query: credit, what is held back and released in order, and when all is done."""

from __future__ import annotations

import pyarrow as pa

from dovetail_processor.batches import Keyed, Stamped, stamped
from dovetail_processor.graph.arc import Arc
from dovetail_processor.operators.links import RESEND_S, SILENT_S, Item, Links
from dovetail_processor.operators.split import Split
from dovetail_proto.cluster_memory import HELD_BATCHES, WAITING_BATCHES
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, QueryName, SplitId
from dovetail_proto.messages import EndOfMovedPartitions
from dovetail_proto.partition_map import PartitionMap
from kit.spills import make_plan

SCHEMA = pa.schema([("k", pa.int64())])
PLAN = make_plan([SCHEMA, SCHEMA], partitions=4)
SPLIT = SplitId("test/0")
P1, P2 = ProcessorId("p1"), ProcessorId("p2")
PIECE_BYTES = 1 << 20
CREDIT = (0, 1 << 30, 0)
MOVE = MoveId("0000000001-00000001")


class Case:
    """A split whose groups 0 and 1 are p1's, 2 and 3 p2's; what it sends is kept."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self.map = PartitionMap.initial(QueryName("test"), [P1, P1, P2, P2])
        self.sent: dict[ProcessorId, list[tuple[int, Item | None]]] = {P1: [], P2: []}
        self.links = Links(QueryName("test"), P1, self.map, piece_bytes=piece_bytes, post=self.post)
        self.arc: Arc[Stamped] = Arc(1)
        self.split = Split(
            SPLIT, PLAN, 0, arcs=(self.arc,), links=self.links, piece_bytes=piece_bytes
        )
        self.links.host({SPLIT: self.split})
        self.rows = 0

    def post(self, _: SplitId, to: ProcessorId, frames: list[tuple[int, Item | None]]) -> None:
        """Keep them."""
        self.sent[to] += frames

    def take(self, count: int = 40, now_s: float = 0.0) -> None:
        """Rows of all groups."""
        keys = pa.array(range(self.rows, self.rows + count), pa.int64())
        self.arc.offer(stamped(pa.record_batch([keys], schema=SCHEMA), self.rows), now_s)
        self.rows += count
        self.split.step(now_s)

    def grant(self, to: ProcessorId, news: tuple[int, int, int] = CREDIT) -> None:
        """A join answers."""
        self.links.acknowledged(SPLIT, to, news, 0.0)

    def sequences(self, to: ProcessorId, *groups: int) -> list[int]:
        """Of the rows that were sent to a join, of these groups."""
        return [
            int(s)
            for _, item in self.sent[to]
            if isinstance(item, Keyed)
            for s, g in zip(item.stamped.sequences(), item.groups, strict=True)
            if g in groups
        ]


def test_the_first_credit_is_asked_for_and_rows_wait_for_it() -> None:
    """Frame 0 is a probe; rows go to the owners of their groups only."""
    case = Case()
    case.take()
    assert case.sent == {P1: [(0, None)], P2: [(0, None)]}
    for to in (P1, P2):
        case.grant(to)
    assert case.sequences(P1, 2, 3) == case.sequences(P2, 0, 1) == []
    assert sorted(case.sequences(P1, 0, 1) + case.sequences(P2, 2, 3)) == list(range(40))


def test_rows_that_wait_for_credit_make_their_stream_wait() -> None:
    """The join is behind."""
    case = Case(piece_bytes=100)
    while case.links.has_room:
        case.take(10)
    assert case.links.queued_bytes >= WAITING_BATCHES * 100
    for to in (P1, P2):
        case.grant(to)
    assert case.links.has_room


def test_held_rows_go_out_in_order_behind_those_that_were_sent() -> None:
    """Also those that waited for credit when their group was held; other groups flow on."""
    case = Case()
    case.take()
    case.links.hold([GroupId(0)], 1.0)
    for to in (P1, P2):
        case.grant(to)
    case.take(now_s=2.0)
    assert case.sequences(P1, 0) == []
    assert case.sequences(P1, 1) == sorted(case.sequences(P1, 1))
    assert len(case.sequences(P1, 1)) + len(case.sequences(P2, 2, 3)) < 80
    assert case.links.release([GroupId(0)], P2, 4.5) == 3.5
    case.take(now_s=5.0)  # the map names the former owner still, as before it is adopted
    held = case.sequences(P2, 0)
    assert held == sorted(held)
    assert case.split.held_bytes == 0
    everything = case.sequences(P1, 0, 1) + case.sequences(P2, 0, 2, 3)
    assert sorted(everything) == list(range(120))


def test_a_group_that_is_released_leaves_the_others_held() -> None:
    """And in order."""
    case = Case()
    for to in (P1, P2):
        case.grant(to)
    case.links.hold([GroupId(0), GroupId(1)], 0.0)
    case.take()
    case.take()
    case.links.release([GroupId(1)], P1, 1.0)
    assert case.sequences(P1, 0) == []
    one = case.sequences(P1, 1)
    assert one == sorted(one)
    assert all((rows.groups == 0).all() for rows in case.split.held)
    assert case.split.held_bytes == sum(rows.size_bytes for rows in case.split.held)


def test_rows_held_back_make_their_stream_wait_when_no_memory_is_lent() -> None:
    """What is held beyond the split's own share is borrowed."""
    case = Case(piece_bytes=100)
    for to in (P1, P2):
        case.grant(to)
    case.links.hold([GroupId(g) for g in range(4)], 0.0)
    while case.links.has_room:
        case.take(10)
    assert case.links.held_bytes >= HELD_BATCHES * 100
    case.links.lent_bytes = 1_000
    assert case.links.has_room
    case.take(10)
    assert case.links.borrowed_bytes == case.links.held_bytes - HELD_BATCHES * 100


def test_a_marker_goes_behind_what_was_sent_and_ahead_of_what_waits() -> None:
    """It needs no credit."""
    case = Case()
    case.take()
    case.links.mark(MOVE, 3, P1, [SPLIT], 0.0)
    [_, (number, marker)] = case.sent[P1]
    assert (number, marker) == (1, EndOfMovedPartitions(QueryName("test"), MOVE, 3, SPLIT))
    case.grant(P1, (1, 1 << 30, 1))
    assert case.sent[P1][-1][0] == 2


def test_the_lowest_open_sequence_follows_rows_until_they_are_joined() -> None:
    """On their way to the split, held back, waiting for credit, sent: until the join is done."""
    case = Case()
    assert case.links.lowest_open(SPLIT) is None
    case.take()
    assert case.links.lowest_open(SPLIT) == 0
    for to in (P1, P2):
        case.grant(to)
        case.grant(to, (1, 1 << 30, 0))
    assert case.links.lowest_open(SPLIT) == 0, "taken in is not joined"
    for to in (P1, P2):
        case.grant(to, (1, 1 << 30, 1))
    assert case.links.lowest_open(SPLIT) is None
    assert case.links.drained(SPLIT)
    case.links.hold([GroupId(g) for g in range(4)], 0.0)
    case.take()
    assert case.links.lowest_open(SPLIT) == 40
    assert not case.links.drained(SPLIT)


def test_what_nobody_acknowledged_is_sent_again_after_a_while() -> None:
    """And then what is taken in and not known to be joined is asked for."""
    case = Case()
    case.take()
    for to in (P1, P2):
        case.grant(to)
        case.sent[to].clear()
    case.links.resend(RESEND_S - 0.01)
    assert case.sent == {P1: [], P2: []}
    case.grant(P2, (1, 1 << 30, 0))
    case.links.resend(RESEND_S)
    assert [number for number, _ in case.sent[P1]] == [1]
    assert case.sent[P2] == [(0, None)]
    case.grant(P2, (1, 1 << 30, 1))
    case.sent[P2].clear()
    case.links.resend(9.0)
    assert case.sent[P2] == []


def test_the_end_is_sent_once_and_all_is_delivered_when_it_is_confirmed() -> None:
    """Not while rows wait before it."""
    case = Case()
    case.take()
    case.links.end(SPLIT, [P1, P2], 0.0)
    assert not any(isinstance(i, EndOfInput) for f in case.sent.values() for _, i in f)
    for to in (P1, P2):
        case.grant(to)
    for _ in range(2):
        case.links.end(SPLIT, [P1, P2], 0.0)
    ends = [n for f in case.sent.values() for n, i in f if isinstance(i, EndOfInput)]
    assert ends == [2, 2]
    assert not case.links.delivered
    for to in (P1, P2):
        case.grant(to, (2, 1 << 30, 1))
    assert case.links.delivered


def test_answers_of_a_link_that_there_is_no_more_change_nothing() -> None:
    """A processor that was started again counts from 1, and so does who sends to it."""
    case = Case()
    case.take()
    case.grant(P1)
    for impossible in ((7, 1 << 30, 7), (1, 1 << 30, 2)):
        case.grant(P1, impossible)
    case.grant(P1, (1, 1 << 30, 1))
    case.links.forget(P2)
    assert case.links.drained(SPLIT)


def test_links_to_a_processor_that_has_left_are_closed() -> None:
    """Nobody waits for its answers."""
    case = Case()
    case.take()
    case.grant(P1)
    case.grant(P1, (1, 1 << 30, 1))
    assert case.links.unanswered
    case.links.forget(P2)
    assert not case.links.unanswered


def test_a_processor_that_does_not_answer_for_long_is_named() -> None:
    """Two processors that both reach the manager may be cut off from each other for ever."""
    case = Case()
    case.take()
    case.grant(P1)
    assert case.links.silent(0.0) == ""
    case.grant(P1, (len(case.sent[P1]) - 1, 1 << 30, len(case.sent[P1]) - 1))
    assert case.links.silent(SILENT_S) == "", "it is asked for so long"
    assert "processor 'p2' has not answered for 11 s" in case.links.silent(SILENT_S + 1)
    case.links.acknowledged(SPLIT, P2, CREDIT, SILENT_S + 2)
    assert case.links.silent(SILENT_S + 3) == ""


def test_rows_held_back_keep_nothing_of_the_batch_that_they_came_with() -> None:
    """What is counted is what is kept: the others' rows can go."""
    case = Case()
    case.links.hold([GroupId(0)], 0.0)
    case.take(4_000)
    kept = sum(rows.rows.get_total_buffer_size() for rows in case.split.held)
    assert 0 < kept <= 2 * case.split.held_bytes
