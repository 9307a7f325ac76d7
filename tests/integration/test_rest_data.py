"""REST: rows in, results and events out; bounded, checked, and once."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pyarrow as pa
import pytest

from dovetail_manager.admin.auth import Tokens
from dovetail_manager.admin.rest.room import Room
from dovetail_proto.transport import Security
from dovetail_proto.wire.data import BATCH_BYTES_MAX
from kit.admin_standin import RESULT_SCHEMA, ipc
from kit.rest_server import Running, running

ARROW = "application/vnd.apache.arrow.stream"
LINES = {"Accept": "application/x-ndjson"}
SCHEMA = pa.schema([("k", pa.int64()), pa.field("v", pa.string(), nullable=False)])


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """One server for all; its token is also the processors'."""
    with running(Tokens(admin="all"), Security(token="all")) as made:
        yield made


@pytest.fixture
def rest(server: Running) -> Running:
    """With a stream `s` and a query `q`, and nothing else."""
    server.service.reset()
    text = base64.b64encode(SCHEMA.serialize()).decode()
    server.http.post("/v1/streams", json={"name": "s", "schema": text})
    server.http.post("/v1/queries", json={"name": "q", "sql": "SELECT 1"})
    return server


def send(rest: Running, body: bytes, kind: str = ARROW, **headers: str) -> httpx.Response:
    """One batch for `s`."""
    named = {"Content-Type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return rest.http.post("/v1/streams/s/batches", content=body, headers=named)


def batch(*keys: int, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Rows of `s`."""
    return pa.RecordBatch.from_pylist([{"k": k, "v": str(k)} for k in keys], schema=schema)


def results(*sizes: int) -> list[pa.RecordBatch]:
    """Batches of results."""
    return [
        pa.record_batch({"k": np.arange(n), "v": np.ones(n)}, schema=RESULT_SCHEMA) for n in sizes
    ]


def test_arrow_and_json_rows_reach_the_home_as_the_same_batch(rest: Running) -> None:
    """In one feed of ours, numbered in order."""
    first = send(rest, ipc(batch(1, 2)))
    rows = json.dumps([{"k": 1, "v": "1"}, {"v": "2", "k": 2}]).encode()
    second = send(rest, rows, "application/json; charset=utf-8")
    assert first.json()["source"] == second.json()["source"]
    assert second.json()["sequence"] == first.json()["sequence"] + 1
    assert second.json()["stream_rows"] == 4
    assert [b for _, _, _, b in rest.plane.taken] == [batch(1, 2)] * 2


def test_several_batches_in_one_body_arrive_as_one(rest: Running) -> None:
    """All are taken in, or none."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch(1))
        writer.write_batch(batch(2, 3))
    assert send(rest, bytes(sink.getvalue())).json()["rows"] == 3
    assert [b.num_rows for _, _, _, b in rest.plane.taken] == [3]


def test_a_batch_that_is_sent_again_with_its_sequence_is_taken_in_once(rest: Running) -> None:
    """As after an answer that got lost."""
    for _ in range(2):
        sent = send(rest, ipc(batch(1)), Dovetail_Source="mine", Dovetail_Sequence="1")
        told = {"source": "mine", "sequence": 1, "rows": 1, "stream_rows": 1, "readers": 1}
        assert sent.json() == told
    assert len(rest.plane.taken) == 1


def test_a_home_that_knows_no_source_any_more_gets_every_batch_once(rest: Running) -> None:
    """It was started anew. What has no source of its own is sent again, under another name."""
    with ThreadPoolExecutor(4) as pool:  # several sources of the server's own
        answers = list(pool.map(lambda k: send(rest, ipc(batch(k))), range(8)))
    rest.plane.forget_sources()
    answers += [send(rest, ipc(batch(k))) for k in range(8, 12)]
    assert {a.status_code for a in answers} == {200}
    taken = [k for *_, b in rest.plane.taken for k in b["k"].to_pylist()]
    assert sorted(taken) == list(range(12))
    named = {"Dovetail_Source": "mine"}
    assert send(rest, ipc(batch(1)), **named, Dovetail_Sequence="1").status_code == 200
    rest.plane.forget_sources()
    refused = send(rest, ipc(batch(2)), **named, Dovetail_Sequence="2")
    rest.refused(refused, 409, "knows no such source")


def test_a_source_without_a_sequence_is_refused(rest: Running) -> None:
    """Half of the promise is none."""
    rest.refused(send(rest, ipc(batch(1)), Dovetail_Source="mine"), 422, "go together")
    rest.refused(send(rest, ipc(batch(1)), Dovetail_Sequence="1"), 422, "go together")
    bad = send(rest, ipc(batch(1)), Dovetail_Source="Mine!", Dovetail_Sequence="0")
    rest.refused(bad, 422, "Dovetail-Source")


def test_an_empty_body_of_rows_is_no_batch(rest: Running) -> None:
    """It is answered, and the home hears nothing."""
    assert send(rest, b"[]", "application/json").json()["rows"] == 0
    assert send(rest, ipc(batch())).json()["rows"] == 0
    assert rest.plane.taken == []


def forged() -> bytes:
    """Text whose offsets lead outside of its bytes."""
    row = pa.RecordBatch.from_pylist([{"k": 1, "v": "x" * 77_777}], schema=SCHEMA)
    true, false = struct.pack("<ii", 0, 77_777), struct.pack("<ii", 0, 1 << 30)
    head, found, tail = ipc(row).rpartition(true)  # before it, the length stands in the metadata
    assert found
    return head + false + tail


def dictionary() -> bytes:
    """Text by number: decoded, a small body could become any size."""
    coded = pa.array(["a"]).dictionary_encode()
    return ipc(pa.record_batch({"k": pa.array([1]), "v": coded}))


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (ARROW, b"", "no Arrow IPC stream"),
        (ARROW, b"\xff" * 64, "no Arrow IPC stream"),
        (ARROW, ipc(batch(1))[:-100], "no Arrow IPC stream"),
        (ARROW, forged(), "no Arrow IPC stream"),
        (ARROW, dictionary(), "dictionary"),
        (ARROW, ipc(batch(*range(999)), "zstd"), "compressed"),
        (ARROW, ipc(batch(*range(999)), "lz4"), "compressed"),
        (ARROW, ipc(pa.record_batch({"v": ["1"], "k": [1]})), "the stream has (k int64, v string)"),
        (
            ARROW,
            ipc(pa.record_batch({"k": pa.array([1]), "v": pa.array([None], pa.string())})),
            "'v' has nulls",
        ),
        ("application/json", b"nothing", "no JSON"),
        ("application/json", b'{"k": 1}', "not a list of rows"),
        ("application/json", b'[{"k": 1, "v": "1", "w": 2}]', "'w' in row 0"),
        ("application/json", b'[{"k": "one", "v": "1"}]', "column 'k'"),
        ("application/json", b'[{"k": 1}]', "'v' has nulls"),
        ("application/json", b'[{"k": 1, "v": "\\ud800"}]', "column 'v'"),
    ],
)
def test_rows_that_are_none_are_refused_before_use(
    rest: Running, kind: str, body: bytes, said: str
) -> None:
    """The home never sees them."""
    rest.refused(send(rest, body, kind), 400, said)
    assert rest.plane.taken == []


