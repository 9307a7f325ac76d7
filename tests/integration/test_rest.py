"""REST: every verb, every kind of refusal, and who is let in; over a real socket."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pyarrow as pa
import pytest

from dovetail_manager.admin.auth import Tokens
from dovetail_manager.admin.rest import RestSettings, serve
from dovetail_manager.store.errors import StoreUnavailable
from dovetail_proto import admin as a
from dovetail_proto.errors import ConfigError, Refusal
from dovetail_proto.transport import Security, error_from
from kit.admin_standin import AdminStandIn
from kit.rest_server import Running, running

TOKENS = Tokens(admin="all", read="look")
READER = {"Authorization": "Bearer look"}
COLUMNS = [{"name": "k", "type": "int64"}, {"name": "v", "type": "double", "nullable": False}]


@pytest.fixture(scope="module")
def rest() -> Iterator[Running]:
    """One server for all: every test takes names of its own."""
    with running(TOKENS) as made:
        yield made


def submit(rest: Running, name: str, **more: object) -> httpx.Response:
    """Start a query."""
    return rest.http.post("/v1/queries", json={"name": name, "sql": "SELECT 1", **more})


def test_a_stream_is_declared_by_columns_looked_at_and_ended(rest: Running) -> None:
    """Types have the names of SQL and of Arrow; the answer has the Arrow schema beside."""
    made = rest.http.post("/v1/streams", json={"name": "trades", "schema": COLUMNS})
    assert made.status_code == 201
    schema = pa.schema([("k", pa.int64()), pa.field("v", pa.float64(), nullable=False)])
    answer = made.json()
    assert pa.ipc.read_schema(pa.py_buffer(base64.b64decode(answer["arrow_schema"]))) == schema
    assert answer["schema"][1] == {"name": "v", "type": "float64", "nullable": False}
    assert rest.http.get("/v1/streams/trades").json() == answer
    assert rest.http.post("/v1/streams/trades/end").json()["ended"] is True
    assert "trades" in [s["name"] for s in rest.http.get("/v1/streams").json()["streams"]]


def test_answers_are_not_held_back_on_a_kept_connection(rest: Running) -> None:
    """Accepted sockets have Nagle's algorithm off; with it, each answer after the first is late."""
    assert rest.http.get("/v1/streams").is_success
    connections = list(rest.server._server.server_state.connections)
    assert connections
    for one in connections:
        accepted = one.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_stream_is_declared_by_an_arrow_schema(rest: Running) -> None:
    """Any type that Arrow has, also one without a name here."""
    schema = pa.schema([("tags", pa.list_(pa.string())), ("d", pa.decimal128(12, 2))])
    text = base64.b64encode(schema.serialize()).decode()
    made = rest.http.post("/v1/streams", json={"name": "by-arrow", "schema": text})
    assert made.status_code == 201
    assert rest.service.streams["by-arrow"].schema == schema.serialize().to_pybytes()
    assert made.json()["schema"][0]["type"].startswith("list<")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([{"name": "k", "type": "int65"}], "'int65' is not a type"),
        ([{"name": "k", "type": "decimal(40,2)"}], "is not a type"),
        ([{"name": "k", "type": "int64"}] * 2, "'k' is there twice"),
        ([], "[] is given, expected at least 1 in the list"),
        (None, "nothing is given, expected a list"),
        ([{"name": "k"}], "type: this is missing"),
        ("bm8gc2NoZW1h", "not base64 of an Arrow IPC schema"),
        ("%%%", "not base64"),
    ],
)
def test_a_schema_that_is_none_is_refused_by_name(rest: Running, schema: object, said: str) -> None:
    """As not valid, with what there is."""
    sent = rest.http.post("/v1/streams", json={"name": "bad", "schema": schema})
    rest.refused(sent, 422, said)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("partitions", "many", "body.partitions: 'many' is given, expected a whole number"),
        ("partitions", 0, "body.partitions: 0 is given, expected at least 1"),
        ("policy", "lazy", "body.policy: 'lazy' is given, expected 'none', 'disk', 'distributed'"),
        ("counting", 3, "body.counting: 3 is given, expected true or false"),
        ("weights", 1, "body.weights: 1 is given, expected a list"),
        ("what", 1, "body.what: no such field is known"),
    ],
)
def test_a_field_that_is_wrong_is_told_in_plain_words(
    rest: Running, field: str, value: object, said: str
) -> None:
    """With its place, the value and what was expected."""
    rest.refused(submit(rest, "wrong", **{field: value}), 422, said)


def test_a_query_is_submitted_steered_closed_and_dropped(rest: Running) -> None:
    """Every verb reaches the service and answers its status."""
    made = submit(rest, "life", partitions=7, weights=[2, 1], policy="disk")
    assert made.status_code == 201
    assert made.json()["partitions"] == 7
    assert made.json()["checksum"] == "f" * 16  # beyond what JSON's readers keep of a number
    assert rest.http.post("/v1/queries/life/pause").json()["state"] == "paused"
    assert rest.http.post("/v1/queries/life/resume").json()["state"] == "running"
    sent = rest.http.post("/v1/queries/life/policy", json={"policy": "active-disk"})
    assert sent.json()["policy"] == "active-disk"
    rest.refused(rest.http.delete("/v1/queries/life"), 409, "runs")
    assert rest.http.post("/v1/queries/life/close").json()["state"] == "closed"
    assert "life" in [q["name"] for q in rest.http.get("/v1/queries").json()["queries"]]
    assert rest.http.delete("/v1/queries/life").status_code == 200
    rest.refused(rest.http.get("/v1/queries/life"), 404, "'life' is not known")


