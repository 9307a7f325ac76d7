"""The ways of one query from its splits on this worker to the joins of all workers.

A piece that waits for credit can be called back when its group is held; what was sent is ahead of
the marker. `open_below` follows every piece to its end, so that one can wait until all that was
taken in is joined.

Invariant: per split and group, rows reach their owners in the order in which they were taken in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail_processor.batches import Keyed
from dovetail_processor.moves.link import Outbox
from dovetail_proto.cluster_memory import HELD_BATCHES, WAITING_BATCHES
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, QueryName, SplitId, process_of
from dovetail_proto.messages import EndOfMovedPartitions
from dovetail_proto.partition_map import PartitionMap

if TYPE_CHECKING:
    from dovetail_processor.operators.split import Split

RESEND_S = 0.5
"""After a silence of so long all unacknowledged frames go out again: many round trips, and short
against a move's patience."""

SILENT_S = 10.0
"""A link that is asked twice a second and gives no answer for so long is cut: people should know.
It is tried again for as long as both ends are members."""

Item = Keyed | EndOfMovedPartitions | EndOfInput
Post = Callable[[SplitId, ProcessorId, list[tuple[int, Item | None]]], None]
"""Send frames to a processor's join; they may be lost."""


@dataclass(slots=True)
class _Link:
    """One split's way to one join."""

    outbox: Outbox[Item]
    undone: deque[tuple[int, int]]  # (frame, lowest sequence) of pieces sent and not joined yet
    done_number: int = 0
    heard_s: float = float("inf")  # when an answer last came, or what is unanswered was first sent
    ended: bool = False  # the end of input was sent

    @property
    def unanswered(self) -> bool:
        """Whether something waits, or was sent and is not known to be joined."""
        box = self.outbox
        return bool(box.unacked or box.pending or self.done_number < box.sent_number)


