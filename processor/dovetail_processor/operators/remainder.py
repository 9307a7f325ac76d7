"""How many rows a stream will still bring: what a file holds beyond, what its sources announced.

`active-disk` estimates from it how much state a query will have. A source that says with each batch
how many rows follow is counted until it has sent them; one that does not say makes the remainder
unknown, until the stream ends. Not promised: that an announced row comes. A source that dies leaves
its announcement, so the estimate is then too high.
"""

from __future__ import annotations

ANNOUNCED_MAX = 1_000
"""Sources whose announcements are remembered: more feed a stream at once nowhere."""


class Remainder:
    """Of one stream."""

    def __init__(self) -> None:
        self._announced: dict[str, int] = {}  # per source: rows that follow; none follow: left out
        self._heard = False  # a source has sent something
        self._silent = False  # one did not say what follows

    def sent(self, source: str, rows_left: int | None) -> None:
        """A batch came, and its source said so many rows follow; None: it did not say."""
        self._heard = True
        self._silent |= rows_left is None
        self._announced.pop(source, None)
        if rows_left:
            self._announced[source] = rows_left
        if len(self._announced) > ANNOUNCED_MAX:
            del self._announced[next(iter(self._announced))]

    @property
    def announced(self) -> int | None:
        """Rows that sources will still send; None: unknown."""
        unknown = self._silent or not self._heard
        return None if unknown else sum(self._announced.values())
