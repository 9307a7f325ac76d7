"""Everything that is said arrives as it was said; everything forged is refused by name."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_proto import feeds
from dovetail_proto import messages as m
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, GroupId, MapVersion, MoveId, ProcessorId, QueryName, SplitId
from dovetail_proto.partition_map import MapPatch
from dovetail_proto.query import PARTITIONS_MAX
from dovetail_proto.v1 import control_pb2 as pb
from dovetail_proto.wire import control, data

ROOT = Path(__file__).resolve().parents[2]

NAMES = st.from_regex(r"[a-z0-9_-]{1,64}", fullmatch=True)
LOGS = st.one_of(NAMES, st.builds("{}.{}".format, NAMES, st.integers(2, 999)))
COUNTS = st.integers(0, (1 << 63) - 1)
POSITIVE = st.integers(1, (1 << 63) - 1)
TEXTS = st.text(max_size=200)
GROUP = st.integers(0, PARTITIONS_MAX - 1).map(GroupId)
GROUPS = st.sets(GROUP, max_size=20).map(lambda s: tuple(sorted(s)))
SOME_GROUPS = st.sets(GROUP, min_size=1, max_size=20).map(lambda s: tuple(sorted(s)))
CHUNKS = st.integers(0, PARTITIONS_MAX)
SPLIT = st.builds(lambda q, i: SplitId(f"{q}/{i}"), NAMES, st.integers(0, 63))
SPLITS = st.sets(SPLIT, min_size=1, max_size=5).map(lambda s: tuple(sorted(s)))
MOVES = st.from_regex(r"[0-9]{10}-[0-9]{8}", fullmatch=True).filter(str.isascii)


@st.composite
def refs(draw: st.DrawFn) -> m.MoveRef:
    """A well-formed reference to a move."""
    oldest, move = sorted((draw(MOVES), draw(MOVES)))
    return m.MoveRef(QueryName(draw(NAMES)), Epoch(draw(POSITIVE)), MoveId(move), MoveId(oldest))


@st.composite
def patches(draw: st.DrawFn) -> MapPatch:
    """A well-formed patch."""
    since, until = sorted((draw(POSITIVE), draw(POSITIVE)))
    changes = tuple((g, ProcessorId(draw(NAMES))) for g in draw(GROUPS))
    return MapPatch(QueryName(draw(NAMES)), MapVersion(since), MapVersion(until), changes)


@st.composite
def offers(draw: st.DrawFn) -> m.PartitionsToMove:
    """An offer with as many sizes as groups, in any order."""
    groups = draw(st.permutations(draw(GROUPS)))
    sizes = tuple(draw(COUNTS) for _ in groups)
    return m.PartitionsToMove(draw(refs()), tuple(groups), sizes)


RUNS = st.builds("{}-{}".format, NAMES, COUNTS)
LOADS = st.builds(
    m.QueryLoad,
    query=NAMES,
    groups=st.integers(0, 1 << 31),
    held_bytes=COUNTS,
    spilled_bytes=COUNTS,
    produced=COUNTS,
    rows_in=st.lists(COUNTS, max_size=3).map(tuple),
    results=COUNTS,
    checksum=st.integers(0, (1 << 64) - 1),
    pushes=COUNTS,
    spilled_groups=COUNTS,
    queued_bytes=COUNTS,
    peak_state_bytes=COUNTS,
    pushed_bytes=COUNTS,
    state_limit_bytes=COUNTS,
    stage=st.sampled_from(m.Stage),
    cause=TEXTS,
)
STREAM_LOADS = st.builds(m.StreamLoad, NAMES, COUNTS, st.booleans(), rows_left=st.none() | COUNTS)
CONTROL: dict[str, st.SearchStrategy[m.ControlMessage]] = {
    "compute": st.builds(m.ComputePartitionsToMove, refs(), COUNTS, GROUPS, GROUPS),
    "partitions": offers(),
    "deactivate": st.builds(m.DeactivatePartitions, refs(), CHUNKS, SOME_GROUPS, NAMES, SPLITS),
    "deactivated": st.builds(m.Deactivated, refs(), CHUNKS),
    "send": st.builds(m.SendPartitions, refs(), CHUNKS, SOME_GROUPS, NAMES),
    "received": st.builds(m.Received, refs(), CHUNKS, COUNTS),
    "reactivate": st.builds(m.ReactivatePartitions, refs(), CHUNKS, SOME_GROUPS, NAMES, patches()),
    "reactivated": st.builds(m.Reactivated, refs(), CHUNKS, POSITIVE),
    "reserve": st.builds(m.Reserve, refs(), COUNTS),
    "reserved": st.builds(m.Reserved, refs()),
    "finish": st.builds(m.FinishMove, refs()),
    "finished": st.builds(m.MoveFinished, refs()),
    "push": st.builds(m.PushPartitions, NAMES, POSITIVE, POSITIVE, POSITIVE),
    "pushed": st.builds(m.Pushed, NAMES, POSITIVE, POSITIVE, COUNTS),
    "refused": st.builds(
        m.Refused,
        refs(),
        st.integers(-1, 1000),
        TEXTS,
        st.sampled_from(Domain).map(str),
        TEXTS,
        COUNTS,
        COUNTS,
    ),
    "join": st.builds(
        m.Join,
        NAMES,
        POSITIVE,
        TEXTS,
        POSITIVE,
        st.sampled_from(["", "127.0.0.1:7070", "[::1]:1", "p1.cluster.local:65535"]),
    ),
    "heartbeat": st.builds(
        m.Heartbeat,
        NAMES,
        POSITIVE,
        COUNTS,
        st.lists(LOADS, max_size=3).map(tuple),
        st.booleans(),
        COUNTS,
        st.lists(STREAM_LOADS, max_size=3).map(tuple),
        COUNTS,
        COUNTS,
        st.floats(0, 64),
    ),
    "assign": st.builds(m.Assign, POSITIVE, POSITIVE, st.text(min_size=1, max_size=20)),
    "heard": st.builds(m.Heard, POSITIVE, NAMES, POSITIVE, st.booleans()),
    "leave": st.builds(m.Leave, NAMES, POSITIVE, st.one_of(st.just(""), NAMES), st.booleans()),
    "stop": st.builds(m.StopQuery, NAMES, POSITIVE, TEXTS),
    "stopped": st.builds(m.QueryStopped, NAMES, POSITIVE),
}

REF = m.MoveRef(
    QueryName("q"), Epoch(1), MoveId("0000000001-00000001"), MoveId("0000000001-00000001")
)


@given(st.data())
def test_every_control_message_arrives_as_it_was_sent(picks: st.DataObject) -> None:
    """Plain → protobuf → bytes → protobuf → plain is the identity, for all kinds."""
    message = picks.draw(st.one_of(*CONTROL.values()))
    source = picks.draw(st.none() | NAMES.map(ProcessorId))
    assert control.decode(control.encode(source, message)) == (source, message)


def test_every_kind_of_control_message_has_a_place_in_the_envelope() -> None:
    """No message type was forgotten, in the table or in the test above."""
    kinds = {f.message_type.name for f in pb.ControlEnvelope.DESCRIPTOR.oneofs[0].fields}
    specified = {kind.__name__ for kind in control.SPECS} - {"QueryLoad", "StreamLoad"}
    assert kinds == specified
    assert len(CONTROL) == len(specified)


def test_every_field_of_every_message_crosses_the_wire() -> None:
    """A field that is added to a plain type or a .proto file alone is noticed."""
    for specs in (control.SPECS, data.SPECS):
        for kind, (made, fields) in specs.items():
            assert list(kind.__dataclass_fields__) == list(fields)
            assert {f.name for f in made.DESCRIPTOR.fields} == set(fields)


@given(
    st.one_of(
        st.builds(
            feeds.TupleBatch,
            SPLIT,
            st.integers(0, feeds.SEQUENCE_MAX),
            st.binary(max_size=50),
            st.integers(1, 2 * data.BATCH_BYTES_MAX),
            st.integers(1, 1 << 30),
            st.binary(max_size=50),
        ),
        st.builds(m.EndOfMovedPartitions, NAMES, MOVES, CHUNKS, SPLIT),
        st.builds(feeds.EndOfInput, NAMES, SPLIT),
    ),
    POSITIVE,
)
def test_frames_of_a_link_arrive_as_they_were_sent(item: feeds.LinkItem, number: int) -> None:
    """Batches and markers alike."""
    frame = feeds.LinkFrame(item.split, number, item)
    assert data.decode_frame(data.encode_frame(frame)) == frame


def test_probes_and_acknowledgements_arrive_as_they_were_sent() -> None:
    """A probe is the one frame without an item."""
    probe = feeds.LinkFrame(SplitId("q/1"), 0, None)
    assert data.decode_frame(data.encode_frame(probe)) == probe
    ack = feeds.LinkAck(QueryName("q"), SplitId("q/1"), 7, 1000, 5)
    assert data.decode(feeds.LinkAck, data.encode(ack)) == ack


@given(
    st.one_of(
        st.builds(
            feeds.IngestBatch,
            NAMES,
            NAMES,
            POSITIVE,
            st.binary(max_size=50),
            st.none() | COUNTS,
            st.booleans(),
        ),
        st.builds(feeds.IngestAck, COUNTS, COUNTS, st.integers(0, 9)),
        st.builds(feeds.QueryAt, NAMES),
        st.builds(feeds.Joined, COUNTS),
        st.builds(feeds.ReadResults, NAMES, LOGS, COUNTS, COUNTS, st.booleans(), RUNS, COUNTS),
        st.builds(
            feeds.LogPiece,
            NAMES,
            RUNS,
            LOGS,
            st.integers(0, data.SEGMENTS_MAX),
            COUNTS,
            POSITIVE,
            st.integers(0, 2**32 - 1),
            st.binary(max_size=50),
        ),
        st.builds(feeds.ResultBatch, COUNTS, COUNTS, st.binary(max_size=50), st.booleans()),
    )
)
def test_what_clients_and_processors_say_arrives_as_it_was_sent(message: object) -> None:
    """Plain → bytes → plain is the identity."""
    assert data.decode(type(message), data.encode(message)) == message


@pytest.mark.parametrize("size", [0, 10, data.PART_BYTES, 3 * data.PART_BYTES + 1])
def test_a_chunk_of_any_size_travels_in_parts(size: int) -> None:
    """Header first, then the rest of the payload; each part below gRPC's cap."""
    chunk = m.ReceivePartitions(REF, 3, (GroupId(1), GroupId(5)), 77, bytes(range(256)) * 1)
    chunk = replace(chunk, payload=(chunk.payload * (size // 256 + 1))[:size])
    parts = list(data.encode_parts(chunk))
    assert all(len(p) < 4 << 20 for p in parts)
    assert data.decode_parts(parts, size) == chunk
    if size:
        with pytest.raises(Refusal, match="payload"):
            data.decode_parts(parts, size - 1)


def test_parts_out_of_order_are_refused() -> None:
    """More without a header, two headers, nothing at all."""
    chunk = m.ReceivePartitions(REF, 0, (GroupId(1),), 7, b"x" * (data.PART_BYTES + 1))
    header, more = data.encode_parts(chunk)
    for parts in ([more, header], [header, header], []):
        with pytest.raises(Refusal, match=r"PartitionsPart\.part"):
            data.decode_parts(parts, 1 << 30)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_read_and_never_crash(junk: bytes) -> None:
    """Whatever arrives, the only error is our own."""
    for read in (control.decode, data.decode_frame, partial(data.decode, feeds.LinkAck)):
        with suppress(Refusal):
            read(junk)


@given(st.data())
def test_damaged_messages_are_refused_or_well_formed(picks: st.DataObject) -> None:
    """A flipped byte is refused, or yields a message that passes every check again."""
    message = picks.draw(st.one_of(*CONTROL.values()))
    raw = bytearray(control.encode(ProcessorId("p1"), message))
    raw[picks.draw(st.integers(0, len(raw) - 1))] ^= picks.draw(st.integers(1, 255))
    with suppress(Refusal):
        source, read = control.decode(bytes(raw))
        assert control.decode(control.encode(source, read)) == (source, read)


def forged(**fields: object) -> bytes:
    """A ReactivatePartitions with the given fields on top of good ones."""
    good = {
        "ref": pb.MoveRef(query="q", epoch=1, move=REF.move, oldest_open=REF.oldest_open),
        "groups": [1, 2],
        "owner": "p1",
        "patch": pb.MapPatch(query="q", from_version=1, to_version=2),
    }
    message = pb.ReactivatePartitions(**{**good, **fields})  # type: ignore[arg-type]
    return pb.ControlEnvelope(source="p2", reactivate_partitions=message).SerializeToString()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"groups": []}, r"ReactivatePartitions\.groups: .* at least one"),
        ({"groups": [2, 1]}, r"ReactivatePartitions\.groups: .* ascending"),
        ({"groups": [1, 1]}, r"ReactivatePartitions\.groups: .* ascending"),
        ({"groups": [PARTITIONS_MAX]}, r"ReactivatePartitions\.groups: .* below"),
        ({"chunk": PARTITIONS_MAX + 1}, r"ReactivatePartitions\.chunk"),
        ({"owner": "P1"}, r"ReactivatePartitions\.owner: 'P1' is not a processor's name"),
        ({"owner": "../p1"}, r"ReactivatePartitions\.owner"),
        ({"ref": pb.MoveRef()}, r"ref\.query: '' is not a name"),
        ({"ref": pb.MoveRef(query="q", epoch=0)}, r"ref\.epoch: 0"),
        ({"ref": pb.MoveRef(query="q", epoch=1 << 63)}, r"ref\.epoch"),
        ({"ref": pb.MoveRef(query="q", epoch=1, move="7")}, r"ref\.move: '7' is not a move id"),
        (
            {
                "ref": pb.MoveRef(
                    query="q", epoch=1, move=REF.move, oldest_open="0000000009-00000001"
                )
            },
            r"ref\.oldest_open",
        ),
        (
            {"patch": pb.MapPatch(query="q", from_version=3, to_version=2)},
            r"patch\.to_version: 2 is not after",
        ),
        ({"patch": pb.MapPatch(query="q", from_version=0, to_version=2)}, r"patch\.from_version"),
        (
            {
                "patch": pb.MapPatch(
                    query="q",
                    from_version=1,
                    to_version=2,
                    changes=[pb.GroupOwner(group=1, owner="p"), pb.GroupOwner(group=1, owner="p")],
                )
            },
            r"patch\.changes",
        ),
    ],
)
def test_a_forged_field_is_refused_by_name(fields: dict[str, object], named: str) -> None:
    """The refusal names the message, the field and the value."""
    control.decode(forged())
    with pytest.raises(Refusal, match=named):
        control.decode(forged(**fields))


def test_an_envelope_without_a_known_message_is_refused() -> None:
    """As one of a later version would be."""
    with pytest.raises(Refusal, match=r"ControlEnvelope\.message"):
        control.decode(pb.ControlEnvelope(source="p1").SerializeToString())
    with pytest.raises(Refusal, match=r"ControlEnvelope\.source"):
        control.decode(pb.ControlEnvelope(source="P 1").SerializeToString())


def test_the_committed_stubs_are_what_protoc_makes(tmp_path: Path) -> None:
    """`make proto` was run after the last change of a .proto file."""
    protos = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("proto/dovetail_proto/v1/*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=proto", *outputs, *protos],
        check=True,
        cwd=ROOT,
    )
    made = sorted((tmp_path / "dovetail_proto/v1").iterdir())
    assert len(made) == 2 * len(protos)
    for path in made:
        committed = ROOT / "proto/dovetail_proto/v1" / path.name
        assert committed.read_text() == path.read_text(), f"run `make proto`: {path.name}"
