"""What a stream's home tells the next one, when it leaves while queries read the stream.

    home ── takes nothing more in, all that came is joined ─▶ Handover ─▶ manager ─▶ next home

Sources go on numbering their batches; with the marks the next home drops what was taken here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import QueryName

SOURCES_MAX = 10_000
"""Sources of a stream that may send a batch again; the next one is refused, unless one of them was
silent for long enough. A mark takes some hundred bytes, and all of them travel in a handover."""


@dataclass(frozen=True, slots=True)
class Handover:
    """A stream as its home leaves it."""

    rows: int  # of the stream, so far
    marks: Mapping[str, int]  # per source: the highest sequence taken in
    rows_in: Mapping[QueryName, int]  # that the queries have taken in of it

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self))


def handover_from_json(text: str) -> Handover:
    """Read what `Handover.to_json` wrote; Refusal of domain `message` if it is anything else."""
    try:
        raw = json.loads(text)
        made = Handover(
            int(raw["rows"]),
            {str(source): int(n) for source, n in raw["marks"].items()},
            {QueryName(query): int(n) for query, n in raw["rows_in"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise Refusal(Domain.MESSAGE, f"not a stream's handover: {e}") from e
    if min(made.rows, *made.marks.values(), *made.rows_in.values(), 0) < 0:
        raise Refusal(Domain.MESSAGE, "not a stream's handover: it counts below 0")
    if len(made.marks) > SOURCES_MAX:
        raise Refusal(Domain.MESSAGE, f"a stream's handover has {len(made.marks)} sources")
    return made