def test_groups_are_shown_moved_and_pinned(rest: Running) -> None:
    """Groups may come in any order and twice."""
    submit(rest, "groups")
    path = "/v1/queries/groups"
    assert [p["owner"] for p in rest.http.get(f"{path}/partitions").json()["partitions"]] == [
        "p1",
        "p2",
    ]
    moved = rest.http.post(f"{path}/move", json={"groups": [7, 3, 7], "to": "p2"})
    assert (moved.status_code, moved.json()["groups"]) == (202, 2)
    assert len(rest.http.get(f"{path}/moves").json()["moves"]) == 1
    assert rest.http.post(f"{path}/pin", json={"groups": [1]}).status_code == 200
    decided = rest.http.post(f"{path}/rebalance", json={"dry_run": True}).json()
    assert decided["adaptations"][0]["numbers"] == {"ratio": 0.5, "since": None}
    assert rest.http.post(f"{path}/rebalance").json() == decided
    assert rest.http.get(f"{path}/adaptations").json() == decided
    rest.refused(rest.http.post(f"{path}/move", json={"groups": [1], "to": "p9"}), 404, "'p9'")
    rest.refused(rest.http.post(f"{path}/move", json={"groups": [], "to": "p1"}), 422, "groups")


def test_the_cluster_is_shown_and_a_processor_leaves(rest: Running) -> None:
    """An unknown one is refused."""
    assert [p["name"] for p in rest.http.get("/v1/cluster").json()["processors"]] == ["p1", "p2"]
    left = rest.http.post("/v1/processors/p1/leave")
    assert (left.status_code, left.json()["state"]) == (202, "leaving")
    rest.refused(rest.http.post("/v1/processors/p9/leave"), 404, "'p9' is not known")


def test_an_error_over_rest_is_the_error_that_was_raised(rest: Running) -> None:
    """The body makes the same kind again, with its domain."""
    body = rest.refused(rest.http.get("/v1/queries/none"), 404, "not known")
    again = error_from(body)
    assert isinstance(again, Refusal)
    assert (again.domain, again.remedy) == ("query", "look again")
    sent = rest.http.post("/v1/queries", json={"name": "sql", "sql": "INSERT"})
    assert rest.refused(sent, 400, "line 1, column 1")["code"] == "query"