class Links:
    """All splits of one query on this worker, and their links to every processor."""

    def __init__(
        self,
        query: QueryName,
        here: ProcessorId,
        known: PartitionMap,
        *,
        piece_bytes: int,
        post: Post,
    ) -> None:
        self._query = query
        self._here = here
        self._piece_bytes = piece_bytes
        self._post = post
        self.lent_bytes = 0
        """Memory for state that rows may be held back in."""
        self.splits: dict[SplitId, Split] = {}
        self._links: dict[tuple[SplitId, ProcessorId], _Link] = {}
        self.held = np.zeros(known.partitions, np.bool_)
        """Groups whose rows are held back."""
        self._held_since_s = np.zeros(known.partitions, np.float64)
        self.adopt(known)

    def adopt(self, known: PartitionMap) -> None:
        """Route by this map from now on."""
        self.processors = known.processors
        self.owners = known.owners
        process = process_of(self._here)
        self.near = {n for n, p in enumerate(known.processors) if process_of(p) == process}
        """Places in the map of the workers of this process."""

    # How much is on its way -----------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another batch may be routed.

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
        sent = sum(u[2] for link in self._links.values() for u in link.outbox.unacked)
        return self._waiting_bytes + self.held_bytes + sent

    @property
    def _waiting_bytes(self) -> int:
        return sum(p[1] for link in self._links.values() for p in link.outbox.pending)

    @property
    def unanswered(self) -> bool:
        """Whether something waits, or was sent and is not known to be joined."""
        return any(link.unanswered for link in self._links.values())

    # Rows -----------------------------------------------------------------------------------------

    def offer(self, split: SplitId, owner: int, rows: Keyed) -> None:
        """Queue a piece for the processor at this place in the map; `flush` sends it."""
        self._link(split, self.processors[owner]).outbox.offer(rows, rows.size_bytes)

    def flush(self, now_s: float) -> None:
        """Send what credit allows."""
        for (split, to), link in self._links.items():
            if link.outbox.pending:
                self._send(split, to, link, now_s)

    def acknowledged(
        self,
        split: SplitId,
        source: ProcessorId,
        news: tuple[int, int, int],
        now_s: float,
    ) -> None:
        """A join tells how far it is: frames taken, bytes allowed, frames done with."""
        number, allowed_bytes, done = news
        link = self._links.get((split, source))
        if link is None or not done <= number <= link.outbox.sent_number:
            return  # of a link that there is no more
        link.heard_s = now_s
        link.outbox.acknowledged(number, allowed_bytes, now_s)
        link.done_number = max(link.done_number, done)
        while link.undone and link.undone[0][0] <= link.done_number:
            link.undone.popleft()
        self._send(split, source, link, now_s)

    def resend(self, now_s: float) -> None:
        """Send again what nobody acknowledged."""
        for (split, to), link in self._links.items():
            undone = link.done_number < link.outbox.sent_number
            frames = link.outbox.resend(now_s, undone=undone)
            if frames:
                self._post(split, to, frames)

    def silent(self, now_s: float) -> str:
        """Which processor has not answered for long, although it should; empty if all do."""
        for (_, to), link in self._links.items():
            if not link.unanswered:
                link.heard_s = float("inf")
            elif link.heard_s == float("inf"):
                link.heard_s = now_s
            elif now_s - link.heard_s > SILENT_S:
                return (
                    f"processor {to!r} has not answered for {now_s - link.heard_s:.0f} s: see "
                    "whether the two processors reach each other"
                )
        return ""

    def forget(self, gone: ProcessorId) -> None:
        """Close the links to a processor that has left, died without a group or begun anew."""
        for split in self.splits:
            self._links.pop((split, gone), None)

    # Moves ----------------------------------------------------------------------------------------

    def hold(self, groups: Iterable[GroupId], now_s: float) -> None:
        """From now on keep rows of these groups, also those that still wait for credit."""
        chosen = self._mask(groups)
        self.held |= chosen
        self._held_since_s[chosen] = now_s
        for (split, to), link in self._links.items():
            for rows, _ in link.outbox.withdraw(lambda item: isinstance(item, Keyed)):
                assert isinstance(rows, Keyed)
                self._sort_out(split, to, rows, chosen)

    def mark(
        self, move: MoveId, chunk: int, to: ProcessorId, splits: Iterable[SplitId], now_s: float
    ) -> None:
        """Put a marker behind all that was sent to `to`."""
        for split in splits:
            marker = EndOfMovedPartitions(self._query, move, chunk, split)
            self._post(split, to, [*self._link(split, to).outbox.mark(marker, now_s)])

    def release(self, groups: Iterable[GroupId], owner: ProcessorId, now_s: float) -> float:
        """Send what is held of these groups to `owner`, then route them as usual.

        For how many seconds they were held back, the longest.
        """
        chosen = self._mask(groups)
        self.held &= ~chosen
        for split, one in self.splits.items():
            for rows in one.release(chosen):
                self._link(split, owner).outbox.offer(rows, rows.size_bytes)
        self.flush(now_s)
        return now_s - float(self._held_since_s[chosen].min())

    # The end --------------------------------------------------------------------------------------

    def end(self, split: SplitId, peers: Iterable[ProcessorId], now_s: float) -> bool:
        """A split takes nothing more in: every join gets the end once nothing is left before it.

        Whether one got it now.

        To nobody while something is left for anybody: a row that waits here may go to another
        owner than it waits for, behind that one's end. Who comes later gets the end at once.
        """
        without = [to for to in peers if not self._link(split, to).ended]
        if not without or not self._is_empty(split):
            return False
        for to in without:
            link = self._link(split, to)
            link.ended = True
            end = EndOfInput(self._query, split)
            self._post(split, to, [*link.outbox.mark(end, now_s)])
        return True

    def _is_empty(self, split: SplitId) -> bool:
        """Whether all rows that a split took in were sent."""
        one = self.splits[split]
        waiting = any(x.outbox.pending for (s, _), x in self._links.items() if s == split)
        return one.empty and not one.held and not waiting

    def host(self, splits: dict[SplitId, Split]) -> None:
        """Host these splits, and no others, from now on; those that go are `drained`."""
        self.splits = splits
        self._links = {(s, to): link for (s, to), link in self._links.items() if s in splits}

    def drained(self, split: SplitId) -> bool:
        """Whether everything that was routed, and every marker, has arrived and is done with."""
        links = [link for (s, _), link in self._links.items() if s == split]
        return self.splits[split].lowest is None and all(
            not link.outbox.pending
            and not link.outbox.unacked
            and link.done_number == link.outbox.sent_number
            for link in links
        )

    @property
    def delivered(self) -> bool:
        """Whether every join has confirmed all, the end included; nothing is resent then."""
        return all(link.ended and not link.outbox.unacked for link in self._links.values())

    def lowest_open(self, split: SplitId) -> int | None:
        """The lowest sequence that a split has taken and that is not joined; None: all are."""
        found = [link for (s, _), link in self._links.items() if s == split]
        pending = [item for x in found for item, _ in x.outbox.pending]
        waiting = [item.stamped.lowest for item in pending if isinstance(item, Keyed)]
        undone = [sequence for x in found for _, sequence in x.undone]
        here = self.splits[split].lowest
        return min([*waiting, *undone, *([] if here is None else [here])], default=None)

    # Parts ----------------------------------------------------------------------------------------

    def _mask(self, groups: Iterable[GroupId]) -> NDArray[np.bool_]:
        chosen = np.zeros_like(self.held)
        chosen[list(groups)] = True
        return chosen

    def _sort_out(
        self, split: SplitId, to: ProcessorId, rows: Keyed, chosen: NDArray[np.bool_]
    ) -> None:
        """Put a piece that waited back behind the others, without the rows that are held now."""
        mine = rows.positions_in(chosen)
        box = self._link(split, to).outbox
        if not mine.size:
            box.offer(rows, rows.size_bytes)
            return
        self.splits[split].hold(rows.take(mine))
        if mine.size < rows.count:
            rest = rows.take(rows.positions_in(~chosen))
            box.offer(rest, rest.size_bytes)

    def _link(self, split: SplitId, to: ProcessorId) -> _Link:
        link = self._links.get((split, to))
        if link is None:
            link = self._links[split, to] = _Link(Outbox(RESEND_S), deque())
        return link

    def _send(self, split: SplitId, to: ProcessorId, link: _Link, now_s: float) -> None:
        box = link.outbox
        alone = link.done_number == box.sent_number and box.allowed_bytes > box.sent_bytes
        frames = box.flush(now_s, alone=alone)
        for number, item in frames:
            if isinstance(item, Keyed):
                link.undone.append((number, item.stamped.lowest))
        if frames:
            self._post(split, to, [*frames])
        elif box.pending and box.allowed_bytes == 0 and box.sent_s == float("-inf"):
            self._post(split, to, [*box.resend(now_s)])  # ask for the first credit
