"""What has arrived on one link and waits for the join: batches, and markers between them.

    link ─▶ [ batch │ batch │ marker │ batch │ end ] ─▶ join takes batches; a marker at the front
                                                        is for the instance, which sees that all
                                                        before it is joined

Credit is the room in here: what the join has taken and finished may be sent anew.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from dovetail_processor.moves.link import Inbox
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.messages import EndOfMovedPartitions

Marker = EndOfMovedPartitions | EndOfInput


class InputQueue:
    """An arc as the join sees it (`len`, `take`, `exhausted`), fed by one link."""

    def __init__(self, window_bytes: int) -> None:
        self.inbox = Inbox()
        self.inbox.grant(window_bytes)
        self._items: deque[tuple[int, pa.RecordBatch | Marker, int]] = deque()  # number, size
        self._joining: list[tuple[int, int]] = []  # numbers and sizes of batches taken, unfinished
        self.held_bytes = 0
        """Bytes of the batches that wait or are being joined."""
        self.done_number = 0
        """All frames up to it are joined and their results handed on."""
        self.ended = False
        """Whether the end of input has been reached."""
        self.told: tuple[int, int, int] | None = None
        """What the split was told last; None: nothing yet, or it asked."""

    def arrived(self, number: int, item: pa.RecordBatch | Marker | None, size_bytes: int) -> None:
        """A frame came in; out of order or again, it is dropped. None asks for an answer."""
        if item is None or not self.inbox.take(number, size_bytes):
            self.told = None
            return
        self._items.append((number, item, size_bytes))
        self.held_bytes += size_bytes

    def __len__(self) -> int:
        """Batches at hand: those before the next marker count."""
        return 1 if self._items and isinstance(self._items[0][1], pa.RecordBatch) else 0

    def take(self) -> pa.RecordBatch:
        """The next batch."""
        number, batch, size_bytes = self._items.popleft()
        assert isinstance(batch, pa.RecordBatch)
        self._joining.append((number, size_bytes))
        return batch

    @property
    def exhausted(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return self.ended and not self._items

    def finished(self) -> None:
        """What was taken is joined, and its results are out: its room is free again."""
        for number, size_bytes in self._joining:
            self.held_bytes -= size_bytes
            self.inbox.grant(size_bytes)
            self.done_number = number
        self._joining.clear()

    def marker(self) -> Marker | None:
        """The marker at the front, taken out, if all before it is joined."""
        if self._joining or not self._items:
            return None
        number, item, _ = self._items[0]
        if isinstance(item, pa.RecordBatch):
            return None
        self._items.popleft()
        self.done_number = number
        self.ended |= isinstance(item, EndOfInput)
        return item

    def news(self) -> tuple[int, int, int] | None:
        """(taken, allowed, done) if the split does not know it yet."""
        now = (self.inbox.number, self.inbox.allowed_bytes, self.done_number)
        if now == self.told:
            return None
        self.told = now
        return now
