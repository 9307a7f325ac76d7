"""The splits of one query on one processor: rows to the owners of their groups, or held back.

    stream's batch ─▶ evaluate ─▶ hash ─▶ group ─▶ owner by the map ─┬▶ outbox to p1 ─▶ link
                                             │                       └▶ outbox to p2 ─▶ link
                                             └▶ held back: its group is being moved

A batch is cut by owner in one vectorised pass. A piece that waits for credit can be called back
when its group is held; what was sent is ahead of the marker. `joined(i)` follows every piece to
its end, so that one can wait until all that was taken in is joined.

Invariant: per split and group, rows reach their owners in the order in which they were taken in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.expressions import below_join
from dovetail_processor.join.kernels.columns import sort_by_group
from dovetail_processor.moves.link import Outbox
from dovetail_proto.arrow_bytes import from_bytes, to_bytes
from dovetail_proto.cluster_memory import HELD_BATCHES, WAITING_BATCHES
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, QueryName, SplitId, input_of
from dovetail_proto.messages import EndOfMovedPartitions
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.query import QueryPlan

RESEND_S = 0.5
"""After a silence of so long all unacknowledged frames go out again: many round trips, and short
against a move's patience."""

_ALL = np.zeros(0, np.bool_)  # rows without a null in the key; others never match


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one batch for one owner: as they are for our own instance, else as bytes."""

    sequence: int  # of the batch, per split
    rows: int
    content: pa.RecordBatch | bytes

    @property
    def size_bytes(self) -> int:
        """What it takes of the credit."""
        return len(self.content) if isinstance(self.content, bytes) else int(self.content.nbytes)


Item = Piece | EndOfMovedPartitions | EndOfInput
Post = Callable[[SplitId, ProcessorId, list[tuple[int, Item | None]]], None]
"""Send frames to a processor's instance; they may be lost."""


@dataclass(slots=True)
class _Link:
    """One split's way to one instance."""

    outbox: Outbox[Item]
    undone: deque[tuple[int, int]]  # (frame, sequence) of pieces sent and not joined yet
    done_number: int = 0
    ended: bool = False  # the end of input was sent


def groups_of(
    plan: QueryPlan, index: int, kept: pa.RecordBatch
) -> tuple[NDArray[np.int32], NDArray[np.bool_] | None]:
    """The group of every row of an input, and which rows have a whole key (None: all)."""
    columns = [kept.column(name) for name in plan.inputs[index].key]
    keys = canonical_keys(columns, plan.key_types)
    return partition_ids(keys.hashes, plan.partitions), keys.valid