@pytest.mark.parametrize(
    ("request_line", "body", "status", "said"),
    [
        ("GET /v1/nothing", None, 404, "no path for GET /v1/nothing"),
        ("GET /v1/streams/", None, 404, "no path"),
        ("PATCH /v1/streams", None, 405, "does not take this method"),
        (
            "GET /v1/streams/UPPER",
            None,
            422,
            "path.name: 'UPPER' is given, expected a name: 1 to 64",
        ),
        ("POST /v1/queries", b"{", 422, "JSON"),
        ("POST /v1/queries", b"\xff\xfe", 422, "JSON"),
        ("POST /v1/queries", b"[" * 100_000, 400, ""),
        ("POST /v1/queries", b'{"name": "a", "sql": "\\ud800"}', 422, "body.sql"),
        ("POST /v1/queries", b'{"name": "a", "sql": "S", "\\ud800": 1}', 422, "body"),
        ("POST /v1/queries", b'{"name": "a", "sql": "S", "weights": [NaN]}', 422, "weights"),
        (
            "POST /v1/queries",
            b'{"name":"a","sql":"S","partitions":' + b"9" * 5000 + b"}",
            400,
            "",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_our_body(
    rest: Running, request_line: str, body: bytes | None, status: int, said: str
) -> None:
    """Whoever refused it: the framework, the models or we."""
    method, path = request_line.split()
    headers = {"Content-Type": "application/json"} if body else {}
    rest.refused(rest.http.request(method, path, content=body, headers=headers), status, said)


def test_a_body_beyond_its_cap_is_refused(rest: Running) -> None:
    """With and without a length told ahead."""
    large = b" " * (9 << 20)
    headers = {"Content-Type": "application/json"}
    told = rest.http.post("/v1/queries", content=large, headers=headers)
    rest.refused(told, 413, "larger than 8388608 bytes")
    pieces = (large[: 1 << 20] for _ in range(9))
    untold = rest.http.post("/v1/queries", content=pieces, headers=headers)
    rest.refused(untold, 413, "larger than 8388608 bytes")


def test_a_reader_may_look_and_wait_and_nothing_else(rest: Running) -> None:
    """Refused before the path is looked at."""
    submit(rest, "readers")
    for path in ("/v1/streams", "/v1/queries/readers/moves", "/metrics"):
        assert rest.http.get(path, headers=READER).status_code == 200
    waited = rest.http.post("/v1/queries/readers/wait", headers=READER)
    assert waited.status_code == 200
    for method, path in (("POST", "/v1/queries/readers/close"), ("DELETE", "/v1/queries/readers")):
        sent = rest.http.request(method, path, headers=READER)
        assert rest.refused(sent, 403, "may only look")["code"] == "forbidden"


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer wrong", "Basic all", "all", "Bearer all2"])
def test_a_wrong_token_is_refused_on_every_path(rest: Running, sent: str) -> None:
    """Also on one that does not exist: whoever is not let in learns nothing."""
    for path in ("/v1/streams", "/v1/nothing", "/metrics"):
        answer = rest.http.get(path, headers={"Authorization": sent})
        assert rest.refused(answer, 401, "token")["code"] == "unauthenticated"
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_health_and_the_description_need_no_token(rest: Running) -> None:
    """And the page loads nothing from elsewhere."""
    base = str(rest.http.base_url)
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
        assert httpx.get(f"{base}{path}", timeout=60).status_code == 200
    assert "//" not in httpx.get(f"{base}/docs", timeout=60).text.replace("</", "")


def test_the_document_says_which_paths_take_a_token_and_names_each_operation(
    rest: Running,
) -> None:
    """So that clients which are generated from it send one, and read well."""
    paths = rest.http.get("/openapi.json").json()["paths"]
    named = {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            open_to_all = path in ("/healthz", "/readyz")
            assert ("security" in operation) is not open_to_all, path
            named[operation["operationId"]] = f"{method} {path}"
    assert named["read_results"] == "get /v1/queries/{name}/results"
    assert len(named) == sum(len(m) for m in paths.values())


def test_not_ready_while_the_store_is_away(rest: Running) -> None:
    """But alive: a restart would not help."""
    rest.service.failure = StoreUnavailable("no answer", unknown=False, remedy="start it")
    try:
        answer = rest.http.get("/readyz")
        assert rest.refused(answer, 503, "no answer")["code"] == "store-unavailable"
        assert answer.headers["Retry-After"] == "1"
        assert rest.http.get("/healthz").status_code == 200
    finally:
        rest.service.failure = None


def test_a_defect_is_told_as_one_without_its_insides(rest: Running) -> None:
    """The log has them; a caller has no use for them."""
    rest.service.failure = ZeroDivisionError("secret insides")
    try:
        body = rest.refused(rest.http.get("/v1/cluster"), 500, "internal: ZeroDivisionError")
        assert "secret" not in str(body)
    finally:
        rest.service.failure = None


def test_metrics_count_requests_results_and_each_move_once(rest: Running) -> None:
    """A move is counted when it has ended, however often metrics are read."""
    submit(rest, "measured")
    rest.http.post("/v1/queries/measured/move", json={"groups": [1], "to": "p2"})
    before = rest.http.get("/metrics").text
    assert 'outcome="committed",query="measured"' not in before
    done = [replace(m, outcome="committed", ended_s=2.0, size_bytes=5) for m in rest.service.moves]
    rest.service.moves[:] = done[-1:]
    for _ in range(2):
        text = rest.http.get("/metrics").text
    assert 'dovetail_moves_total{outcome="committed",query="measured"} 1.0' in text
    assert 'dovetail_moved_bytes_total{query="measured"} 5.0' in text
    assert 'dovetail_query_results_total{query="measured"} 4.0' in text
    assert 'dovetail_processor_memory_used_bytes{processor="p1"} 300.0' in text
    assert 'route="/v1/queries/{name}/move",status="202"' in text


def test_without_a_token_no_web_page_is_served() -> None:
    """A page's requests show an Origin, or a Host that was rebound to this machine."""
    with running() as rest:
        assert rest.http.get("/v1/cluster").status_code == 200
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            sent = rest.http.post("/v1/processors/p1/leave", headers=headers)
            rest.refused(sent, 403, "no web page")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("0.0.0.0:0", "no token is set"),
        ("nonsense", "is not host:port"),
        ("127.0.0.1:99999", "is not host:port"),
        ("203.0.113.1:1", "no token is set"),
    ],
)
def test_an_address_that_will_not_do_is_refused(address: str, said: str) -> None:
    """Before anything listens."""
    with pytest.raises(ConfigError, match=said):
        serve(AdminStandIn.__new__(AdminStandIn), RestSettings(address), Tokens(), Security())


def test_a_port_that_is_taken_is_refused(rest: Running) -> None:
    """By name."""
    with pytest.raises(ConfigError, match="cannot be listened on"):
        serve(rest.service, RestSettings(f"127.0.0.1:{rest.server.port}"), TOKENS, Security())


def test_a_name_that_is_taken_is_a_conflict(rest: Running) -> None:
    """For streams and queries alike."""
    for _ in range(2):
        stream = rest.http.post("/v1/streams", json={"name": "twice", "schema": COLUMNS})
        query = submit(rest, "twice")
    rest.refused(stream, 409, "exists")
    rest.refused(query, 409, "exists")
    assert isinstance(rest.service.get_query(a.QueryRef("twice")), a.QueryStatus)
