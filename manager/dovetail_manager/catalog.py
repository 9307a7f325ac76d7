"""Streams and queries as people declared them, and what every processor is told to run of them.

    stream trades ── home p1 ──┐
    stream quotes ── home p2 ──┤ query prices: plan · phase · where results and spill go
                               ▼
    Assignment for p1: peers · streams at home there · all queries that run

Records are immutable; a change is a new record. `wanted` is what was decided, `durable` what the
store has confirmed: processors are told nothing else, so that a successor never has to take back
what somebody already does. Read `governor` next: it makes the changes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

import pyarrow as pa

from dovetail_manager.cleanups import CleanupRecord, CleanupState
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import ConfigError, Domain, DovetailError, Refusal
from dovetail_proto.ids import LogName, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import QueryLoad, Stage
from dovetail_proto.query import QueryPlan, plan_from_json

CHECKSUM_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A declared stream."""

    name: StreamName
    schema: pa.Schema
    home: ProcessorId
    created_s: float
    ended: bool = False  # nothing more may be sent
    path: str | None = None  # the home reads this instead of taking what is sent
    next_home: ProcessorId | None = None  # the home leaves: it takes nothing more in
    handover: str = ""  # of the former home, until everyone knows the new one

    @property
    def key(self) -> str:
        """Where it is stored."""
        return f"stream/{self.name}"

    @property
    def moving(self) -> bool:
        """Whether it is on its way from one home to another."""
        return self.next_home is not None or bool(self.handover)

    def to_json(self) -> str:
        """The record."""
        return json.dumps(
            {
                "name": self.name,
                "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
                "home": self.home,
                "created_s": self.created_s,
                "ended": self.ended,
                "path": self.path,
                "next_home": self.next_home,
                "handover": self.handover,
            }
        )


class End(StrEnum):
    """How a query ended."""

    NOT_YET = ""
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Instance:
    """The last that one incarnation of a processor reported of a query."""

    processor: ProcessorId
    incarnation: int
    load: QueryLoad


@dataclass(frozen=True, slots=True)
class KeptLog:
    """A result log whose writer has left."""

    name: LogName
    writer: ProcessorId
    incarnation: int  # of the writer when it left
    keeper: ProcessorId


