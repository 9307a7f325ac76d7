"""What has arrived on one link and waits for the join: batches, and markers between them.

    link ─▶ [ batch │ batch │ marker │ batch │ end ] ─▶ join takes batches; a marker at the front
                                                        is for the instance, which sees that all
                                                        before it is joined
    overtake:  [ rows of the moving groups │ marker ] go ahead of everything that waits

Credit is the room in here: what the join has taken and finished may be sent anew.

A move holds its groups back until their marker is through, so it must not wait for the queue: the
rows before it that belong to moving groups go first, and the marker behind them. Groups do not
meet each other, so only the order within a group counts, and that stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.moves.link import Inbox
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.messages import EndOfMovedPartitions

Marker = EndOfMovedPartitions | EndOfInput


class InputQueue:
    """An arc as the join sees it (`len`, `take`, `exhausted`), fed by one link."""

    def __init__(self, window_bytes: int) -> None:
        self.inbox = Inbox()
        self.inbox.grant(window_bytes)
        self._items: deque[tuple[int, pa.RecordBatch | Marker | None, int]] = deque()
        """Number, content, size; None: all of it went ahead."""
        self._ahead: deque[pa.RecordBatch | Marker] = deque()
        self._joining: list[tuple[int, int]] = []  # numbers and sizes of batches taken, unfinished
        self.held_bytes = 0
        """Bytes of the batches that wait or are being joined."""
        self.done_number = 0
        """All frames up to it are joined and their results handed on."""
        self.ended = False
        """Whether the end of input has been reached."""
        self.told: tuple[int, int, int] | None = None
        """What the split was told last; None: nothing yet, or it asked."""

    def arrived(self, number: int, item: pa.RecordBatch | Marker | None, size_bytes: int) -> bool:
        """A frame came in; out of order or again, it is dropped. None asks for an answer."""
        if item is None or not self.inbox.take(number, size_bytes):
            self.told = None
            return False
        self._items.append((number, item, size_bytes))
        self.held_bytes += size_bytes
        return True

    def relink(self) -> None:
        """Another host sends from now on: its frames count from 1. All rows that came are joined.

        Markers that nobody looked at, because the instance had closed, are of no use any more.
        """
        waiting = (*(item for _, item, _ in self._items), *self._ahead)
        assert not any(isinstance(item, pa.RecordBatch) for item in waiting)
        assert not self._joining
        self._items.clear()
        self._ahead.clear()
        fresh = Inbox()
        fresh.grant(self.inbox.outstanding_bytes)
        self.inbox, self.done_number, self.told = fresh, 0, None

    def overtake(self, moving: Callable[[pa.RecordBatch], NDArray[np.bool_]]) -> None:
        """Send the marker that came last ahead, behind all rows before it that are `moving`."""
        number, marker, size_bytes = self._items[-1]
        assert isinstance(marker, EndOfMovedPartitions)
        items = [*self._items]
        items[-1] = (number, None, size_bytes)
        for at, (number, batch, size_bytes) in enumerate(items):
            if isinstance(batch, pa.RecordBatch) and (chosen := moving(batch)).any():
                self._ahead.append(batch.filter(pa.array(chosen)))
                rest = None if chosen.all() else batch.filter(pa.array(~chosen))
                items[at] = (number, rest, size_bytes)
        self._ahead.append(marker)
        self._items = deque(items)

    def __len__(self) -> int:
        """Batches at hand: those before the next marker count."""
        return 1 if isinstance(self._front, pa.RecordBatch) else 0

    @property
    def urgent(self) -> bool:
        """Whether a move waits for the first batch."""
        return bool(self._ahead)

    @property
    def _front(self) -> pa.RecordBatch | Marker | None:
        if self._ahead:
            return self._ahead[0]
        return self._items[0][1] if self._items else None

    def take(self) -> pa.RecordBatch:
        """The next batch."""
        batch = self._front
        assert isinstance(batch, pa.RecordBatch)
        if self._ahead:
            self._ahead.popleft()
        else:
            number, _, size_bytes = self._items.popleft()
            self._joining.append((number, size_bytes))
        return batch

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
        if front is None or isinstance(front, pa.RecordBatch):
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
        if now == self.told:
            return None
        self.told = now
        return now