def test_times_decimals_and_bytes_come_as_text_in_json(rest: Running) -> None:
    """And results go out the same way."""
    columns = [
        {"name": n, "type": t}
        for n, t in (("d", "date"), ("t", "timestamptz"), ("m", "decimal(9,2)"), ("b", "binary"))
    ]
    rest.http.post("/v1/streams", json={"name": "kinds", "schema": columns})
    row = {"d": "2024-02-29", "t": "2024-01-01T10:00:00.000001Z", "m": "-1.50", "b": "AP8="}
    sent = rest.http.post("/v1/streams/kinds/batches", json=[row, dict.fromkeys(row)])
    assert sent.json()["rows"] == 2, sent.text
    taken = rest.plane.taken[-1][3]
    assert taken["b"][0].as_py() == b"\0\xff"
    query = rest.service.queries["q"]
    rest.service.queries["q"] = replace(query, schema=taken.schema.serialize().to_pybytes())
    rest.plane.results = [taken]
    lines = rest.http.get("/v1/queries/q/results?log=p1", headers=LINES).text.splitlines()
    assert [json.loads(line) for line in lines] == [row, dict.fromkeys(row)]


def test_a_stream_that_takes_no_rows_says_why(rest: Running) -> None:
    """Ended, read from a file, unknown, or its home away."""
    stream = rest.service.streams["s"]
    for changed, status, said in (
        (replace(stream, ended=True), 409, "it has ended"),
        (replace(stream, path="/data"), 409, "it is read from '/data'"),
        (replace(stream, address=""), 503, "processor 'p1', is away"),
        (replace(stream, address="127.0.0.1:1"), 503, "may or may not have been taken in"),
    ):
        rest.service.streams["s"] = changed
        rest.refused(send(rest, ipc(batch(1))), status, said)
    none = rest.http.post("/v1/streams/none/batches", json=[])
    rest.refused(none, 404, "'none' is not known")
    rest.refused(send(rest, b"k\n1", "text/csv"), 415, "'text/csv'")
    rest.refused(send(rest, b" " * (BATCH_BYTES_MAX + 1)), 413, "larger than")


