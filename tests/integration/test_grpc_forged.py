"""Forged protobuf and Arrow over gRPC: our errors only, no process ends, nothing grows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import psutil
import pyarrow as pa
import pytest

from dovetail.local_cluster import LocalCluster
from dovetail_proto.arrow_bytes import to_bytes
from dovetail_proto.feeds import (
    EndOfInput,
    IngestBatch,
    LinkFrame,
    LogPiece,
    QueryAt,
    ReadResults,
    TupleBatch,
)
from dovetail_proto.ids import (
    Epoch,
    GroupId,
    LogName,
    MoveId,
    ProcessorId,
    QueryName,
    SplitId,
    StreamName,
)
from dovetail_proto.messages import (
    EndOfMovedPartitions,
    Join,
    Leave,
    MoveRef,
    ReceivePartitions,
)
from dovetail_proto.transport import call_metadata, open_channel
from dovetail_proto.wire import control, data
from kit.mutants import mutant

SEED = 20261116
COUNT = 150
"""Mutants per message; the whole takes some seconds."""

GROWTH_BYTES_MAX = 150 << 20
"""What a process may take more after thousands of forged messages: allocators keep some."""

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string())])
SQL = "SELECT a.text AS x, b.text AS y FROM a JOIN b ON a.k = b.k"
BATCH = pa.record_batch([[1, 2, 3], ["one", None, "three"]], schema=SCHEMA)
REF = MoveRef(
    QueryName("forged"), Epoch(1), MoveId("0000000001-00000001"), MoveId("0000000001-00000001")
)
SPLIT = SplitId("forged/0")


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """Two processors; the query `forged` is for the messages, `honest` must stay exact."""
    with LocalCluster(2, memory_bytes=64_000_000) as started:
        cluster = started.cluster
        for name in ("a", "b"):
            cluster.stream(name, SCHEMA)
            cluster.stream(f"{name}2", SCHEMA)
        cluster.submit(SQL.replace(" a JOIN b", " a2 AS a JOIN b2 AS b"), name="forged")
        cluster.submit(SQL, name="honest")
        yield started


def parts(message: ReceivePartitions) -> bytes:
    """The first part of a chunk."""
    return next(iter(data.encode_parts(message)))


GENUINE: dict[str, list[bytes]] = {
    "DataPlane/Feed": [
        data.encode_frame(LinkFrame(SPLIT, 1, item))
        for item in (
            TupleBatch(SPLIT, 1, b"", 100, 3, to_bytes(BATCH)),
            TupleBatch(SPLIT, 1, np.arange(3, dtype="<u4").tobytes(), 100, 3, to_bytes(BATCH)),
            EndOfMovedPartitions(QueryName("forged"), REF.move, 0, SPLIT),
            EndOfInput(QueryName("forged"), SPLIT),
        )
    ],
    "DataPlane/Ingest": [data.encode(IngestBatch(StreamName("a2"), "forger", 1, to_bytes(BATCH)))],
    "DataPlane/AwaitJoined": [data.encode(QueryAt(QueryName("forged")))],
    "DataPlane/ReadResults": [
        data.encode(ReadResults(QueryName("forged"), LogName("p1"), 0, 0, False, "forged-1", 0))
    ],
    "DataPlane/KeepResults": [
        data.encode(LogPiece(QueryName("forged"), "forged-1", LogName("p9"), 0, 0, 9, 1, b"PAR1")),
        data.encode(LogPiece(QueryName("other"), "other-1", LogName("p9"), 0, 0, 4, 1, b"PAR1")),
    ],
    "DataPlane/ReceivePartitions": [
        parts(ReceivePartitions(REF, 0, (GroupId(1),), 100, b"\x02\0\0\0\0\0\0\0{}" * 3))
    ],
    "Control/Attach": [
        control.encode(ProcessorId("stranger"), Join(ProcessorId("stranger"), 1, "0", 1, "h:1")),
        control.encode(ProcessorId("stranger"), Leave(ProcessorId("stranger"), 1)),
    ],
    "Admin/Submit": [b"\n\x06forged\x12\x08SELECT 1"],
    "Admin/Move": [b"\n\x06forged\x12\x01\x05\x1a\x02p2"],
    "Admin/CreateStream": [b"\n\x01a\x12\x04\xff\xff\xff\xff"],
}
STREAMING = {"Feed", "Ingest", "Attach", "ReceivePartitions"}
ANSWERED_BY_STREAM = {"Feed", "Ingest", "Attach", "ReadResults"}


def outcome(
    channel: grpc.Channel, method: str, sent: bytes, metadata: list[tuple[str, str]]
) -> str:
    """How one call with one message ends."""
    name = method.partition("/")[2]
    path = f"/dovetail.v1.{method}"
    call: Callable[..., object]
    if name in STREAMING and name in ANSWERED_BY_STREAM:
        stream = channel.stream_stream(path)
        call = lambda: list(stream(iter([sent]), metadata=metadata, timeout=120))  # noqa: E731
    elif name in STREAMING:
        many = channel.stream_unary(path)
        call = lambda: many(iter([sent]), metadata=metadata, timeout=120)  # noqa: E731
    elif name in ANSWERED_BY_STREAM:
        answers = channel.unary_stream(path)
        call = lambda: list(answers(sent, metadata=metadata, timeout=120))  # noqa: E731
    else:
        one = channel.unary_unary(path)
        call = lambda: one(sent, metadata=metadata, timeout=120)  # noqa: E731
    try:
        call()
    except grpc.RpcError as e:
        ours = any(key == "dovetail-error-bin" for key, _ in e.trailing_metadata() or ())
        return "refused" if ours else f"{e.code().name}: {e.details()}"
    return "taken"


@pytest.mark.parametrize("method", GENUINE)
def test_forged_messages_meet_our_errors(local: LocalCluster, method: str) -> None:
    """Mutants of genuine messages, random bytes and nothing at all, on every call."""
    rng = random.Random(f"{SEED} {method}")
    members = {p.name: p.address for p in local.cluster.status().processors}
    address = members["p1"] if method.startswith("DataPlane") else local.address
    metadata = [*call_metadata(local.security), ("dovetail-processor", "p2")]
    running = {n: psutil.Process(p.pid) for n, p in local.processes.items()}
    before = {n: p.memory_info().rss for n, p in running.items()}
    forged = [mutant(m, rng) for m in GENUINE[method] for _ in range(COUNT)]
    forged += [b"", *(rng.randbytes(rng.randrange(1, 200)) for _ in range(COUNT // 3))]
    with open_channel(address, local.security) as channel:
        found = Counter(outcome(channel, method, sent, metadata) for sent in forged)
    assert found.keys() <= {"refused", "taken"}, f"seed {SEED}: {found}"
    assert all(p.running for p in local.processes.values())
    for name, process in running.items():
        grown = process.memory_info().rss - before[name]
        assert grown < GROWTH_BYTES_MAX, f"{name} grew by {grown}"


def test_a_message_over_the_limit_is_refused(local: LocalCluster) -> None:
    """gRPC itself refuses what is larger than any batch may be."""
    huge = data.encode(IngestBatch(StreamName("a2"), "forger", 1, bytes(64 << 20)))
    huge += bytes(8 << 20)
    members = {p.name: p.address for p in local.cluster.status().processors}
    with open_channel(members["p1"], local.security) as channel:
        found = outcome(channel, "DataPlane/Ingest", huge, call_metadata(local.security))
    assert found.startswith("RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("method", GENUINE)
def test_every_call_needs_the_token(local: LocalCluster, method: str) -> None:
    """Also those that would be refused for another reason."""
    members = {p.name: p.address for p in local.cluster.status().processors}
    address = members["p1"] if method.startswith("DataPlane") else local.address
    wrong = [("authorization", "Bearer wrong"), ("dovetail-processor", "p2")]
    with open_channel(address, local.security) as channel:
        assert outcome(channel, method, GENUINE[method][0], wrong) == "refused"


def test_the_honest_query_is_exact_after_all_that(local: LocalCluster) -> None:
    """What forgers did to others did nothing to it."""
    cluster = local.cluster
    rows = pa.table({"k": list(range(100)), "text": [f"t{i}" for i in range(100)]}, schema=SCHEMA)
    for name in ("a", "b"):
        cluster.stream(name).send(rows)
    query = cluster.query("honest")
    query.wait(60)
    found = query.results().to_arrow()
    assert sorted(found.column("x").to_pylist()) == sorted(rows.column("text").to_pylist())
    assert found.column("x").to_pylist() == found.column("y").to_pylist()
