"""One small interface for the manager's truth; SQLite and Redis keep its promises alike.

    store.claim("host:1234")     ─▶ Leadership(epoch 4, revision 7, entries)    fences epoch 3
    Controller.resume(*…)        ─▶ Write(epoch 4, revision 8, {map/q: …, move/…: …})
    store.write(write)           ─▶ durable; `Controller.confirmed(8)`

**Entries** are a map of text to text, changed by `write` only: one compare-and-set of the epoch
and the revision, of any number of puts and deletions, all or none. That is all that the journal
asks for; the commit of a move is one such write. **Histories** are bounded lists of numbered
records beside them. Values are text; whoever keeps bytes in them (an Arrow schema, a map's
owners) writes them in base64 inside JSON. Nothing is unpickled.

Promises: what `write`, `record` and `claim` confirmed survives the death of the process, of the
server and of the machine; after a claim has returned, no manager of an older epoch writes
anything; readers see whole writes only, in order. Not promised: that two calls of a reader see
the same revision, and any answer while the store is away: calls block, up to `patience_s`.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from dovetail_manager.journal import Write
from dovetail_manager.store.errors import BadWrite
from dovetail_manager.store.fencing import check_key, check_records, check_write
from dovetail_proto.ids import Epoch

HOLDER_CHARS_MAX = 200
"""A host's name, a port and a process id."""

PATIENCE_S = 15.0
"""How long a call goes on trying: a server's restart and the loading of its file, a backup that
holds SQLite's lock. Longer than processors take to miss a manager would help nobody."""


class Leadership(NamedTuple):
    """What a manager holds after its claim: the first arguments of `Controller.resume`."""

    epoch: Epoch
    revision: int
    entries: Mapping[str, str]


class Store(ABC):
    """A handle of one manager on the truth. Thread-safe; calls block."""

    def __init__(self) -> None:
        self._claim = ""  # id of this handle's latest claim; empty before the first

    def claim(self, holder: str) -> Leadership:
        """Make this manager the leader, under an epoch greater than any before.

        The older manager is fenced from here on. `holder` says to people who it is.
        """
        if not 0 < len(holder) <= HOLDER_CHARS_MAX or not holder.isprintable():
            raise BadWrite(f"a manager cannot be called {holder[:HOLDER_CHARS_MAX]!r}")
        claim = secrets.token_hex(16)
        taken = self._take_lead(claim, holder)
        self._claim = claim
        return taken

    def write(self, w: Write) -> None:
        """Do `w` whole, durably and once; return at once if it is done already.

        Raises Fenced if another manager leads, StaleWrite if `w` is not the next revision,
        BadWrite if it is out of bounds: nothing is written then. Raises StoreUnavailable if that
        could not be found out: repeat the same write.
        """
        check_write(w)
        self._write(self._claim, w)

    def record(self, epoch: Epoch, history: str, records: Mapping[int, str], *, keep: int) -> None:
        """Put numbered records into a history and drop all but the `keep` greatest numbers.

        A record of a number that exists is replaced, so a repetition changes nothing and the
        newest record may be amended. No records and `keep` 0 empty the history. Fenced like
        `write`; the revision stays as it is.
        """
        check_records(history, records, keep)
        self._record(self._claim, epoch, history, records, keep)

    @abstractmethod
    def get(self, key: str) -> str | None:
        """The entry's value; None if there is none."""

    @abstractmethod
    def entries(self, prefix: str = "") -> dict[str, str]:
        """All entries whose key starts with `prefix`, by key, as of one moment."""

    def records(
        self, history: str, *, newest: int, before: int | None = None
    ) -> list[tuple[int, str]]:
        """The `newest` records with the greatest numbers (below `before`), greatest first."""
        check_key(history)
        return self._records(history, newest, before) if newest > 0 else []

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections. Closing twice is no error."""

    @abstractmethod
    def _take_lead(self, claim: str, holder: str) -> Leadership: ...

    @abstractmethod
    def _write(self, claim: str, w: Write) -> None: ...

    @abstractmethod
    def _record(
        self, claim: str, epoch: Epoch, history: str, records: Mapping[int, str], keep: int
    ) -> None: ...

    @abstractmethod
    def _records(self, history: str, newest: int, before: int | None) -> list[tuple[int, str]]: ...
