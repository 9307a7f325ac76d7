"""How much may be under way at once: whoever asks for more is told to come again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail_manager.admin.rest.refusals import Overloaded


class Room:
    """A bounded amount of something; used on the event loop only."""

    def __init__(self, most: int, what: str) -> None:
        self._left = most
        self._what = what

    @contextmanager
    def take(self, amount: int = 1) -> Iterator[None]:
        """Hold `amount`; Overloaded if there is not so much left."""
        if amount > self._left:
            raise Overloaded(
                f"too many {self._what} at once", remedy="try again in a moment, or one by one"
            )
        self._left -= amount
        try:
            yield
        finally:
            self._left += amount
