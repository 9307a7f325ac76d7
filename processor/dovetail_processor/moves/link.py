"""The ordered channel from a split to a join instance, on which markers follow the last tuple.

    Outbox (split host)                                       Inbox (instance)
      pending ──credit──▶ 5 6 7 unacknowledged ~~~~~~~~~~▶ expects 5: takes 5, 6, 7 in order
      (may be withdrawn)     resent from 5 after a while   ◀~~ ack 7, allowed bytes in all

Frames are numbered per link; the inbox takes the next number only, so loss, repetition and
reordering of frames end in order and once. Credit is a running total of bytes that the instance
has set aside, so an accepted batch always fits its memory. Items that wait for credit were never
sent and can be withdrawn when their group is held back; a marker needs no credit and overtakes
them, so a full instance cannot keep a move from draining it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """The sending end. Items are opaque; sizes are what they take of the credit."""

    def __init__(self, resend_s: float) -> None:
        self.resend_s = resend_s
        self.pending: deque[tuple[Item, int]] = deque()  # not sent: waits for credit
        self.unacked: deque[tuple[int, Item, int]] = deque()  # sent: number, item, size
        self.sent_number = 0
        self.sent_bytes = 0  # of all items ever sent; never above `allowed_bytes`
        self.allowed_bytes = 0
        self.sent_s = float("-inf")  # when something was last sent or acknowledged

    def offer(self, item: Item, size_bytes: int) -> None:
        """Queue an item behind all others."""
        self.pending.append((item, size_bytes))

    def mark(self, item: Item, now_s: float) -> list[tuple[int, Item]]:
        """Send an item that needs no credit, behind what was sent and ahead of what waits."""
        return [self._send(item, 0, now_s)]

    def withdraw(self, belongs: Callable[[Item], bool]) -> list[tuple[Item, int]]:
        """Take back, in order, the waiting items that `belongs` names."""
        taken = [entry for entry in self.pending if belongs(entry[0])]
        if taken:
            self.pending = deque(entry for entry in self.pending if not belongs(entry[0]))
        return taken

    def flush(self, now_s: float, *, alone: bool = False) -> list[tuple[int, Item]]:
        """Frames that the credit allows to be sent now.

        `alone`: all that was sent is done with, so an item larger than any credit may pass alone.
        """
        frames = []
        while self.pending:
            item, size_bytes = self.pending[0]
            if self.sent_bytes + size_bytes > self.allowed_bytes and not alone:
                break
            alone = False
            self.pending.popleft()
            frames.append(self._send(item, size_bytes, now_s))
        return frames

    def acknowledged(self, number: int, allowed_bytes: int, now_s: float) -> None:
        """The inbox has all up to `number`; old answers change nothing, impossible ones neither."""
        if number > self.sent_number:
            return
        if self.unacked and self.unacked[0][0] <= number:
            self.sent_s = now_s
        while self.unacked and self.unacked[0][0] <= number:
            self.unacked.popleft()
        self.allowed_bytes = max(self.allowed_bytes, allowed_bytes)

    def resend(self, now_s: float, *, undone: bool = False) -> list[tuple[int, Item | None]]:
        """All unacknowledged frames again, if nothing was heard for `resend_s`.

        If only credit is missing, or that all is joined (`undone`), a probe (frame 0) asks for the
        answer that may have been lost.
        """
        waits = bool(self.unacked or self.pending) or undone
        if not waits or now_s - self.sent_s < self.resend_s:
            return []
        self.sent_s = now_s
        return [(number, item) for number, item, _ in self.unacked] or [(0, None)]

    def _send(self, item: Item, size_bytes: int, now_s: float) -> tuple[int, Item]:
        self.sent_number += 1
        self.sent_bytes += size_bytes
        self.unacked.append((self.sent_number, item, size_bytes))
        self.sent_s = now_s
        return self.sent_number, item


class Inbox:
    """The receiving end: which frame is next, and how much may still come."""

    def __init__(self) -> None:
        self.number = 0  # of the last frame taken in
        self.taken_bytes = 0  # of all batches taken in
        self.allowed_bytes = 0  # running total granted; only an item that passes alone exceeds it

    @property
    def outstanding_bytes(self) -> int:
        """Granted and not yet arrived: counts against the memory limit."""
        return self.allowed_bytes - self.taken_bytes

    def take(self, number: int, size_bytes: int) -> bool:
        """Whether this frame is the next one; False means drop it, and acknowledge again."""
        if number != self.number + 1:
            return False
        self.number = number
        self.taken_bytes += size_bytes
        return True

    def grant(self, size_bytes: int) -> None:
        """Allow the split to send `size_bytes` more."""
        self.allowed_bytes += size_bytes
