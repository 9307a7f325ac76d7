"""What a manager writes down, in which order, and what follows when it is durable.

The store is a map of text to text with an epoch and a revision. A write carries both: the store
refuses another epoch than its own (the writer was replaced) and takes the next revision only, so
a write that was repeated or came late can neither be done twice nor undo a newer one.

    manager                         store
      │── Write(epoch 3, rev 8) ──────▶│ epoch = 3, rev = 7: done, rev = 8
      │        (answer lost)           │
      │── Write(epoch 3, rev 8) ──────▶│ rev = 8 already: done before, says yes
      ✗                                │ claim → epoch 4
      │── Write(epoch 3, rev 9) ──────▶│ fenced

One write is under way at a time; the others wait in order, so the store is always a prefix of
what was decided. Keys: `member/<processor>`, `stream/<name>`, `query/<name>`, `map/<query>`,
`move/<id>`, `removal/<run>`. The kinds of entries are with their subjects: `members`, `streams`,
`queries`, `moves`, `removals`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail_proto.ids import Epoch

if TYPE_CHECKING:
    from dovetail_manager.state import State

Puts = Mapping[str, str | None]
"""Keys and their new values; None deletes."""


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction for the store."""

    epoch: Epoch
    revision: int
    puts: Puts


@dataclass(frozen=True, slots=True)
class Entry:
    """A write: what it puts; each kind says what is done and told when that is durable."""

    puts: Puts

    def durable(self, state: State) -> None:
        """The store has it. Nothing follows, if a kind does not say so."""


class Journal:
    """The writes of one epoch, one at a time."""

    def __init__(self, epoch: Epoch, revision: int) -> None:
        self.epoch = epoch
        self.revision = revision  # of the last write that is known to be durable
        self.queue: deque[Entry] = deque()  # the first one is under way

    @property
    def last_revision(self) -> int:
        """Of the newest entry, durable or not."""
        return self.revision + len(self.queue)

    def append(self, entry: Entry) -> list[Write]:
        """Queue an entry; the write to issue now, if none is under way."""
        self.queue.append(entry)
        return [self._write()] if len(self.queue) == 1 else []

    def confirmed(self, revision: int) -> tuple[Entry | None, list[Write]]:
        """The store has `revision`: the entry that is durable now, and the write to issue next.

        A late confirmation of an older revision confirms nothing.
        """
        if not self.queue or revision != self.revision + 1:
            return None, []
        self.revision = revision
        entry = self.queue.popleft()
        return entry, [self._write()] if self.queue else []

    def unanswered(self) -> list[Write]:
        """The write under way, to be issued again after an error or a time-out."""
        return [self._write()] if self.queue else []

    def _write(self) -> Write:
        return Write(self.epoch, self.revision + 1, self.queue[0].puts)
