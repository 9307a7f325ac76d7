"""The manager's machine with a store in a dict, for tests that need neither threads nor sockets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pyarrow as pa

from dovetail_manager.catalog import Spec, spec_from_json, stream_from_json
from dovetail_manager.chronicle import Chronicle
from dovetail_manager.governor import Effect, Governor, Happened
from dovetail_manager.moves.journal import Write
from dovetail_manager.moves.protocol import Send
from dovetail_manager.planner import plan_query
from dovetail_manager.queries import query_from_json
from dovetail_manager.steering import SteeringSettings
from dovetail_proto.assignment import Assignment, DiskSettings, Phase, assignment_from_json
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, SplitId, StreamName
from dovetail_proto.messages import (
    Assign,
    Heartbeat,
    Join,
    Leave,
    QueryLoad,
    Stage,
    StreamLoad,
)
from dovetail_proto.query import QueryPlan

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SQL = "SELECT x.k AS a, y.v AS b FROM s x JOIN t y ON x.k = y.k"


class Governed:
    """A manager; with `held` writes wait until `write_all`, else they are durable at once."""

    def __init__(self, epoch: int = 1, entries: dict[str, str] | None = None) -> None:
        self.entries = dict(entries or {})
        self.hosts = [_hosts(t) for k, t in self.entries.items() if k.startswith("query/")]
        """Of splits, as they were ever written down."""
        self.histories: dict[str, dict[int, str]] = {}
        self.sent: list[Send] = []
        self.happened: list[Happened] = []
        self.held = False
        self.waiting: list[Write] = []
        self.now_s = 100.0 * epoch
        self.governor, effects = Governor.resume(
            Epoch(epoch), 0, self.entries, SteeringSettings(version="1"), self.now_s
        )
        self.act(effects)

    def act(self, effects: list[Effect]) -> None:
        """Carry out."""
        for effect in effects:
            match effect:
                case Write() if self.held:
                    self.waiting.append(effect)
                case Write():
                    self.write(effect)
                case Send(_, message):
                    self.sent.append(effect)
                    if isinstance(message, Assign):
                        self._check_durable(assignment_from_json(message.document))
                case Chronicle(history, records, keep, move):
                    kept = self.histories.setdefault(history, {}) | dict(records)
                    self.histories[history] = dict(sorted(kept.items())[-keep:] if keep else [])
                    if move is not None:
                        self.act(self.governor.recorded(move, self.now_s))
                case Happened():
                    self.happened.append(effect)
        self.governor.check()

    def _check_durable(self, told: Assignment) -> None:
        """Whatever processors are told is in the store."""
        for stream in told.streams:
            record = stream_from_json(self.entries[f"stream/{stream.name}"])
            assert stream.ended <= record.ended
        for query in told.queries:
            assert query.split_hosts in self.hosts
            spec = spec_from_json(self.entries[f"spec/{query.name}"])
            assert spec.run == query.run
            assert query.phase is spec.phase or spec.phase is Phase.CLOSING

    def write(self, w: Write) -> None:
        """Make a write durable and tell the machine."""
        for key, value in w.puts.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
                if key.startswith("query/"):
                    self.hosts.append(_hosts(value))
        self.act(self.governor.confirmed(w.revision, self.now_s))

    def write_all(self) -> None:
        """Let the store catch up."""
        while self.waiting:
            self.write(self.waiting.pop(0))

    def do(self, verb: str, *words: Any, **fields: Any) -> Any:
        """A verb; what it returns beside its outputs."""
        made = getattr(self.governor, verb)(*words, now_s=self.now_s, **fields)
        value, outputs = made if isinstance(made, tuple) else (None, made)
        self.act(self.governor.effects(outputs, self.now_s))
        return value

    def hear(self, source: str, message: Any) -> None:
        """A message from a processor."""
        self.act(self.governor.handle(ProcessorId(source), message, self.now_s))

    def join(self, *names: str, incarnation: int = 1) -> None:
        """Members of 1000 bytes each."""
        for name in names:
            self.hear(name, Join(ProcessorId(name), incarnation, "1", 1000, f"{name}:1"))

    def beat(
        self,
        name: str,
        *loads: QueryLoad,
        used: int = 0,
        incarnation: int = 1,
        streams: tuple[StreamLoad, ...] = (),
    ) -> None:
        """A heartbeat that names the newest assignment."""
        seen = self.assigned(name)
        assigned = seen.version if seen else 0
        who = ProcessorId(name)
        beat = Heartbeat(who, incarnation, used, loads, False, assigned=assigned, streams=streams)
        self.hear(name, beat)

    def bequeath(self, name: str, incarnation: int = 1) -> None:
        """Say that the heir has what a leaver was told to hand over."""
        told = self.assigned(name)
        assert told is not None
        assert told.leaving is not None
        self.hear(name, Leave(ProcessorId(name), incarnation, told.leaving.heir or ""))

    def pass_time(self, seconds: float) -> None:
        """Half a second at a time."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            self.act(self.governor.tick(self.now_s))

    def assigned(self, name: str) -> Assignment | None:
        """The newest assignment that was sent to a processor."""
        sent = [s.message for s in self.sent if s.to == name and isinstance(s.message, Assign)]
        newest = max(sent, key=lambda m: m.version, default=None)
        return assignment_from_json(newest.document) if newest else None

    def submit(
        self, name: str = "q", sql: str = SQL, weights: list[float] | None = None, **fields: Any
    ) -> None:
        """A query over the streams s and t, which are made if there are none."""
        for stream in ("s", "t"):
            if stream not in self.governor.catalog.streams.wanted:
                self.do("create_stream", StreamName(stream), SCHEMA, None)
        plan = planned(name, sql)
        given = {"policy": "lazy-disk", "created_s": self.now_s, "spill": "/spill"}
        spec = Spec(QueryName(name), plan, **{**given, **fields})
        self.do("submit", spec, disk=DiskSettings(True), weights=weights, expected_bytes=None)


def _hosts(text: str) -> Mapping[ProcessorId, tuple[SplitId, ...]]:
    return query_from_json(text).split_hosts


@cache
def planned(name: str, sql: str) -> QueryPlan:
    """A plan over the streams s and t; planning takes longer than all the rest."""
    return plan_query(sql, {"s": SCHEMA, "t": SCHEMA}, name=name, partitions=4)


def report(
    query: str = "q", groups: int = 2, stage: Stage = Stage.RUNNING, **more: Any
) -> QueryLoad:
    """What a processor says of a query."""
    given = {"held_bytes": 0, "spilled_bytes": 0, "produced": 0, **more}
    return QueryLoad(QueryName(query), groups, stage=stage, **given)
