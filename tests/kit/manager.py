"""The controller with a store in a dict, for tests that need neither threads nor sockets."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import pyarrow as pa

from dovetail_manager import queries, streams
from dovetail_manager.controller import Controller
from dovetail_manager.effects import AppendHistory, Effect, LogEvent, Send
from dovetail_manager.journal import Write
from dovetail_manager.planner import plan_query
from dovetail_manager.query import Query
from dovetail_manager.records import QueryRecord, query_from_json, stream_from_json
from dovetail_manager.state import ControllerSettings, State
from dovetail_proto.assignment import Assignment, DiskSettings, Phase, assignment_from_json
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import (
    Assign,
    ComputePartitionsToMove,
    Deactivated,
    DeactivatePartitions,
    FinishMove,
    Heartbeat,
    Join,
    Leave,
    MoveFinished,
    PartitionsToMove,
    QueryLoad,
    Reactivated,
    ReactivatePartitions,
    Received,
    Reserve,
    Reserved,
    SendPartitions,
    Stage,
    StreamLoad,
)
from dovetail_proto.query import QueryPlan

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SQL = "SELECT x.k AS a, y.v AS b FROM s x JOIN t y ON x.k = y.k"


T = TypeVar("T")


class Manager:
    """A manager; with `held` writes wait until `write_all`, else they are durable at once."""

    def __init__(self, epoch: int = 1, entries: dict[str, str] | None = None) -> None:
        self.entries = dict(entries or {})
        self.hosts: list[Any] = []  # of splits, as they were ever written down
        for key, text in self.entries.items():
            self._note_hosts(key, text)
        self.histories: dict[str, dict[int, str]] = {}
        self.sent: list[Send] = []
        self.events: list[LogEvent] = []
        self.prefixes = [dict(self.entries)]  # the entries after each write
        self.held = False
        self.waiting: list[Write] = []
        self.now_s = 100.0 * epoch
        self.controller, effects = Controller.resume(
            Epoch(epoch), 0, self.entries, ControllerSettings(version="1"), self.now_s
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
                case AppendHistory(history, records, keep, move):
                    kept = self.histories.setdefault(history, {}) | dict(records)
                    self.histories[history] = dict(sorted(kept.items())[-keep:] if keep else [])
                    if move is not None:
                        self.act(self.controller.recorded(move, self.now_s))
                case LogEvent():
                    self.events.append(effect)
        self.controller.check()

    def _check_durable(self, told: Assignment) -> None:
        """Whatever processors are told is in the store."""
        for stream in told.streams:
            record = stream_from_json(self.entries[f"stream/{stream.name}"])
            assert stream.ended <= record.ended
        for query in told.queries:
            assert query.split_hosts in self.hosts
            record = query_from_json(self.entries[f"query/{query.name}"])
            assert record.run == query.run
            assert query.phase is record.phase or record.phase is Phase.CLOSING

    def write(self, w: Write) -> None:
        """Make a write durable and tell the machine."""
        for key, value in w.puts.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
                self._note_hosts(key, value)
        self.prefixes.append(dict(self.entries))
        self.act(self.controller.confirmed(w.revision, self.now_s))

    def _note_hosts(self, key: str, text: str) -> None:
        if key.startswith("query/"):
            self.hosts.append(query_from_json(text).split_hosts)

    def write_all(self) -> None:
        """Let the store catch up."""
        while self.waiting:
            self.write(self.waiting.pop(0))

    @property
    def state(self) -> State:
        """All that the controller knows."""
        return self.controller.state

    def query(self, name: str = "q") -> Query:
        """One query."""
        return self.state.query(name)

    def do(self, verb: Callable[..., T], *words: Any, **fields: Any) -> T:
        """What an operator asks for, durable unless `held`."""
        value, effects = self.controller.do(lambda s: verb(s, *words, **fields), self.now_s)
        self.act(effects)
        return value

    def hear(self, source: str, message: Any) -> None:
        """A message from a processor."""
        self.act(self.controller.handle(ProcessorId(source), message, self.now_s))

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

    def hand_over(self, name: str, incarnation: int = 1) -> None:
        """Say that the successor has the logs that a leaver was told to hand over."""
        told = self.assigned(name)
        assert told is not None
        assert told.leaving is not None
        self.hear(name, Leave(ProcessorId(name), incarnation, told.leaving.successor or ""))

    def pass_time(self, seconds: float) -> None:
        """Half a second at a time."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            self.act(self.controller.tick(self.now_s))

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
            if stream not in self.state.declared():
                self.do(streams.create, StreamName(stream), SCHEMA, None)
        plan = planned(name, sql)
        given = {"policy": "lazy-disk", "created_s": self.now_s, "spill": "/spill"}
        given |= {"disk": DiskSettings(True), **fields}
        self.do(queries.submit, QueryRecord(QueryName(name), plan, **given), weights)


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


def move_on(manager: Manager, sizes: int = 10) -> None:
    """Answer what the manager asks in moves, until it asks nothing more."""
    seen = 0
    while seen < len(manager.sent):
        asked = manager.sent[seen]
        seen += 1
        if _is_open(manager, asked) and (answer := _answer(asked, sizes)) is not None:
            manager.hear(asked.to, answer)


def _is_open(manager: Manager, asked: Send) -> bool:
    """Whether a message is about a move that has not ended."""
    ref = getattr(asked.message, "ref", None)
    return ref is not None and ref.move in manager.query(ref.query).coordinator.moves


def _answer(asked: Send, size: int) -> Any:
    match asked.message:
        case ComputePartitionsToMove(ref, _, groups, exclude):
            chosen = groups or tuple(g for g in (GroupId(0), GroupId(1)) if g not in exclude)
            return PartitionsToMove(ref, chosen, tuple(size for _ in chosen))
        case Reserve(ref):
            return Reserved(ref)
        case DeactivatePartitions(ref, chunk):
            return Deactivated(ref, chunk)
        case ReactivatePartitions(ref, chunk, _, _, patch):
            return Reactivated(ref, chunk, patch.to_version)
        case FinishMove(ref):
            return MoveFinished(ref)
    return None


def received(manager: Manager) -> None:
    """The receiver has every chunk that was ordered to be sent."""
    for sent in list(manager.sent):
        m = sent.message
        if isinstance(m, SendPartitions) and _is_open(manager, sent):
            manager.hear(m.receiver, Received(m.ref, m.chunk, 10))
