"""The end of a link at a join: what arrived and is not joined yet, and the markers between.

    frames, in order ─▶ [ rows 1 │ rows 2 │ MARKER │ rows 4 ] ─▶ the join takes rows 1, 2
    done: 0                                                       finished ─▶ done 2, credit back

The join sees batches up to the next marker only, and a marker comes out when all before it is
joined. So whatever a marker means (a group leaves, an input ends) finds every earlier row in the
state. Credit is given back when rows are joined, so what waits is within the window.

A move should not wait until a long queue is joined. When its marker arrives, it is let past: the
rows before it that belong to moving groups go first, and the marker behind them. Groups do not
meet each other, so only the order within a group counts, and that stays.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from dovetail_processor.batches import Keyed
from dovetail_processor.moves.link import Inbox
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.messages import EndOfMovedPartitions

Marker = EndOfMovedPartitions | EndOfInput


class LinkEnd:
    """One input of a join, fed by one link."""

    def __init__(self, window_bytes: int) -> None:
        self.inbox = Inbox()
        self.inbox.grant(window_bytes)
        self._items: deque[tuple[int, Keyed | Marker | None, int]] = deque()
        """Number, content, size; None: all of it went ahead."""
        self._ahead: deque[Keyed | Marker] = deque()
        self._joining: list[tuple[int, int]] = []  # numbers and sizes of batches taken, unfinished
        self.held_bytes = 0
        """Bytes of the batches that wait or are being joined."""
        self.done_number = 0
        """All frames up to it are joined and their results handed on."""
        self.ended = False
        """Whether the end of input has been reached."""
        self._acknowledged: tuple[int, int, int] | None = None  # None: nothing yet, or it asked

    def arrived(self, number: int, item: Keyed | Marker | None, size_bytes: int) -> bool:
        """A frame came in; out of order or again, it is dropped. None asks for an answer."""
        if item is None or not self.inbox.take(number, size_bytes):
            self._acknowledged = None
            return False
        self._items.append((number, item, size_bytes))
        self.held_bytes += size_bytes
        return True

    def relink(self) -> None:
        """Another host sends from now on: its frames count from 1. All rows that came are joined.

        Markers that nobody looked at, because the join had closed, are of no use any more.
        """
        waiting = (*(item for _, item, _ in self._items), *self._ahead)
        assert not any(isinstance(item, Keyed) for item in waiting)
        assert not self._joining
        self._items.clear()
        self._ahead.clear()
        fresh = Inbox()
        fresh.grant(self.inbox.outstanding_bytes)
        self.inbox, self.done_number, self._acknowledged = fresh, 0, None

    def overtake(self, moving: NDArray[np.bool_]) -> None:
        """Send the marker that came last ahead, behind all rows before it of `moving` groups."""
        number, marker, size_bytes = self._items[-1]
        assert isinstance(marker, EndOfMovedPartitions)
        items = [*self._items]
        items[-1] = (number, None, size_bytes)
        for at, (number, rows, size_bytes) in enumerate(items):
            if isinstance(rows, Keyed) and (first := rows.positions_in(moving)).size:
                self._ahead.append(rows.take(first))
                others = rows.positions_in(~moving)
                rest = rows.take(others) if others.size else None
                items[at] = (number, rest, size_bytes)
        self._ahead.append(marker)
        self._items = deque(items)

    def __len__(self) -> int:
        """Batches at hand: those before the next marker count."""
        return 1 if isinstance(self._front, Keyed) else 0

    @property
    def urgent(self) -> bool:
        """Whether a move waits for the first batch."""
        return bool(self._ahead)

    @property
    def _front(self) -> Keyed | Marker | None:
        if self._ahead:
            return self._ahead[0]
        return self._items[0][1] if self._items else None

    def take(self) -> Keyed:
        """The next batch."""
        rows = self._front
        assert isinstance(rows, Keyed)
        if self._ahead:
            self._ahead.popleft()
        else:
            number, _, size_bytes = self._items.popleft()
            self._joining.append((number, size_bytes))
        return rows

    @property
    def exhausted(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return self.ended and not self._items and not self._ahead

    def finished(self) -> None:
        """What was taken is joined, and its results are out: its room is free again."""
        while not self._ahead and self._items and self._items[0][1] is None:
            number, _, size_bytes = self._items.popleft()
            self._joining.append((number, size_bytes))
        for number, size_bytes in self._joining:
            self.held_bytes -= size_bytes
            self.inbox.grant(size_bytes)
            self.done_number = number
        self._joining.clear()

    def marker(self) -> Marker | None:
        """The marker at the front, taken out. All that was taken must be `finished`."""
        assert not self._joining
        front = self._front
        if front is None or isinstance(front, Keyed):
            return None
        if self._ahead:
            self._ahead.popleft()
        else:
            self.done_number, _, _ = self._items.popleft()
            self.ended |= isinstance(front, EndOfInput)
        self.finished()
        return front

    def news(self) -> tuple[int, int, int] | None:
        """(taken, allowed, done) if the split does not know it yet."""
        now = (self.inbox.number, self.inbox.allowed_bytes, self.done_number)
        if now == self._acknowledged:
            return None
        self._acknowledged = now
        return now
