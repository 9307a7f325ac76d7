"""What the processors report, made into what the policies see.

Bytes are taken as reported: they are exact and decisions about memory must not lag. Rates are
noisy from sample to sample, so the rate per group is an exponential moving average with the half
life `RATE_HALF_LIFE_S`: after that time an old rate counts half. Statistics of single groups
(P_s, P_o, T_u) stay at their processor, which chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail_manager.adaptation.snapshot import ProcessorLoad
from dovetail_manager.membership import Member, MemberState
from dovetail_proto.ids import ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Heartbeat, QueryLoad, StreamLoad

RATE_HALF_LIFE_S = 5.0
"""A few samples of one second: long enough to ride out a batch, short against move_interval_s."""


@dataclass(slots=True)
class _Heard:
    """The last report of one processor about one query."""

    incarnation: int
    at_s: float
    load: QueryLoad
    rate: float  # smoothed combinations per second and group
    used_bytes: int
    adapting: bool


class LoadTracker:
    """The newest statistics of every processor, per query."""

    def __init__(self) -> None:
        self._heard: dict[tuple[QueryName, ProcessorId], _Heard] = {}
        self.beats: dict[ProcessorId, Heartbeat] = {}  # each processor's last one

    def heartbeat(self, m: Heartbeat, now_s: float) -> None:
        """Take in a report. One that repeats or precedes the last leaves the rate as it is."""
        self.beats[m.processor] = m
        for load in m.loads:
            key = (load.query, m.processor)
            last = self._heard.get(key)
            rate = 0.0
            if last is not None and last.incarnation == m.incarnation:
                rate = last.rate
                passed_s = now_s - last.at_s
                made = load.produced - last.load.produced
                if passed_s > 0 and made >= 0:
                    sample = made / passed_s / max(load.groups, 1)
                    weight = 0.5 ** (passed_s / RATE_HALF_LIFE_S)
                    rate = weight * rate + (1 - weight) * sample
            self._heard[key] = _Heard(m.incarnation, now_s, load, rate, m.used_bytes, m.adapting)

    def loads(self, query: QueryName, members: Iterable[Member]) -> tuple[ProcessorLoad, ...]:
        """Every member that has reported `query`, as the policies see it."""
        out = []
        for member in members:
            heard = self._heard.get((query, member.processor))
            if heard is None or heard.incarnation != member.incarnation:
                continue
            out.append(
                ProcessorLoad(
                    processor=member.processor,
                    limit_bytes=member.memory_limit_bytes,
                    used_bytes=heard.used_bytes,
                    held_bytes=heard.load.held_bytes,
                    state_limit_bytes=heard.load.state_limit_bytes,
                    groups=heard.load.groups,
                    rate=heard.rate,
                    free=member.state is MemberState.ALIVE and not heard.adapting,
                )
            )
        return tuple(out)

    def report(self, query: QueryName, member: Member) -> QueryLoad | None:
        """What this incarnation of a member last said of `query`; None if nothing yet."""
        heard = self._heard.get((query, member.processor))
        return heard.load if heard and heard.incarnation == member.incarnation else None

    def rate(self, member: Member) -> float:
        """Combinations per second of all queries on a member."""
        return sum(
            h.rate * h.load.groups
            for (_, processor), h in self._heard.items()
            if processor == member.processor and h.incarnation == member.incarnation
        )

    def forget(self, query: QueryName) -> None:
        """The query is gone, and its name may be used again."""
        for key in [k for k in self._heard if k[0] == query]:
            del self._heard[key]

    def stream(self, stream: StreamName, home: ProcessorId) -> StreamLoad | None:
        """What a stream's home last said of it; None if nothing yet."""
        beat = self.beats.get(home)
        loads = beat.streams if beat is not None else ()
        return next((s for s in loads if s.stream == stream), None)

    def query_bytes(self, query: QueryName, rows_left: int) -> int:
        """M_query: state held and pushed so far, and as much per row for the rows still to come."""
        loads = [h.load for (name, _), h in self._heard.items() if name == query]
        so_far = sum(load.held_bytes + load.pushed_bytes for load in loads)
        rows = sum(sum(load.rows_in) for load in loads)
        return so_far + (rows_left * so_far // rows if rows else 0)
