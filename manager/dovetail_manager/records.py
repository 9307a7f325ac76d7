"""Streams and queries as the store has them. Records are immutable; a change is a new record.

    stream trades ── home p1 ──┐
    stream quotes ── home p2 ──┤ query prices: plan · phase · split hosts · where results go
                               ▼
    what each processor is told to run: see `assignments`

A query has one record from its submission until it is dropped; its partition map, which changes
with every move, is an entry of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from dovetail_manager.moves.placement import SplitHosts
from dovetail_manager.reports import Report, as_one
from dovetail_proto.assignment import DiskSettings, Phase
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.ids import (
    GroupId,
    LogName,
    ProcessorId,
    QueryName,
    SplitId,
    StreamName,
    input_of,
    next_split,
)
from dovetail_proto.messages import QueryLoad, Stage
from dovetail_proto.query import QueryPlan, plan_from_json


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
        schema = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return json.dumps({**_plain(self), "schema": schema})


class End(StrEnum):
    """How a query ended."""

    NOT_YET = ""
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class KeptLog:
    """A result log whose writer has left."""

    name: LogName
    writer: ProcessorId
    incarnation: int  # of the writer when it left
    keeper: ProcessorId


class CleanupState(StrEnum):
    """What has become of a clean-up."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class CleanupRecord:
    """The latest clean-up of a query."""

    master: str
    output: str  # as asked for, then where the results are; "none": only counted
    memory_bytes: int
    started_s: float
    state: CleanupState = CleanupState.RUNNING
    ended_s: float = 0.0
    owed: int = 0
    results: int = 0
    checksum: int = 0
    bins: int = 0
    code: str = ""  # of the error
    cause: str = ""
    remedy: str = ""

    @property
    def outcome(self) -> str:
        """How it ended, and why if not well."""
        return f"{self.state}: {self.cause}" if self.cause else str(self.state)


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A submitted query, until it is dropped."""

    name: QueryName
    plan: QueryPlan
    policy: str
    created_s: float
    disk: DiskSettings  # its own θ_m, θ_t and so on; `allowed` follows from the policy
    split_hosts: SplitHosts = field(default_factory=dict)  # chosen when it is submitted
    expected_bytes: int | None = None  # of state, told at submission; None: estimated
    spill: str | None = None
    results: str | None = None
    counting: bool = False
    keep_results_s: float = 0.0  # in its logs, at least; 0: for ever
    keep_results_bytes: int = 0  # of each log, at least; 0: all
    phase: Phase = Phase.RUNNING
    pinned: frozenset[GroupId] = frozenset()  # stay where they are, whatever a policy says
    forced_bytes: int = 0  # pushed by order so far
    end: End = End.NOT_YET
    cause: str = ""  # why it failed; empty otherwise
    ended_s: float = 0.0
    stopped: bool = False  # it has failed, and everyone has dropped it
    reports: tuple[Report, ...] = ()  # of those who left; of all, once it has ended
    kept: tuple[KeptLog, ...] = ()  # oldest first
    cleanup: CleanupRecord | None = None  # the latest one
    discarded: bool = False  # what it wrote is being removed; then it is dropped

    @property
    def key(self) -> str:
        """Where it is stored."""
        return f"query/{self.name}"

    @property
    def run(self) -> str:
        """Tells this submission from every other one, also of the same name."""
        return f"{self.name}-{int(self.created_s * 1e6)}"

    @property
    def state(self) -> str:
        """What people are told of it in one word."""
        return str(self.end or self.phase)

    @property
    def finished(self) -> bool:
        """Whether it has ended and no processor has to know of it any more."""
        return self.end is End.CLOSED or self.stopped

    @property
    def cleaning(self) -> bool:
        """Whether a clean-up is under way."""
        return self.cleanup is not None and self.cleanup.state is CleanupState.RUNNING

    @property
    def has_logs(self) -> bool:
        """Whether results go to the processors' logs."""
        return self.results is None and not self.counting

    @property
    def trims_logs(self) -> bool:
        """Whether its logs may lose their oldest segments."""
        return bool(self.keep_results_s or self.keep_results_bytes)

    def inputs_from(self, stream: StreamName) -> list[int]:
        """The inputs that read a stream."""
        return [n for n, i in enumerate(self.plan.inputs) if i.stream == stream]

    def hosted_by(self, inputs: Iterable[int], leaver: ProcessorId, to: ProcessorId) -> QueryRecord:
        """The record when `to` hosts the leaver's splits of these inputs, with new links."""
        chosen = set(inputs)
        going = [s for s in self.split_hosts[leaver] if input_of(s) in chosen]
        hosts = {p: [s for s in splits if s not in going] for p, splits in self.split_hosts.items()}
        hosts[to] = [*hosts.get(to, ()), *map(next_split, going)]
        return replace(self, split_hosts={p: tuple(sorted(s)) for p, s in hosts.items() if s})

    def log_of(self, writer: ProcessorId) -> LogName:
        """The log that a processor writes, or would write now."""
        number = 1 + sum(k.writer == writer for k in self.kept)
        others = {k.name for k in self.kept if k.writer != writer}  # p1.2 may be of p1 or p1.2
        while (name := LogName(f"{writer}.{number}" if number > 1 else writer)) in others:
            number += 1
        return name

    def writes(self, report: Report) -> bool:
        """Whether what a report tells of is in the log that its processor writes now."""
        return all(
            k.writer != report.processor or k.incarnation < report.incarnation for k in self.kept
        )

    def kept_by(self, keeper: ProcessorId, leaver: ProcessorId, incarnation: int) -> QueryRecord:
        """The record when a processor that leaves has handed all its logs to `keeper`."""
        kept = [replace(k, keeper=keeper) if k.keeper == leaver else k for k in self.kept]
        mine = [r for r in self.reports if r.processor == leaver and self.writes(r)]
        if any(r.load.results for r in mine):
            kept.append(KeptLog(self.log_of(leaver), leaver, incarnation, keeper))
        return replace(self, kept=tuple(kept))

    def with_reports(self, reports: Iterable[Report]) -> QueryRecord:
        """The record with newer reports; those of the same incarnation are replaced.

        Of a processor that left and came back again and again a few are kept, whatever their
        number was: sums of what it reported long ago, and what it reported last.
        """
        merged = {(r.processor, r.incarnation): r for r in (*self.reports, *reports)}
        kept: list[Report] = []
        for _, report in sorted(merged.items()):
            for writing in (False, True):
                old = [r for r in kept if r.processor == report.processor and self._old(r, writing)]
                if len(old) > 1:
                    kept = [r for r in kept if r not in old] + [as_one(old)]
            kept.append(report)
        return replace(
            self, reports=tuple(sorted(kept, key=lambda r: (r.processor, r.incarnation)))
        )

    def _old(self, report: Report, writing: bool) -> bool:
        """Whether a report may become part of a sum of those that `writes` says the same of.

        What tells of results in a log that is being written stays by itself.
        """
        return self.writes(report) == writing and not (
            writing and self.has_logs and report.load.results
        )

    def check(self) -> None:
        """Assert what the fields promise."""
        assert (self.end is End.FAILED) == bool(self.cause), f"{self.name}: {self.end!r}"
        assert not self.stopped or self.end is End.FAILED, f"{self.name} was dropped and goes on"
        assert not self.discarded or self.end, f"{self.name} is being removed and goes on"

    def to_json(self) -> str:
        """The record."""
        return json.dumps(
            {
                **_plain(self),
                "plan": self.plan.to_json(),
                "disk": asdict(self.disk),
                "pinned": sorted(self.pinned),
                "reports": [[r.processor, r.incarnation, asdict(r.load)] for r in self.reports],
                "kept": [asdict(k) for k in self.kept],
                "cleanup": self.cleanup and asdict(self.cleanup),
            }
        )