@dataclass(frozen=True, slots=True)
class Spec:
    """A submitted query, until it is dropped."""

    name: QueryName
    plan: QueryPlan
    policy: str
    created_s: float
    phase: Phase = Phase.RUNNING
    spill: str | None = None
    results: str | None = None
    counting: bool = False
    end: End = End.NOT_YET
    ended_s: float = 0.0
    instances: tuple[Instance, ...] = ()  # of those who left; of all, once it has ended
    settled: bool = False  # it has failed, and everyone has dropped it
    kept: tuple[KeptLog, ...] = ()  # oldest first
    cleanup: CleanupRecord | None = None  # the latest one
    discarded: bool = False  # what it wrote is being removed; then it is dropped

    @property
    def key(self) -> str:
        """Where it is stored."""
        return f"spec/{self.name}"

    @property
    def run(self) -> str:
        """Tells this submission from every other one, also of the same name."""
        return f"{self.name}-{int(self.created_s * 1e6)}"

    @property
    def cleaning(self) -> bool:
        """Whether a clean-up is under way."""
        return self.cleanup is not None and self.cleanup.state is CleanupState.RUNNING

    @property
    def has_logs(self) -> bool:
        """Whether results go to the processors' logs."""
        return self.results is None and not self.counting

    def log_of(self, writer: ProcessorId) -> LogName:
        """The log that a processor writes, or would write now."""
        before = sum(k.writer == writer for k in self.kept)
        return LogName(f"{writer}.{before + 1}" if before else writer)

    def writes(self, instance: Instance) -> bool:
        """Whether what an instance found is in the log that its processor writes now."""
        return all(
            k.writer != instance.processor or k.incarnation < instance.incarnation
            for k in self.kept
        )

    def handed_on(self, leaver: ProcessorId, incarnation: int, heir: ProcessorId) -> Spec:
        """The spec when a processor that leaves has handed all its logs to another one."""
        kept = [replace(k, keeper=heir) if k.keeper == leaver else k for k in self.kept]
        mine = [i for i in self.instances if i.processor == leaver and self.writes(i)]
        if any(i.load.results for i in mine):
            kept.append(KeptLog(self.log_of(leaver), leaver, incarnation, heir))
        return replace(self, kept=tuple(kept))

    def with_instances(self, instances: tuple[Instance, ...]) -> Spec:
        """The spec with newer reports; those of the same incarnation are replaced.

        Of a processor that left and came back again and again a few are kept, whatever their
        number was: sums of what it reported long ago, and what it reported last.
        """
        merged = {(i.processor, i.incarnation): i for i in (*self.instances, *instances)}
        kept: list[Instance] = []
        for key in sorted(merged):
            one = merged[key]
            for writing in (False, True):
                old = [i for i in kept if i.processor == one.processor and self._old(i, writing)]
                if len(old) > 1:
                    kept = [i for i in kept if i not in old]
                    kept.append(Instance(one.processor, old[-1].incarnation, _summed(old)))
            kept.append(one)
        return replace(
            self, instances=tuple(sorted(kept, key=lambda i: (i.processor, i.incarnation)))
        )

    def _old(self, instance: Instance, writing: bool) -> bool:
        """Whether a report may become part of a sum of those that `writes` says the same of.

        What tells of results in a log that is being written stays by itself.
        """
        return self.writes(instance) == writing and not (
            writing and self.has_logs and instance.load.results
        )

    def to_json(self) -> str:
        """The record."""
        return json.dumps(
            {
                "name": self.name,
                "plan": self.plan.to_json(),
                "policy": self.policy,
                "created_s": self.created_s,
                "phase": self.phase,
                "spill": self.spill,
                "results": self.results,
                "counting": self.counting,
                "end": self.end,
                "ended_s": self.ended_s,
                "instances": [[i.processor, i.incarnation, asdict(i.load)] for i in self.instances],
                "settled": self.settled,
                "kept": [asdict(k) for k in self.kept],
                "cleanup": self.cleanup and asdict(self.cleanup),
                "discarded": self.discarded,
            }
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all instances of a query."""

    held_bytes: int
    spilled_bytes: int
    produced: int
    results: int
    checksum: int
    pushes: int
    spilled_groups: int
    queued_bytes: int
    rows_in: tuple[int, ...]


def _summed(instances: list[Instance]) -> QueryLoad:
    """What several incarnations of a processor reported, as one report: the last, with sums."""
    last = instances[-1].load
    inputs = max(len(i.load.rows_in) for i in instances)
    summed = totals(inputs, tuple(instances))
    sums = {f.name: getattr(summed, f.name) for f in fields(Totals)}
    return replace(last, **sums)


def totals(inputs: int, instances: tuple[Instance, ...]) -> Totals:
    """Sum what the instances reported; a checksum wraps at 2**64."""
    loads = [i.load for i in instances]
    return Totals(
        held_bytes=sum(x.held_bytes for x in loads),
        spilled_bytes=sum(x.spilled_bytes for x in loads),
        produced=sum(x.produced for x in loads),
        results=sum(x.results for x in loads),
        checksum=sum(x.checksum for x in loads) % CHECKSUM_MODULUS,
        pushes=sum(x.pushes for x in loads),
        spilled_groups=sum(x.spilled_groups for x in loads),
        queued_bytes=sum(x.queued_bytes for x in loads),
        rows_in=tuple(
            sum(x.rows_in[n] for x in loads if n < len(x.rows_in)) for n in range(inputs)
        ),
    )


Kept = TypeVar("Kept", StreamRecord, Spec)


@dataclass(slots=True)
class Shelf(Generic[Kept]):
    """One kind of record by name."""

    read: Callable[[str], Kept]
    wanted: dict[str, Kept] = field(default_factory=dict)  # as decided
    durable: dict[str, Kept] = field(default_factory=dict)  # as the store has it

    def confirmed(self, name: str, text: str | None) -> None:
        """The store has this record now, or has dropped it."""
        if text is None:
            self.durable.pop(name, None)
        else:
            self.durable[name] = self.read(text)


class Catalog:
    """All streams and all queries."""

    def __init__(self) -> None:
        self.streams: Shelf[StreamRecord] = Shelf(stream_from_json)
        self.specs: Shelf[Spec] = Shelf(spec_from_json)

    def resume(self, entries: Mapping[str, str]) -> None:
        """Take over what the store holds."""
        self.confirmed(entries)
        self.streams.wanted = dict(self.streams.durable)
        self.specs.wanted = dict(self.specs.durable)

    def confirmed(self, puts: Mapping[str, str | None]) -> bool:
        """A write is durable; whether it was about a stream or a query's spec."""
        concerned = False
        for key, text in puts.items():
            kind, _, name = key.partition("/")
            if kind == "stream":
                self.streams.confirmed(name, text)
                concerned = True
            elif kind == "spec":
                self.specs.confirmed(name, text)
                concerned = True
        return concerned

    def stream(self, name: str) -> StreamRecord:
        """A stream by its name; Refusal if there is none."""
        if name not in self.streams.wanted:
            raise Refusal(
                Domain.STREAM,
                f"stream {name!r} is unknown",
                remedy="create it first",
                reason="unknown",
            )
        return self.streams.wanted[name]

    def spec(self, name: str) -> Spec:
        """A query by its name; Refusal if there is none."""
        if name not in self.specs.wanted:
            raise Refusal(Domain.QUERY, f"query {name!r} is unknown", reason="unknown")
        return self.specs.wanted[name]


def stream_from_json(text: str) -> StreamRecord:
    """Read a stream's record; ConfigError if it is none."""
    try:
        raw: dict[str, Any] = json.loads(text)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(raw["schema"])))
        return StreamRecord(
            StreamName(raw["name"]),
            schema,
            ProcessorId(raw["home"]),
            float(raw["created_s"]),
            bool(raw["ended"]),
            raw["path"],
            None if raw["next_home"] is None else ProcessorId(raw["next_home"]),
            str(raw["handover"]),
        )
    except (KeyError, TypeError, ValueError, pa.ArrowException) as e:
        raise _damaged("stream", e) from e


