"""A numbered log of what happened, in memory and bounded, that many can follow at once."""

from __future__ import annotations

import threading
import time
from collections import deque

from dovetail_proto.admin import Event, Events
from dovetail_proto.errors import without_credentials

EVENTS_MAX = 10_000
"""What a follower that was away for a while can still read; half a kilobyte each."""


class EventLog:
    """Thread-safe. Numbers start at 1 and have no gaps."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._changed = threading.Condition()
        self._last = 0
        self._closed = False

    def add(self, at_s: float, kind: str, **about: str) -> None:
        """Something happened; whoever may look may read it."""
        shown = {name: without_credentials(value) for name, value in about.items()}
        with self._changed:
            self._last += 1
            self._events.append(Event(self._last, at_s, kind, **shown))
            self._changed.notify_all()

    def since(self, number: int, wait_s: float = 0.0) -> Events:
        """Events after `number`; waits up to `wait_s` for one, not at all once it is closed."""
        until_s = time.monotonic() + wait_s
        with self._changed:
            while self._last <= number and not self._closed:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            oldest = self._last - len(self._events)  # number before the oldest that is kept
            events = tuple(e for e in self._events if e.number > number)
            return Events(events, max(self._last, number), max(0, oldest - number))

    def close(self) -> None:
        """Nothing more will happen: let all who wait go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
