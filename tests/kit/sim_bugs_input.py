"""Seeded bugs on the way into the join: streams, splits, links, closing. See `sim_bugs`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from dovetail_processor.moves.link import Inbox, Outbox
from dovetail_processor.operators.home import Home
from dovetail_processor.operators.link_end import LinkEnd
from dovetail_processor.operators.links import Links
from dovetail_processor.operators.sources_heard import SourcesHeard
from dovetail_processor.operators.split import Split
from dovetail_processor.streams import Streams
from dovetail_processor.worker import Worker
from kit.sim_bugs import Bug, around, instead

# Splits and links ---------------------------------------------------------------------------------


def _cut_through_holds(cut: Any) -> Any:
    """Rows of groups on their way are sent to the owner they had."""

    def without(self: Any, rows: Any) -> Any:
        held, self._links.held = self._links.held, np.zeros_like(self._links.held)
        try:
            return cut(self, rows)
        finally:
            self._links.held = held

    return without


def _released_in_reverse(release: Any) -> Any:
    return lambda self, chosen: release(self, chosen)[::-1]


def _take_any(self: Any, number: int, size_bytes: int) -> bool:
    """The inbox takes frames in any order."""
    if number <= self.number:
        return False
    self.number = number
    self.taken_bytes += size_bytes
    return True


def _take_again(self: Any, number: int, size_bytes: int) -> bool:
    """The inbox takes repeated frames."""
    if number > self.number + 1:
        return False
    self.number = max(self.number, number)
    self.taken_bytes += size_bytes
    return True


def _marker_first(overtake: Any) -> Any:
    """A marker is let past the rows of its own groups."""
    return lambda self, moving: overtake(self, np.zeros_like(moving))


# Streams ------------------------------------------------------------------------------------------


def _answered_at_once(self: Any, sent: Any) -> None:
    """A repeated batch is answered although the first one waits."""
    sent.routed(self.rows_routed, len(self._queries))


def _ends_where_it_is(self: Any, split: Any) -> None:
    """A query that closes does not take what waits for it."""
    reader = self.readers[split]
    if reader.end is None:
        reader.end = reader.next
    self.settle()


def _defect_2() -> list[Any]:
    """Both: acknowledged rows are dropped."""
    return [
        patch.object(Home, "_repeated", _answered_at_once),
        patch.object(Home, "end_reader", _ends_where_it_is),
    ]


def _ended_at_once(self: Any, query: Any) -> None:
    """Links end although readers have not taken everything."""
    if query.reads and query.task.phase == "closing":
        query.inputs.end([*query.inputs.readers], self.peers, self.now_s)
        query.follow_up()


def _was_fed_at_once(self: Any, split: Any) -> bool:
    """An end does not wait for what its reader has not taken."""
    return bool(self._over or self.readers[split].end is not None)


def _is_sent(self: Any, split: Any) -> bool:
    """Rows that are held back, or wait for credit, count as sent."""
    return bool(self.splits[split].empty)


INPUT_BUGS = {
    "held rows sent": Bug(
        "rows of a moving group are held", around(Split, "_cut", _cut_through_holds)
    ),
    "waiting rows not held": Bug(
        "so are those without credit", instead(Outbox, "withdraw", lambda self, belongs: [])
    ),
    "released in reverse": Bug(
        "held rows keep their order", around(Split, "release", _released_in_reverse)
    ),
    "released to nobody": Bug(
        "held rows are released", instead(Split, "release", lambda self, chosen: [])
    ),
    "frames out of order": Bug("a link delivers in order", instead(Inbox, "take", _take_any)),
    "frames twice": Bug("and once", instead(Inbox, "take", _take_again), scene="late messages"),
    "nothing resent": Bug(
        "what was lost is sent again",
        instead(Outbox, "resend", lambda self, now_s, undone=False: []),
    ),
    "marker before its rows": Bug(
        "a marker overtakes others' rows only",
        around(LinkEnd, "overtake", _marker_first),
        scene="slow sinks",
    ),
    "answered before taken": Bug(
        "a repeated batch waits with the first", instead(Home, "_repeated", _answered_at_once)
    ),
    "acknowledged and dropped": Bug("defect 2: acknowledged means joined", _defect_2),
    "sources forgotten": Bug(
        "a stream's next home knows its sources",
        instead(SourcesHeard, "restore", lambda self, marks, now_s: None),
        scene="come back",
    ),
    "left before joined": Bug(
        "a home leaves when all is joined",
        instead(Links, "drained", lambda self, split: True),
        scene="come back",
    ),
    "closing takes nothing": Bug(
        "who closes takes what has come", instead(Home, "end_reader", _ends_where_it_is)
    ),
    "ended at once": Bug(
        "links end behind all rows",
        instead(Worker, "_end_inputs", _ended_at_once),
        scene="early closing",
    ),
    "end before rows that wait": Bug(
        "an end is known behind the last row of every group",
        instead(Links, "_is_empty", _is_sent),
    ),
    "end before rows are taken": Bug(
        "a stream's end comes behind what waits at its home",
        instead(Home, "has_fed", _was_fed_at_once),
        scene="early ends",
    ),
    "reader goes on": Bug(
        "who closes takes nothing more", instead(Home, "end_reader", lambda self, split: None)
    ),
    "readers not set": Bug(
        "who is submitted reads", instead(Streams, "set_readers", lambda self: None)
    ),
}
"""By name; two or more for each mechanism."""