def _plain(record: StreamRecord | QueryRecord) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record)}


def _raw(kind: type[StreamRecord | QueryRecord], text: str) -> dict[str, Any]:
    """The fields of a record, all of them; KeyError if one is missing."""
    raw: Mapping[str, Any] = json.loads(text)
    return {f.name: raw[f.name] for f in fields(kind)}


def stream_from_json(text: str) -> StreamRecord:
    """Read a stream's record; ConfigError if it is none."""
    try:
        raw = _raw(StreamRecord, text)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(raw["schema"])))
        return StreamRecord(**{**raw, "schema": schema})
    except (KeyError, TypeError, ValueError, pa.ArrowException) as e:
        raise _damaged("stream", e) from e


def query_from_json(text: str) -> QueryRecord:
    """Read a query's record; ConfigError if it is none."""
    try:
        raw = _raw(QueryRecord, text)
        hosts = {p: tuple(map(SplitId, splits)) for p, splits in raw["split_hosts"].items()}
        return QueryRecord(
            **{
                **raw,
                "plan": plan_from_json(raw["plan"]),
                "disk": DiskSettings(**raw["disk"]),
                "split_hosts": hosts,
                "phase": Phase(raw["phase"]),
                "pinned": frozenset(GroupId(int(g)) for g in raw["pinned"]),
                "end": End(raw["end"]),
                "reports": tuple(Report(p, int(n), _load(load)) for p, n, load in raw["reports"]),
                "kept": tuple(KeptLog(**k) for k in raw["kept"]),
                "cleanup": _cleanup(raw["cleanup"]) if raw["cleanup"] else None,
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError, DovetailError) as e:
        raise _damaged("query", e) from e


def _load(raw: dict[str, Any]) -> QueryLoad:
    return QueryLoad(**{**raw, "rows_in": tuple(raw["rows_in"]), "stage": Stage(raw["stage"])})


def _cleanup(raw: dict[str, Any]) -> CleanupRecord:
    return CleanupRecord(**{**raw, "state": CleanupState(raw["state"])})


def _damaged(kind: str, error: Exception) -> ConfigError:
    return ConfigError(f"not the record of a {kind}: {error}", remedy="restore the manager's store")