class Split:
    """One input's split: the vectorised part."""

    def __init__(self, plan: QueryPlan, index: int, piece_bytes: int) -> None:
        self._plan = plan
        self._index = index
        self._piece_bytes = piece_bytes
        self._evaluator = below_join(plan.inputs[index])
        self.taken = 0  # batches taken in; numbers them
        self.rows = 0
        self.held: deque[tuple[int, pa.RecordBatch, NDArray[np.int32]]] = deque()
        """(sequence, rows, their groups) of groups that are being moved, in order."""
        self.held_bytes = 0  # of `held`

    @property
    def reads(self) -> list[str]:
        """The stream's columns that it needs."""
        return self._evaluator.reads

    def cut(
        self, batch: pa.RecordBatch, owners: NDArray[np.int32], held: NDArray[np.bool_]
    ) -> list[tuple[int, pa.RecordBatch]]:
        """Take a batch in: pieces of bounded size by owner; held rows are kept here."""
        self.taken += 1
        self.rows += batch.num_rows
        kept = self._evaluator.run(batch)
        if kept.num_rows == 0:
            return []
        groups, valid = groups_of(self._plan, self._index, kept)
        nobody = int(owners.max()) + 1  # the owner of what is held back
        to = owners[groups]
        if held.any():
            to[held[groups]] = nobody
        order, starts = sort_by_group(to, _ALL if valid is None else valid, nobody + 1)
        to_whom = np.flatnonzero(np.diff(starts)).tolist()
        if len(to_whom) > 1 or order.size < kept.num_rows:
            kept = kept.take(pa.array(order))
            groups = groups[order]
        out: list[tuple[int, pa.RecordBatch]] = []
        for owner in to_whom:
            a, b = int(starts[owner]), int(starts[owner + 1])
            if owner == nobody:
                # A copy: a slice would keep the whole batch in memory for as long as it is held.
                self.hold(self.taken, kept.take(pa.array(np.arange(a, b))), groups[a:b].copy())
            else:
                out += [(owner, p) for p in self._bounded(kept.slice(a, b - a))]
        return out

    def hold(self, sequence: int, rows: pa.RecordBatch, groups: NDArray[np.int32]) -> None:
        """Keep rows back."""
        self.held.append((sequence, rows, groups))
        self.held_bytes += rows.nbytes + groups.nbytes

    def release(self, chosen: NDArray[np.bool_]) -> list[tuple[int, pa.RecordBatch]]:
        """Take the held rows of the chosen groups out, in order: (sequence, rows)."""
        out: list[tuple[int, pa.RecordBatch]] = []
        held, self.held, self.held_bytes = self.held, deque(), 0
        for sequence, rows, groups in held:
            free = chosen[groups]
            if free.any():
                taken = rows if free.all() else rows.filter(pa.array(free))
                out += [(sequence, p) for p in self._bounded(taken)]
            if not free.all():
                self.hold(sequence, rows.filter(pa.array(~free)), groups[~free])
        return out

    def _bounded(self, part: pa.RecordBatch) -> list[pa.RecordBatch]:
        pieces = -(-part.nbytes // self._piece_bytes)
        if pieces <= 1:
            return [part]
        step = -(-part.num_rows // pieces)
        return [part.slice(a, step) for a in range(0, part.num_rows, step)]


class Splits:
    """All splits of one query that this processor hosts, and their links to every instance."""

    def __init__(
        self,
        query: QueryName,
        here: ProcessorId,
        plan: QueryPlan,
        splits: Iterable[SplitId],
        known: PartitionMap,
        *,
        piece_bytes: int,
        post: Post,
        clock: Callable[[], float],
    ) -> None:
        self._query = query
        self._here = here
        self._plan = plan
        self._post = post
        self._clock = clock
        self._piece_bytes = piece_bytes
        self.lent_bytes = 0  # memory for state that rows may be held back in
        self.splits = {s: Split(plan, input_of(s), piece_bytes) for s in splits}
        self.links: dict[tuple[SplitId, ProcessorId], _Link] = {}
        self.held = np.zeros(plan.partitions, np.bool_)
        self.held_since_s = np.zeros(plan.partitions, np.float64)
        self.ending = False
        self.adopt(known)

    def adopt(self, known: PartitionMap) -> None:
        """Route by this map from now on."""
        self._map = known
        self._owners = known.owners

    @property
    def has_room(self) -> bool:
        """Whether another batch may be taken in.

        Rows that wait for credit make their stream wait, for the join is behind. Rows of groups
        that move make it wait only when there is no more memory to hold them back in.
        """
        if self._waiting_bytes >= WAITING_BATCHES * self._piece_bytes:
            return False
        return self.held_bytes < HELD_BATCHES * self._piece_bytes + self.lent_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that are held back."""
        return sum(s.held_bytes for s in self.splits.values())

    @property
    def borrowed_bytes(self) -> int:
        """Bytes that are held back in memory for state."""
        return max(0, self.held_bytes - HELD_BATCHES * self._piece_bytes)

    @property
    def queued_bytes(self) -> int:
        """What waits for credit, is held back, or is sent and not acknowledged."""
        sent = sum(u[2] for link in self.links.values() for u in link.outbox.unacked)
        return self._waiting_bytes + self.held_bytes + sent

    @property
    def _waiting_bytes(self) -> int:
        return sum(p[1] for link in self.links.values() for p in link.outbox.pending)

    def take(self, split: SplitId, batch: pa.RecordBatch) -> None:
        """Route a batch of the stream."""
        one = self.splits[split]
        for owner, rows in one.cut(batch, self._owners, self.held):
            self._offer(split, self._map.processors[owner], one.taken, rows)
        self._flush()

    def hold(self, groups: Iterable[GroupId]) -> None:
        """From now on keep rows of these groups, also those that still wait for credit."""
        chosen = np.zeros_like(self.held)
        chosen[list(groups)] = True
        self.held |= chosen
        self.held_since_s[chosen] = self._clock()
        for (split, to), link in self.links.items():
            waiting = link.outbox.withdraw(lambda item: isinstance(item, Piece))
            for piece, _ in waiting:
                assert isinstance(piece, Piece)
                self._sort_out(split, to, piece, chosen)

    def mark(self, move: MoveId, chunk: int, to: ProcessorId, splits: Iterable[SplitId]) -> None:
        """Put a marker behind all that was sent to `to`."""
        for split in splits:
            link = self._link(split, to)
            marker = EndOfMovedPartitions(self._query, move, chunk, split)
            self._post(split, to, [*link.outbox.mark(marker, self._clock())])

    def release(self, groups: Iterable[GroupId], owner: ProcessorId) -> float:
        """Send what is held of these groups to `owner`, then route them as usual.

        For how many seconds they were held back, the longest.
        """
        chosen = np.zeros_like(self.held)
        chosen[list(groups)] = True
        self.held &= ~chosen
        held_s = self._clock() - float(self.held_since_s[chosen].min())
        for split, one in self.splits.items():
            for sequence, rows in one.release(chosen):
                self._offer(split, owner, sequence, rows)
        self._flush()
        return held_s

    def acknowledged(
        self, split: SplitId, source: ProcessorId, number: int, allowed_bytes: int, done: int
    ) -> None:
        """An instance tells how far it is."""
        link = self.links.get((split, source))
        if link is None:
            return
        link.outbox.acknowledged(number, allowed_bytes, self._clock())
        link.done_number = max(link.done_number, done)
        while link.undone and link.undone[0][0] <= link.done_number:
            link.undone.popleft()
        self._send(split, source, link)

    def end(self, peers: Iterable[ProcessorId]) -> None:
        """Nothing more is taken in: every instance gets the end once nothing is left before it."""
        self.ending = True
        for split, one in self.splits.items():
            for to in peers:
                link = self._link(split, to)
                if not link.ended and not link.outbox.pending and not one.held:
                    link.ended = True
                    end = EndOfInput(self._query, split)
                    self._post(split, to, [*link.outbox.mark(end, self._clock())])

    def host(self, splits: Iterable[SplitId]) -> None:
        """Host these splits, and no others, from now on; those that go are `drained`."""
        wanted = set(splits)
        for gone in set(self.splits) - wanted:
            del self.splits[gone]
        self.links = {(s, to): link for (s, to), link in self.links.items() if s in wanted}
        for new in wanted - set(self.splits):
            self.splits[new] = Split(self._plan, input_of(new), self._piece_bytes)

    def drained(self, split: SplitId) -> bool:
        """Whether everything that was taken in, and every marker, has arrived and is done with."""
        links = [link for (s, _), link in self.links.items() if s == split]
        return not self.splits[split].held and all(
            not link.outbox.pending
            and not link.outbox.unacked
            and link.done_number == link.outbox.sent_number
            for link in links
        )

    @property
    def delivered(self) -> bool:
        """Whether every instance has confirmed all, the end included; nothing is resent then."""
        return all(link.ended and not link.outbox.unacked for link in self.links.values())

    def joined(self, split: SplitId) -> int:
        """All batches up to this number are joined, every row of them."""
        one = self.splits[split]
        open_ones = [sequence for sequence, _, _ in one.held]
        for (s, _), link in self.links.items():
            if s == split:
                open_ones += [p.sequence for p, _ in link.outbox.pending if isinstance(p, Piece)]
                open_ones += [sequence for _, sequence in link.undone]
        return min(open_ones, default=one.taken + 1) - 1

    def resend(self) -> None:
        """Send again what nobody acknowledged."""
        for (split, to), link in self.links.items():
            undone = link.done_number < link.outbox.sent_number
            frames = link.outbox.resend(self._clock(), undone=undone)
            if frames:
                self._post(split, to, frames)

    def forget(self, gone: ProcessorId) -> None:
        """Close the links to a processor that has left or died without a group."""
        for split in self.splits:
            self.links.pop((split, gone), None)

    def _offer(self, split: SplitId, to: ProcessorId, sequence: int, rows: pa.RecordBatch) -> None:
        content = rows if to == self._here else to_bytes(rows)
        piece = Piece(sequence, rows.num_rows, content)
        self._link(split, to).outbox.offer(piece, piece.size_bytes)

    def _sort_out(
        self, split: SplitId, to: ProcessorId, piece: Piece, chosen: NDArray[np.bool_]
    ) -> None:
        """Put a piece that waited back behind the others, without the rows that are held now."""
        one = self.splits[split]
        rows = piece.content
        if isinstance(rows, bytes):
            schema = self._plan.inputs[input_of(split)].kept
            rows = from_bytes(rows, schema, f"a piece of {split}")
        groups, _ = groups_of(self._plan, input_of(split), rows)
        mine = chosen[groups]
        if not mine.any():
            self._link(split, to).outbox.offer(piece, piece.size_bytes)
            return
        one.hold(piece.sequence, rows.filter(pa.array(mine)), groups[mine])
        if not mine.all():
            self._offer(split, to, piece.sequence, rows.filter(pa.array(~mine)))

    def _link(self, split: SplitId, to: ProcessorId) -> _Link:
        link = self.links.get((split, to))
        if link is None:
            link = self.links[split, to] = _Link(Outbox(RESEND_S), deque())
        return link

    def _flush(self) -> None:
        for (split, to), link in self.links.items():
            if link.outbox.pending:
                self._send(split, to, link)

    def _send(self, split: SplitId, to: ProcessorId, link: _Link) -> None:
        box = link.outbox
        alone = link.done_number == box.sent_number and box.allowed_bytes > box.sent_bytes
        frames = box.flush(self._clock(), alone=alone)
        for number, item in frames:
            if isinstance(item, Piece):
                link.undone.append((number, item.sequence))
        if frames:
            self._post(split, to, [*frames])
        elif box.pending and box.allowed_bytes == 0 and box.sent_s == float("-inf"):
            self._post(split, to, [*box.resend(self._clock())])  # ask for the first credit
