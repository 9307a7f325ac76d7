"""All that one processor is to run, as the manager tells it: streams at home there, and queries.

The manager sends the whole assignment whenever it changed, and again until the processor's
heartbeat names its version. A processor compares it with what it runs and does what is missing:
start a query, open or end a stream, pause, close. So nothing depends on a single message.

    epoch 4, version 17
      peers     p1 at 10.0.0.1:7070 · p2 at 10.0.0.2:7070
      streams   trades (home here)
      queries   prices: plan · map · who hosts which split · running · where results and spill go
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa

from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, SplitId, StreamName
from dovetail_proto.partition_map import PartitionMap, map_from_json
from dovetail_proto.query import QueryPlan, plan_from_json


class Phase(StrEnum):
    """What is wanted of a query."""

    RUNNING = "running"
    PAUSED = "paused"  # its splits take nothing in; what they took is joined
    CLOSING = "closing"  # its splits take nothing more in; the rest is joined, pushed and closed


@dataclass(frozen=True, slots=True)
class StreamTask:
    """A stream whose home is this processor: sources send here, splits of its queries are here."""

    name: StreamName
    schema: pa.Schema
    ended: bool  # nothing more may be sent
    path: str | None = None  # read this file or folder instead of taking what is sent
    created_s: float = 0.0  # tells it from a dropped one of the same name
    leaves: bool = False  # it gets another home: take nothing more in
    handover: str = ""  # of its former home, if it had one and not everyone knows yet
    waits: bool = False  # its file is not read yet: others are read first


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """How and when state goes to disk; see `dovetail_processor.spill`."""

    allowed: bool  # False: the policy pushes nothing
    victims: str = "least-productive"
    push_fraction: float = 0.3
    spill_above_ratio: float = 0.8  # θ_m
    inactive_after_s: float = 60.0  # θ_t
    productivity_half_life_s: float = 0.0  # of P_o; 0: it is a plain sum


@dataclass(frozen=True, slots=True)
class QueryTask:
    """A query; every processor has an instance of its join."""

    name: QueryName
    plan: QueryPlan
    map: PartitionMap  # newest committed; taken by who is new to the query, or to hosting
    split_hosts: Mapping[ProcessorId, tuple[SplitId, ...]]
    phase: Phase
    disk: DiskSettings
    spill: str | None  # folder or URI for `<spill>/<processor>`; None: nothing may go to disk
    results: str | None  # folder for Parquet files; None: the result log in the processor's data
    counting: bool = False  # results are only counted and summed; `results` is None then
    settle_s: float = 0.0  # a group that came from elsewhere is not chosen to move for so long
    paper_restrictions: bool = False  # nor is one that has generations on disk
    run: str = ""  # the same for all processors' spill stores of this query, and no other's
    log: str = ""  # of the results found here, if they go to a log
    keep_s: float = 0.0  # segments of the log stay for so long at least; 0: for ever
    keep_bytes: int = 0  # and so many bytes of them; 0: all

    @property
    def has_log(self) -> bool:
        """Whether results go to the processor's log."""
        return bool(self.log) and self.results is None and not self.counting


@dataclass(frozen=True, slots=True)
class Leaving:
    """The groups of a processor are moved away; then it is let go, and must not come back.

    Before, it hands its result logs to `successor`; None: nobody else is there.
    """

    successor: ProcessorId | None
    runs: Mapping[QueryName, str]  # of all queries whose logs can still be asked for


@dataclass(frozen=True, slots=True)
class DroppedRun:
    """A query that is forgotten with what it wrote, but for files in a folder of the user's."""

    query: QueryName
    run: str
    spill: str | None  # where its spill stores are; None: it has none


