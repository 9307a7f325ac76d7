"""A manager in memory and one processor's data plane over real gRPC, for tests of the faces."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pyarrow as pa

from dovetail_manager.admin.service import AdminService
from dovetail_proto import admin as a
from dovetail_proto import feeds
from dovetail_proto.errors import Domain, QueryError, Refusal
from dovetail_proto.transport import Security, abort, start_server
from dovetail_proto.wire.data import decode, encode

RESULT_SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PROCESSORS = ("p1", "p2")
RUN = "q-1"


def ipc(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    """A batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


class DataPlaneStandIn:
    """Takes batches in, answers waits, and sends `results` (processor-wide, by query)."""

    def __init__(self, security: Security) -> None:
        self.taken: list[tuple[str, str, int, pa.RecordBatch]] = []  # without repeated ones
        self.results: list[pa.RecordBatch] = []
        self.joined = threading.Event()
        self.joined.set()
        self.sent = 0  # result batches that left
        self.reading_begun = threading.Event()
        self.reading_ended = threading.Event()
        self.over = False  # there will be no more results
        self._marks: dict[tuple[str, str], int] = {}
        self._server = start_server(
            "127.0.0.1:0",
            security,
            {
                "dovetail.v1.DataPlane": {
                    "Ingest": grpc.stream_stream_rpc_method_handler(self._ingest),
                    "AwaitJoined": grpc.unary_unary_rpc_method_handler(self._await),
                    "ReadResults": grpc.unary_stream_rpc_method_handler(self._read),
                }
            },
        )
        self.address = f"127.0.0.1:{self._server.port}"

    def reset(self) -> None:
        """As new."""
        self.taken.clear()
        self._marks.clear()
        self.results = []
        self.sent = 0
        self.reading_begun.clear()
        self.reading_ended.clear()
        self.joined.set()

    def forget_sources(self) -> None:
        """As if it was started anew."""
        self._marks.clear()

    def stop(self) -> None:
        """End every call."""
        self._server.stop(0)

    def _ingest(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for data in requests:
            sent = decode(feeds.IngestBatch, data)
            if sent.source == "refused":
                refusal = Refusal(Domain.MESSAGE, "not from you", remedy="go", reason="state")
                abort(context, refusal)
            with pa.ipc.open_stream(sent.payload) as reader:
                batch = reader.read_next_batch()
            key = (sent.stream, sent.source)
            if sent.sequence > 1 and key not in self._marks:
                abort(context, Refusal(Domain.STREAM, "knows no such source", reason="source"))
            if sent.sequence > self._marks.get(key, 0):
                self._marks[key] = sent.sequence
                self.taken.append((sent.stream, sent.source, sent.sequence, batch))
            rows = sum(b.num_rows for s, _, _, b in self.taken if s == sent.stream)
            yield encode(feeds.IngestAck(sent.sequence, rows, 1))

    def _await(self, _: bytes, context: Any) -> bytes:
        while not self.joined.wait(0.05) and context.is_active():
            pass
        return encode(feeds.Joined(sum(b.num_rows for _, _, _, b in self.taken)))

    def _read(self, data: bytes, context: Any) -> Iterator[bytes]:
        asked = decode(feeds.ReadResults, data)
        context.add_callback(self.reading_ended.set)
        self.reading_begun.set()
        yield encode(feeds.ResultBatch(asked.segment, asked.row, b"", False))  # the log is there
        for segment, batch in enumerate(self.results):
            if segment < asked.segment:
                continue
            start = asked.row if segment == asked.segment else 0
            self.sent += 1
            yield encode(feeds.ResultBatch(segment, start, ipc(batch.slice(start)), False))
        if asked.follow and not self.over:
            self.reading_ended.wait()
        yield encode(feeds.ResultBatch(len(self.results), 0, b"", True))


class AdminStandIn(AdminService):
    """Streams, queries and events in dictionaries; the verbs keep their promises on refusals."""

    def __init__(self, plane: DataPlaneStandIn) -> None:
        self.plane = plane
        self.streams: dict[str, a.StreamStatus] = {}
        self.queries: dict[str, a.QueryStatus] = {}
        self.moves: list[a.MoveStatus] = []
        self.failure: Exception | None = None  # raised by get_cluster
        self.gone = False  # whether the processors are dead
        self._events: list[a.Event] = []
        self._lock = threading.Condition()

    def reset(self) -> None:
        """As new, except that events go on."""
        self.streams.clear()
        self.queries.clear()
        self.moves.clear()
        self.plane.reset()

    def happen(self, kind: str, **about: str) -> None:
        """Add an event."""
        with self._lock:
            self._events.append(a.Event(len(self._events) + 1, 1.0, kind, **about))
            self._lock.notify_all()

    def create_stream(self, request: a.CreateStream) -> a.StreamStatus:
        """Declare it."""
        if request.name in self.streams:
            raise _refused(f"stream {request.name!r} exists", "exists")
        made = a.StreamStatus(
            request.name,
            request.schema,
            0,
            False,
            False,
            "p1",
            self.plane.address,
            request.path,
            1.0,
        )
        self.streams[request.name] = made
        self.happen("stream-created", stream=request.name)
        return made

    def end_stream(self, ref: a.StreamRef) -> a.StreamStatus:
        """End it."""
        self.streams[ref.name] = replace(self.get_stream(ref), ended=True)
        return self.streams[ref.name]

    def drop_stream(self, ref: a.StreamRef) -> a.StreamStatus:
        """Forget it."""
        return self.streams.pop(self.get_stream(ref).name)

    def get_stream(self, ref: a.StreamRef) -> a.StreamStatus:
        """Find it."""
        if ref.name not in self.streams:
            raise _refused(f"stream {ref.name!r} is not known", "unknown")
        return self.streams[ref.name]

    def list_streams(self) -> a.Streams:
        """All."""
        return a.Streams(tuple(self.streams.values()))

    def submit(self, request: a.Submit) -> a.QueryStatus:
        """A query over all streams there are, whatever the SQL; it must say SELECT."""
        if not request.sql.lower().startswith("select"):
            raise QueryError("not a SELECT", line=1, column=1, remedy="write one")
        if request.name in self.queries:
            raise _refused(f"query {request.name!r} exists", "exists")
        instances = tuple(
            a.InstanceStatus(p, "running", 1, 10, 0, 5, 2, 2**63 + 1, 0, 0, 0, 0)
            for p in PROCESSORS
        )
        made = a.QueryStatus(
            name=request.name,
            state="running",
            phase="running",
            cause="",
            policy=request.policy,
            sql=request.sql,
            schema=RESULT_SCHEMA.serialize().to_pybytes(),
            partitions=request.partitions,
            map_version=1,
            held_bytes=20,
            spilled_bytes=0,
            produced=10,
            results=4,
            checksum=2**64 - 1,
            pushes=0,
            spilled_groups=0,
            queued_bytes=0,
            inputs=tuple(a.InputStatus(s, s, 7) for s in self.streams),
            instances=instances,
            results_place=request.results,
            counting=request.counting,
            spill=request.spill,
            push_fraction=request.push_fraction or 0.3,
            spill_above_ratio=request.spill_above_ratio or 0.8,
            inactive_after_s=request.inactive_after_s or 60.0,
            productivity_half_life_s=request.productivity_half_life_s or 0.0,
            created_s=1.0,
            ended_s=0.0,
            logs=tuple(a.LogStatus(p, p, self.plane.address, RUN, 0) for p in PROCESSORS),
            cleanup=(),
            warning="",
            keep_results_s=request.keep_results_s or 0.0,
            keep_results_bytes=request.keep_results_bytes or 0,
        )
        self.queries[request.name] = made
        return made

    def get_query(self, ref: a.QueryRef, *, fresh: bool = False) -> a.QueryStatus:
        """Find it."""
        if ref.name not in self.queries:
            raise _refused(f"query {ref.name!r} is not known", "unknown")
        found = self.queries[ref.name]
        away = tuple(replace(log, address="") for log in found.logs)
        return replace(found, logs=away) if self.gone else found

    def list_queries(self) -> a.Queries:
        """All."""
        return a.Queries(tuple(self.queries.values()))

    def _into(self, ref: a.QueryRef, state: str) -> a.QueryStatus:
        self.queries[ref.name] = replace(self.get_query(ref), state=state)
        return self.queries[ref.name]

    def close_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """At once."""
        return self._into(ref, "closed")

    def pause_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """At once."""
        return self._into(ref, "paused")

    def resume_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """At once."""
        return self._into(ref, "running")

    def drop_query(self, ref: a.DropQuery) -> a.QueryStatus:
        """Only a closed one."""
        if self.get_query(a.QueryRef(ref.name)).state != "closed":
            raise _refused(f"query {ref.name!r} runs", "state")
        return self.queries.pop(ref.name)

    def start_cleanup(self, request: a.StartCleanup) -> a.CleanupStatus:
        """Of a closed one, at once."""
        found = self.get_query(a.QueryRef(request.query))
        if found.state != "closed":
            raise _refused(f"query {request.query!r} runs", "state")
        numbers = {"bins_done": 1, "bins": 1, "combinations": 3, "owed": 3, "results": 2}
        made = a.CleanupStatus(
            *(request.query, "done", request.master or "local", request.output, ""),
            *(*numbers.values(), 2**64 - 1, "", "", "", 1.0, 2.0),
        )
        self.queries[request.query] = replace(found, cleanup=(made,))
        return made

    def get_cleanup(self, ref: a.QueryRef) -> a.CleanupStatus:
        """As started."""
        if not (found := self.get_query(ref).cleanup):
            raise _refused(f"query {ref.name!r} was never cleaned up", "unknown")
        return found[0]

    cancel_cleanup = get_cleanup

    def set_policy(self, request: a.SetPolicy) -> a.QueryStatus:
        """At once."""
        found = self.get_query(a.QueryRef(request.query))
        self.queries[request.query] = replace(found, policy=request.policy)
        return self.queries[request.query]

    def list_partitions(self, ref: a.QueryRef) -> a.Partitions:
        """Two groups."""
        self.get_query(ref)
        owned = tuple(a.PartitionStatus(i, p, 1, False) for i, p in enumerate(PROCESSORS))
        return a.Partitions(1, owned)

    def list_moves(self, ref: a.QueryRef) -> a.Moves:
        """As set."""
        self.get_query(ref)
        return a.Moves(tuple(self.moves))

    def list_adaptations(self, ref: a.QueryRef) -> a.Adaptations:
        """One, with a number that JSON cannot say."""
        self.get_query(ref)
        numbers = {"ratio": 0.5, "since": float("-inf")}
        return a.Adaptations(
            (a.AdaptationRecord(1.0, "disk", "nothing", "balanced", False, "", numbers, 3),)
        )

    def move(self, request: a.MoveGroups) -> a.MoveStatus:
        """Begun, if the receiver is known."""
        self.get_query(a.QueryRef(request.query))
        if request.to not in PROCESSORS:
            raise _refused(f"processor {request.to!r} is not known", "unknown", Domain.MEMBER)
        name = f"{1:010d}-{len(self.moves) + 1:08d}"
        count = len(request.groups)
        made = a.MoveStatus(name, "p1", request.to, "begun", "", "asked", "", count, 0, 1.0, 0.0)
        self.moves.append(made)
        return made

    def pin(self, request: a.Pin) -> a.Partitions:
        """As it was."""
        return self.list_partitions(a.QueryRef(request.query))

    def rebalance(self, request: a.Rebalance) -> a.Adaptations:
        """As it was."""
        return self.list_adaptations(a.QueryRef(request.query))

    def get_cluster(self) -> a.ClusterStatus:
        """Two processors with one data plane."""
        if self.failure is not None:
            raise self.failure
        return a.ClusterStatus("m", 3, "0.1.0", 1.0, tuple(self._member(p) for p in PROCESSORS))

    def _member(self, name: str) -> a.ProcessorStatus:
        return a.ProcessorStatus(
            name=name,
            state="dead" if self.gone else "alive",
            cause="",
            address=self.plane.address,
            incarnation=1,
            memory_limit_bytes=1000,
            used_bytes=300,
            held_bytes=200,
            queued_bytes=0,
            groups=1,
            rate=1.5,
            rss_bytes=5000,
            peak_rss_bytes=6000,
            cpu_share=0.1,
            heard_s=1.0,
        )

    def leave(self, ref: a.ProcessorRef) -> a.ProcessorStatus:
        """Begun."""
        if ref.name not in PROCESSORS:
            raise _refused(f"processor {ref.name!r} is not known", "unknown", Domain.MEMBER)
        return replace(self._member(ref.name), state="leaving")

    def events(self, since: int, wait_s: float = 0.0) -> a.Events:
        """All after `since`."""
        with self._lock:
            if wait_s:
                self._lock.wait_for(lambda: len(self._events) > since, wait_s)
            return a.Events(tuple(self._events[since:]), max(since, len(self._events)), 0)


def _refused(message: str, reason: str, domain: Domain = Domain.QUERY) -> Refusal:
    return Refusal(domain, message, remedy="look again", reason=reason)