def spec_from_json(text: str) -> Spec:
    """Read a query's spec; ConfigError if it is none."""
    try:
        raw: dict[str, Any] = json.loads(text)
        return Spec(
            name=QueryName(raw["name"]),
            plan=plan_from_json(raw["plan"]),
            policy=raw["policy"],
            created_s=float(raw["created_s"]),
            phase=Phase(raw["phase"]),
            spill=raw["spill"],
            results=raw["results"],
            counting=bool(raw["counting"]),
            end=End(raw["end"]),
            ended_s=float(raw["ended_s"]),
            instances=tuple(
                Instance(ProcessorId(p), int(n), _load(fields)) for p, n, fields in raw["instances"]
            ),
            settled=bool(raw["settled"]),
            kept=tuple(KeptLog(**k) for k in raw["kept"]),
            discarded=bool(raw.get("discarded")),
            cleanup=_cleanup(found) if (found := raw.get("cleanup")) else None,
        )
    except (KeyError, TypeError, ValueError, DovetailError) as e:
        raise _damaged("query", e) from e


def _load(raw: dict[str, Any]) -> QueryLoad:
    return QueryLoad(**{**raw, "rows_in": tuple(raw["rows_in"]), "stage": Stage(raw["stage"])})


def _cleanup(fields: dict[str, Any]) -> CleanupRecord:
    return CleanupRecord(**{**fields, "state": CleanupState(fields["state"])})


def _damaged(kind: str, error: Exception) -> ConfigError:
    return ConfigError(f"not the record of a {kind}: {error}", remedy="restore the manager's store")