class Peer(NamedTuple):
    """A member, as others see it."""

    address: str = ""  # of its data plane
    incarnation: int = 0  # another one knows nothing of what the former was sent


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything, for one processor."""

    epoch: Epoch
    version: int
    peers: Mapping[ProcessorId, Peer]  # all members, this one too
    streams: tuple[StreamTask, ...]
    queries: tuple[QueryTask, ...]
    leaving: Leaving | None = None
    dropped: tuple[DroppedRun, ...] = ()  # what is here of these goes

    def to_json(self) -> str:
        """As text for `Assign`."""
        return json.dumps(
            {
                "epoch": self.epoch,
                "version": self.version,
                "peers": dict(self.peers),
                "streams": [
                    {
                        "name": s.name,
                        "schema": base64.b64encode(s.schema.serialize().to_pybytes()).decode(),
                        "ended": s.ended,
                        "path": s.path,
                        "created_s": s.created_s,
                        "leaves": s.leaves,
                        "handover": s.handover,
                        "waits": s.waits,
                    }
                    for s in self.streams
                ],
                "queries": [
                    {
                        "name": q.name,
                        "plan": q.plan.to_json(),
                        "map": q.map.to_json(),
                        "split_hosts": {p: list(s) for p, s in q.split_hosts.items()},
                        "phase": q.phase,
                        "disk": {
                            name: getattr(q.disk, name)
                            for name in DiskSettings.__dataclass_fields__
                        },
                        "spill": q.spill,
                        "results": q.results,
                        "counting": q.counting,
                        "settle_s": q.settle_s,
                        "paper_restrictions": q.paper_restrictions,
                        "run": q.run,
                        "log": q.log,
                        "keep_s": q.keep_s,
                        "keep_bytes": q.keep_bytes,
                    }
                    for q in self.queries
                ],
                "leaving": self.leaving
                and {"successor": self.leaving.successor, "runs": dict(self.leaving.runs)},
                "dropped": [[d.query, d.run, d.spill] for d in self.dropped],
            }
        )


def assignment_from_json(text: str) -> Assignment:
    """Read what `Assignment.to_json` wrote; Refusal of domain `message` if it is anything else."""
    try:
        raw: dict[str, Any] = json.loads(text)
        return Assignment(
            Epoch(int(raw["epoch"])),
            int(raw["version"]),
            {ProcessorId(p): Peer(str(a), int(n)) for p, (a, n) in raw["peers"].items()},
            tuple(
                StreamTask(
                    StreamName(s["name"]),
                    pa.ipc.read_schema(pa.py_buffer(base64.b64decode(s["schema"]))),
                    bool(s["ended"]),
                    s["path"],
                    float(s["created_s"]),
                    bool(s["leaves"]),
                    str(s["handover"]),
                    bool(s["waits"]),
                )
                for s in raw["streams"]
            ),
            tuple(_read_query(q) for q in raw["queries"]),
            raw["leaving"] and _read_leaving(raw["leaving"]),
            tuple(DroppedRun(QueryName(q), str(run), spill) for q, run, spill in raw["dropped"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException, DovetailError) as e:
        raise Refusal(Domain.MESSAGE, f"not an assignment: {e}") from e


def _read_query(q: dict[str, Any]) -> QueryTask:
    return QueryTask(
        name=QueryName(q["name"]),
        plan=plan_from_json(q["plan"]),
        map=map_from_json(q["map"]),
        split_hosts={
            ProcessorId(p): tuple(SplitId(s) for s in splits)
            for p, splits in q["split_hosts"].items()
        },
        phase=Phase(q["phase"]),
        disk=DiskSettings(**q["disk"]),
        spill=q["spill"],
        results=q["results"],
        counting=bool(q["counting"]),
        settle_s=float(q["settle_s"]),
        paper_restrictions=bool(q["paper_restrictions"]),
        run=str(q["run"]),
        log=str(q["log"]),
        keep_s=float(q["keep_s"]),
        keep_bytes=int(q["keep_bytes"]),
    )


def _read_leaving(raw: dict[str, Any]) -> Leaving:
    successor = raw["successor"]
    return Leaving(
        None if successor is None else ProcessorId(successor),
        {QueryName(q): str(run) for q, run in raw["runs"].items()},
    )