def test_more_at_once_than_there_is_memory_for_is_told_to_come_again(
    rest: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bytes for bodies, also where no length is told; nothing of it is read."""
    plane = rest.server.context.plane
    monkeypatch.setattr(plane, "held", Room(10_000, "bytes in batches"))
    assert send(rest, ipc(batch(1))).status_code == 200
    full = send(rest, ipc(batch(*range(10_000))))
    assert rest.refused(full, 503, "too many bytes")["code"] == "overloaded"
    untold = rest.http.post(
        "/v1/streams/s/batches", content=iter([ipc(batch(1))]), headers={"Content-Type": ARROW}
    )
    rest.refused(untold, 503, "too many bytes")
    monkeypatch.setattr(plane, "readers", Room(0, "readers of results"))
    rest.refused(rest.http.get("/v1/queries/q/results"), 503, "too many readers")
    assert send(rest, ipc(batch(1))).status_code == 200


def test_what_the_home_refuses_comes_through(rest: Running) -> None:
    """With its reason as the status."""
    sent = send(rest, ipc(batch(1)), Dovetail_Source="refused", Dovetail_Sequence="1")
    rest.refused(sent, 409, "not from you")


def test_wait_answers_when_the_join_has_caught_up_and_not_later_than_asked(rest: Running) -> None:
    """A wait that ends without it is a conflict, to be tried again."""
    send(rest, ipc(batch(1, 2)))
    assert rest.http.post("/v1/queries/q/wait").json() == {"rows": 2}
    rest.plane.joined.clear()
    late = rest.http.post("/v1/queries/q/wait", json={"timeout_s": 0.2})
    rest.refused(late, 409, "not joined within")
    query = rest.service.queries["q"]
    rest.service.queries["q"] = replace(query, state="failed", cause="p2 died")
    rest.refused(rest.http.post("/v1/queries/q/wait"), 409, "has failed: p2 died")
    rest.service.queries["q"] = replace(query, state="closed")
    assert rest.http.post("/v1/queries/q/wait").json() == {"rows": 7}


def test_results_of_all_processors_come_as_one_arrow_stream_with_offsets(rest: Running) -> None:
    """From any offset of one log on."""
    rest.plane.results = results(2, 3)
    body = rest.http.get("/v1/queries/q/results").content
    with pa.ipc.open_stream(body) as reader:
        pieces = [reader.read_next_batch_with_custom_metadata() for _ in range(4)]
    places = sorted((p.custom_metadata[b"dovetail-log"], p.batch.num_rows) for p in pieces)
    assert places == [(b"p1", 2), (b"p1", 3), (b"p2", 2), (b"p2", 3)]
    later = rest.http.get("/v1/queries/q/results?log=p2&segment=1&row=1").content
    with pa.ipc.open_stream(later) as reader:
        rows, metadata = reader.read_next_batch_with_custom_metadata()
    assert rows["k"].to_pylist() == [1, 2]
    assert (metadata[b"dovetail-segment"], metadata[b"dovetail-row"]) == (b"1", b"1")


def test_a_query_without_results_answers_an_empty_table(rest: Running) -> None:
    """With its schema, or no line."""
    with pa.ipc.open_stream(rest.http.get("/v1/queries/q/results").content) as reader:
        assert reader.read_all() == RESULT_SCHEMA.empty_table()
    assert rest.http.get("/v1/queries/q/results", headers=LINES).text == ""


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", ARROW),
        (f"text/csv, {ARROW};q=0.5", ARROW),
        ("text/csv, */*;q=0.1", ARROW),
        ("application/*", ARROW),
        ("text/plain", "application/x-ndjson"),
    ],
)
def test_results_come_as_a_kind_that_the_reader_accepts(
    rest: Running, accept: str, kind: str
) -> None:
    """Arrow unless it asks for JSON lines."""
    answer = rest.http.get("/v1/queries/q/results", headers={"Accept": accept})
    assert answer.headers["content-type"].partition(";")[0] == kind


def test_a_reader_that_accepts_neither_arrow_nor_json_lines_is_told_so(rest: Running) -> None:
    """It would not know what to do with them."""
    answer = rest.http.get("/v1/queries/q/results", headers={"Accept": "text/csv"})
    assert ARROW in str(rest.refused(answer, 406, "as 'text/csv'")["remedy"])


def test_a_limit_cuts_the_results(rest: Running) -> None:
    """In the middle of a batch."""
    rest.plane.results = results(2, 3)
    lines = rest.http.get("/v1/queries/q/results?log=p1&limit=4", headers=LINES).text
    assert [json.loads(line)["k"] for line in lines.splitlines()] == [0, 1, 0, 1]


def test_a_reader_that_stops_reading_stops_the_processors(rest: Running) -> None:
    """Far more is there than is held: most of it never leaves them."""
    rest.plane.results = results(*[200_000] * 200)
    with rest.http.stream("GET", "/v1/queries/q/results?log=p1") as answer:
        next(answer.iter_raw())
    assert rest.plane.reading_ended.wait(60)
    assert rest.plane.sent < 100


def test_a_follower_that_leaves_while_nothing_comes_is_let_go(rest: Running) -> None:
    """Nobody would notice otherwise until the next result."""
    with rest.http.stream("GET", "/v1/queries/q/results?log=p1&follow=true"):
        assert rest.plane.reading_begun.wait(60)
        assert not rest.plane.reading_ended.is_set()
    assert rest.plane.reading_ended.wait(60)


def test_results_that_are_not_in_a_log_are_refused_with_their_place(rest: Running) -> None:
    """Or with the processor that is away or has none."""
    rest.http.post("/v1/queries", json={"name": "files", "sql": "SELECT 1", "results": "/out"})
    rest.refused(rest.http.get("/v1/queries/files/results"), 409, "are files in '/out'")
    rest.refused(rest.http.get("/v1/queries/q/results?log=p9"), 404, "no log 'p9'")
    rest.service.gone = True
    try:
        away = rest.http.get("/v1/queries/q/results")
    finally:
        rest.service.gone = False
    rest.refused(away, 503, "processor 'p1', which has log 'p1'")


def test_results_that_are_forged_are_never_handed_out(rest: Running) -> None:
    """A processor that sends another schema is not ours: a defect, or an end if the body began."""
    rest.plane.results = [batch(1)]
    try:
        answer = rest.http.get("/v1/queries/q/results")
    except httpx.RemoteProtocolError as cut:
        assert "incomplete" in str(cut)  # noqa: PT017 - one of two outcomes
    else:
        rest.refused(answer, 500, "its columns are")


def events(lines: Iterator[str], count: int) -> list[tuple[str, str, dict[str, object]]]:
    """The first `count` events of a stream: id, kind, data."""
    found, fields = [], {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif "data" in fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
            fields = {}
        if len(found) == count:
            break
    return found


def test_events_come_as_they_happen_and_go_on_after_the_last_one_seen(rest: Running) -> None:
    """An id of another manager's term begins at the start."""
    with rest.http.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()
        assert events(lines, 1)[0][:2] == ("3-1", "stream-created")
        rest.service.happen("processor-died", processor="p2", text="killed")
        each = iter(lambda: events(lines, 1)[0], None)
        place, _, data = next(event for event in each if event[1] == "processor-died")
        assert data["text"] == "killed"
    rest.service.happen("processor-joined", processor="p2")
    with rest.http.stream("GET", "/v1/events", headers={"Last-Event-ID": place}) as answer:
        assert [kind for _, kind, _ in events(answer.iter_lines(), 1)] == ["processor-joined"]
    with rest.http.stream("GET", "/v1/events", headers={"Last-Event-ID": "2-2"}) as answer:
        assert events(answer.iter_lines(), 1)[0][0] == "3-1"


def test_a_server_that_stops_ends_its_streams() -> None:
    """Listeners see an end, not a hang."""
    with running() as rest, rest.http.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()
        next(lines)
        rest.server.stop()
        assert "" in list(lines)
