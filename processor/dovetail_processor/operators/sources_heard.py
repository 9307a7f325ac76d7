"""Which sources a stream has heard, and how far each of them is: what was sent before is dropped.

A mark is forgotten only when its source is over, or was silent for so long that it will not send
its last batch again; and never while a batch of it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dovetail_proto.errors import Domain, DovetailError, InputError, Refusal
from dovetail_proto.handover import SOURCES_MAX
from dovetail_proto.ids import StreamName

RESEND_S_MAX = 600.0
"""A source that was silent for so long does not send its last batch again: clients of ours give up
after half a minute of silence."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far a source is, and when it was last heard."""

    sequence: int
    heard_s: float
    over: bool = False  # it says that it sends nothing more


class SourcesHeard:
    """The marks of one stream's sources; who was heard last is last."""

    def __init__(self, stream: StreamName) -> None:
        self._stream = stream
        self._marks: dict[str, _Mark] = {}

    def last(self, source: str) -> int:
        """The last batch of a source that was taken; 0 if it is new."""
        return self._marks[source].sequence if source in self._marks else 0

    def heard(self, source: str, sequence: int, waiting: AbstractSet[str], now_s: float) -> None:
        """The next batch of a source; raises if it is not, or if there are too many sources.

        Batches of the sources in `waiting` are not answered yet.
        """
        last = self.last(source)
        if sequence != last + 1:
            raise self._out_of_order(source, sequence, last)
        if not last:
            self._make_room(waiting, now_s)
        self._marks.pop(source, None)
        self._marks[source] = _Mark(sequence, now_s)

    def answered(self, source: str, now_s: float) -> None:
        """A batch of it was acknowledged: from now on it may be asked for again."""
        if (mark := self._marks.pop(source, None)) is not None:
            self._marks[source] = _Mark(mark.sequence, now_s)

    def forget(self, source: str) -> None:
        """It has all its answers and sends nothing more.

        Its mark stays until there are too many: a call that it gave up may still bring a batch.
        """
        if source in self._marks:
            self._marks[source] = replace(self._marks[source], over=True)

    def marks(self) -> dict[str, int]:
        """For the next home."""
        return {source: mark.sequence for source, mark in self._marks.items()}

    def restore(self, marks: Mapping[str, int], now_s: float) -> None:
        """From the former home."""
        self._marks = {source: _Mark(sequence, now_s) for source, sequence in marks.items()}

    def _out_of_order(self, source: str, sequence: int, last: int) -> DovetailError:
        if last:
            return InputError(
                f"stream {self._stream!r}: source {source!r} sent batch {sequence} after {last}",
                remedy="send batches in order, numbered from 1",
            )
        return Refusal(
            Domain.STREAM,
            f"stream {self._stream!r} knows no batch of source {source!r} before batch "
            f"{sequence}: its home was started again or died, or the source was silent for "
            f"more than {RESEND_S_MAX:.0f} s",
            remedy="see whether the queries that read it have failed, then send everything again "
            "under another source's name, from batch 1 on",
            reason="source",
        )

    def _make_room(self, waiting: AbstractSet[str], now_s: float) -> None:
        """Forget a source that is over, or was silent for longest, unless it may send again."""
        if len(self._marks) < SOURCES_MAX:
            return
        over = next((source for source, mark in self._marks.items() if mark.over), None)
        oldest = over or next(iter(self._marks))
        recent = now_s - self._marks[oldest].heard_s < RESEND_S_MAX
        if over is None and (oldest in waiting or recent):
            raise Refusal(
                Domain.BUSY,
                f"stream {self._stream!r} has {SOURCES_MAX} sources that may send their last batch "
                "again",
                remedy="send through fewer sources, or try again in some minutes",
                reason="busy",
            )
        del self._marks[oldest]
