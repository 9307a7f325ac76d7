"""A real manager on loopback with processors that only talk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2

from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_proto import admin as a
from dovetail_proto.assignment import Leaving, Phase
from dovetail_proto.errors import ConfigError, Domain, DovetailError, Refusal
from dovetail_proto.handover import Handover
from dovetail_proto.ids import ProcessorId, StreamName
from dovetail_proto.messages import Assign, Heard, Leave, Stage, StopQuery, StreamLoad
from dovetail_proto.transport import Security, call_metadata, open_channel, raised
from dovetail_proto.wire import admin as wire
from dovetail_proto.wire import control
from kit.scripted_processor import HOST, PATIENCE_S, ScriptedProcessor, load

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())]).serialize().to_pybytes()
SQL = "SELECT t.k, t.v AS tv, q.v AS qv FROM trades t JOIN quotes q ON t.k = q.k"
PRICES = a.QueryRef("prices")

Attach = Callable[..., ScriptedProcessor]


@pytest.fixture
def settings(tmp_path: Path) -> ManagerSettings:
    """A manager with a store of its own."""
    return ManagerSettings(str(tmp_path / "m.db"), name="first", spill_root="/spill", roots=("/",))


@pytest.fixture
def manager(settings: ManagerSettings) -> Iterator[ManagerServer]:
    """A running one."""
    with ManagerServer(settings) as server:
        yield server


@pytest.fixture
def attach(request: pytest.FixtureRequest) -> Iterator[Attach]:
    """Processors that are let go at the end."""
    made: list[ScriptedProcessor] = []

    def attach_one(manager: ManagerServer, name: str, **fields: Any) -> ScriptedProcessor:
        made.append(ScriptedProcessor(manager.address, name, **fields))
        return made[-1]

    yield attach_one
    for processor in made:
        processor.close()


def joined(attach: Attach, manager: ManagerServer, *names: str) -> list[ScriptedProcessor]:
    """Members of the cluster."""
    processors = [attach(manager, name) for name in names]
    for processor in processors:
        assert processor.wait(Heard).member
    return processors


def submit(manager: ManagerServer, **fields: Any) -> a.QueryStatus:
    """The query `prices` over two streams."""
    for name in ("trades", "quotes"):
        manager.admin.create_stream(a.CreateStream(name, SCHEMA))
    return manager.admin.submit(a.Submit("prices", SQL, **{"partitions": 4, **fields}))


def until(manager: ManagerServer, such: Callable[[a.QueryStatus], bool]) -> a.QueryStatus:
    """The query's status, once `such` holds of it."""
    over = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        status = manager.admin.get_query(PRICES)
        if such(status):
            return status
        over.wait(0.02)
    pytest.fail(f"never so: {status}")


def kinds(manager: ManagerServer) -> list[str]:
    """Everything that happened."""
    return [e.kind for e in manager.admin.events(0).events]


def test_a_submitted_query_reaches_every_processor(manager: ManagerServer, attach: Attach) -> None:
    """With plan, map, peers, and splits where the streams are at home."""
    p1, p2 = joined(attach, manager, "p1", "p2")
    status = submit(manager, spill="/spill", results="/results", policy="active-disk")
    assert (status.state, status.policy, status.map_version) == ("running", "active-disk", 1)
    for processor, streams in ((p1, ["trades"]), (p2, ["quotes"])):
        seen = processor.assignment(lambda x: bool(x.queries))
        [task] = seen.queries
        assert {p: x.address for p, x in seen.peers.items()} == dict.fromkeys(("p1", "p2"), HOST)
        assert [s.name for s in seen.streams] == streams
        assert task.split_hosts == {"p1": ("prices/0",), "p2": ("prices/1",)}
        assert [len(task.map.groups_of(ProcessorId(p))) for p in ("p1", "p2")] == [2, 2]
        assert (task.plan.sql, task.phase, task.disk.allowed) == (SQL, Phase.RUNNING, True)
        assert (task.spill, task.results, task.counting) == ("/spill", "/results", False)
    homes = {s.name: (s.home, s.address) for s in manager.admin.list_streams().streams}
    assert homes == {"trades": ("p1", HOST), "quotes": ("p2", HOST)}


def test_an_assignment_is_sent_again_until_a_heartbeat_names_it(
    manager: ManagerServer, attach: Attach
) -> None:
    """Nothing depends on a single message."""
    [p1] = joined(attach, manager, "p1")
    submit(manager)
    p1.acknowledge = False
    manager.admin.pause_query(PRICES)
    first = p1.assignment(lambda x: x.queries[0].phase is Phase.PAUSED)
    p1.heard.clear()
    again = p1.wait(Assign, lambda m: m.version == first.version)
    assert again.epoch == first.epoch


def test_a_submission_is_answered_when_processors_run_it(
    manager: ManagerServer, attach: Attach
) -> None:
    """Rows that are sent after it are seen by the query."""
    p1, p2 = joined(attach, manager, "p1", "p2")
    submit(manager)
    assert p1.loads.keys() == p2.loads.keys() == {"prices"}


def test_a_late_processor_gets_what_runs(manager: ManagerServer, attach: Attach) -> None:
    """An instance of every query, with the map as it is, and no groups yet."""
    joined(attach, manager, "p1")
    submit(manager)
    [p2] = joined(attach, manager, "p2")
    [task] = p2.assignment(lambda x: bool(x.queries)).queries
    assert len(task.map.groups_of(p2.name)) == 0
    assert set(manager.admin.get_cluster().processors[1].state.split()) == {"alive"}


def test_a_query_is_closed_when_everyone_says_so(manager: ManagerServer, attach: Attach) -> None:
    """Sums are those of the instances; then it leaves the assignment and can be dropped."""
    p1, p2 = joined(attach, manager, "p1", "p2")
    submit(manager)
    manager.admin.close_query(PRICES)
    p1.assignment(lambda x: bool(x.queries) and x.queries[0].phase is Phase.CLOSING)
    most = (1 << 64) - 1
    p1.loads["prices"] = load("prices", Stage.CLOSED, results=7, checksum=most, rows_in=(5, 0))
    assert manager.admin.get_query(PRICES).state == "closing"
    p2.loads["prices"] = load("prices", Stage.CLOSED, results=8, checksum=3, rows_in=(0, 6))
    status = until(manager, lambda s: s.state == "closed")
    assert (status.results, status.checksum, status.produced) == (15, 2, 200)
    assert [(i.alias, i.stream, i.rows_in) for i in status.inputs] == [
        ("t", "trades", 5),
        ("q", "quotes", 6),
    ]
    assert [i.processor for i in status.instances] == ["p1", "p2"]
    assert status.ended_s >= status.created_s > 1e9
    p2.assignment(lambda x: not x.queries)
    assert manager.admin.close_query(PRICES).state == "closed"
    assert manager.admin.drop_query(a.DropQuery(PRICES.name)).results == 15
    with pytest.raises(Refusal, match="query 'prices' is unknown"):
        manager.admin.get_query(PRICES)
    again = manager.admin.submit(a.Submit("prices", SQL, partitions=4))
    assert (again.state, again.results) == ("running", 0)
    assert kinds(manager)[-4:] == [
        "query-closing",
        "query-closed",
        "query-dropped",
        "query-submitted",
    ]


def test_a_processor_that_cannot_go_on_fails_the_query(
    manager: ManagerServer, attach: Attach
) -> None:
    """The cause is named, everyone stops, counts so far are kept, the cluster goes on."""
    p1, p2 = joined(attach, manager, "p1", "p2")
    submit(manager)
    p1.assignment(lambda x: bool(x.queries))
    p1.loads["prices"] = load("prices", results=4)
    until(manager, lambda s: s.results == 4)
    p2.loads["prices"] = load("prices", Stage.FAILED, cause="disk full", results=2)
    status = until(manager, lambda s: s.state == "failed")
    assert (status.cause, status.results) == ("processor p2: disk full", 6)
    assert p1.wait(StopQuery).cause == "processor p2: disk full"
    p1.assignment(lambda x: not x.queries)
    with pytest.raises(Refusal, match="query 'prices' is failed"):
        manager.admin.pause_query(PRICES)
    with pytest.raises(Refusal, match="exists already; use another name, or drop it"):
        manager.admin.submit(a.Submit("prices", SQL))
    assert manager.admin.drop_query(a.DropQuery(PRICES.name)).cause == "processor p2: disk full"


def test_silence_is_death_and_fails_the_query(settings: ManagerSettings, attach: Attach) -> None:
    """Of the one that had part of it; streams at home there get another home."""
    with ManagerServer(replace(settings, dead_after_s=4.0)) as manager:
        _, p2 = joined(attach, manager, "p1", "p2")
        submit(manager)
        p2.close()
        status = until(manager, lambda s: s.state == "failed")
        assert status.cause.startswith("processor p2 died: it was silent for ")
        dead = manager.admin.get_cluster().processors[1]
        assert (dead.name, dead.state) == ("p2", "dead")
        homes = {s.name: s.home for s in manager.admin.list_streams().streams}
        assert homes == {"trades": "p1", "quotes": "p1"}
        assert manager.admin.drop_query(a.DropQuery(PRICES.name)).state == "failed"
        assert manager.admin.submit(a.Submit("prices", SQL)).state == "running"


def test_the_next_manager_goes_on_from_the_store(settings: ManagerSettings, attach: Attach) -> None:
    """Streams, queries, phases, pins, policy and members are as they were; versions still grow."""
    with ManagerServer(settings) as manager:
        [p1] = joined(attach, manager, "p1")
        submit(manager, counting=True)
        manager.admin.pause_query(PRICES)
        manager.admin.pin(a.Pin("prices", (1, 3), True))
        manager.admin.set_policy(a.SetPolicy("prices", "disk"))
        manager.admin.end_stream(a.StreamRef("trades"))
        before = manager.admin.get_query(PRICES)
        streams = manager.admin.list_streams()
        version = p1.assignment(lambda x: x.streams[1].ended).version
    assert isinstance(p1.ended(), Exception)
    with ManagerServer(replace(settings, name="second")) as manager:
        cluster = manager.admin.get_cluster()
        assert (cluster.name, cluster.epoch) == ("second", 2)
        assert [(p.name, p.state) for p in cluster.processors] == [("p1", "alive")]
        assert manager.admin.list_streams() == streams
        after = manager.admin.get_query(PRICES)
        assert replace(after, instances=before.instances) == before
        assert [p.pinned for p in manager.admin.list_partitions(PRICES).partitions] == [
            False, True, False, True,
        ]  # fmt: skip
        again = attach(manager, "p1")
        seen = again.assignment()
        assert (seen.epoch, seen.queries[0].phase) == (2, Phase.PAUSED)
        assert seen.version > version
        assert manager.admin.resume_query(PRICES).state == "running"


def test_of_two_managers_on_one_store_the_first_is_fenced(settings: ManagerSettings) -> None:
    """It finds out by itself, ends, and says who took over."""
    with ManagerServer(settings) as first, ManagerServer(replace(settings, name="second")):
        assert first.wait(PATIENCE_S)
        assert "replaced by 'second'" in str(first.cause)
        with pytest.raises(DovetailError, match="the manager has ended"):
            first.admin.get_cluster()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"token": "wrong"}, "the token is wrong"),
        ({"token": ""}, "no token was given"),
        ({"token": "looking"}, "the reading token may only look"),
        ({"token": "secret", "running": "0.0.1"}, "runs Dovetail 0.0.1, the manager"),
    ],
)
def test_strangers_are_not_taken_in(
    settings: ManagerSettings, attach: Attach, fields: dict[str, Any], named: str
) -> None:
    """Their stream ends with the reason, and nobody is a member."""
    guarded = replace(settings, security=Security(token="secret"), read_token="looking")
    with ManagerServer(guarded) as manager:
        assert named in str(attach(manager, "p1", **fields).ended())
        assert manager.admin.get_cluster().processors == ()


@pytest.mark.parametrize(
    "forged",
    [b"\xff" * 20, b"", control.encode(ProcessorId("p2"), Leave(ProcessorId("p2"), 1))],
)
def test_a_forged_envelope_ends_its_stream_only(
    manager: ManagerServer, attach: Attach, forged: bytes
) -> None:
    """With an error of ours; the processor attaches anew and the others notice nothing."""
    p1, p2 = joined(attach, manager, "p1", "p2")
    p1.say_bytes(forged)
    error = p1.ended()
    assert isinstance(error, Refusal)
    assert error.domain in (Domain.MESSAGE, Domain.MEMBER)
    p2.heard.clear()
    assert p2.wait(Heard).member
    [again] = joined(attach, manager, "p1")
    assert again.assignment().peers.keys() == {"p1", "p2"}


def test_a_new_stream_of_a_processor_replaces_the_old_one(
    manager: ManagerServer, attach: Attach
) -> None:
    """The old one is told why; an older incarnation is refused."""
    [old] = joined(attach, manager, "p1")
    [new] = joined(attach, manager, "p1")
    assert "has attached itself anew" in str(old.ended())
    new.heard.clear()
    assert new.wait(Heard).member
    new.close()
    joined_anew = attach(manager, "p1", incarnation=2)
    assert joined_anew.wait(Heard).incarnation == 2
    assert "incarnation 1 of processor 'p1' is over" in str(attach(manager, "p1").ended())


def test_a_leaving_processor_is_let_go(manager: ManagerServer, attach: Attach) -> None:
    """It owns and hosts nothing, its successor has its logs; its streams get a new home."""
    p1, _ = joined(attach, manager, "p1", "p2")
    manager.admin.create_stream(a.CreateStream("trades", SCHEMA))
    assert manager.admin.leave(a.ProcessorRef("p1")).state == "leaving"
    told = p1.assignment(lambda x: x.leaving and x.streams[0].leaves)
    assert told.leaving == Leaving(ProcessorId("p2"), {})
    p1.streams["trades"] = StreamLoad(StreamName("trades"), 0, False, Handover(0, {}, {}).to_json())
    p1.assignment(lambda x: x.leaving and not x.streams)
    for successor in ("", "p3"):
        p1.say(Leave(ProcessorId("p1"), 1, successor))
        assert manager.admin.get_cluster().processors[0].state == "leaving"
    p1.say(Leave(ProcessorId("p1"), 1, "p2"))
    p1.wait(Heard, lambda m: not m.member)
    assert manager.admin.get_cluster().processors[0].state == "left"
    assert manager.admin.list_streams().streams[0].home == "p2"
    assert kinds(manager)[-3:] == ["processor-leaving", "stream-rehomed", "processor-left"]


def test_admin_verbs_cross_grpc(manager: ManagerServer, attach: Attach) -> None:
    """Answers are the service's; an error arrives as it was raised; health says serving."""
    joined(attach, manager, "p1")
    with open_channel(manager.address, Security()) as channel:

        def ask(verb: str, request: Any, answer: type) -> Any:
            data = channel.unary_unary(f"/dovetail.v1.Admin/{verb}")(wire.encode(request))
            return wire.decode(answer, data)

        ask("CreateStream", a.CreateStream("trades", SCHEMA), a.StreamStatus)
        assert ask("ListStreams", a.Everything(), a.Streams) == manager.admin.list_streams()
        assert ask("GetCluster", a.Everything(), a.ClusterStatus).processors[0].name == "p1"
        with pytest.raises(grpc.RpcError) as failed:
            ask("GetQuery", PRICES, a.QueryStatus)
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        error = raised(failed.value)
        assert isinstance(error, Refusal)
        assert (error.domain, error.message) == (Domain.QUERY, "query 'prices' is unknown")
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary("/dovetail.v1.Admin/Submit")(b"\xff\xff")
        assert "does not parse" in str(raised(failed.value))
        watch = channel.unary_stream("/dovetail.v1.Admin/Watch")
        events = watch(wire.encode(a.EventsSince(0)))
        seen = wire.decode(a.Events, next(events))
        assert [e.kind for e in seen.events] == ["processor-joined", "stream-created"]
        events.cancel()
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        answer = health_pb2.HealthCheckResponse.FromString(check(b""))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_an_open_address_needs_a_token(settings: ManagerSettings) -> None:
    """And an address that is taken is refused before the manager there is fenced."""
    with pytest.raises(ConfigError, match="is open to other machines, and no token is set"):
        ManagerServer(replace(settings, listen="0.0.0.0:0")).start()
    with ManagerServer(settings) as manager:
        with pytest.raises(ConfigError, match="cannot be listened on"):
            ManagerServer(replace(settings, listen=manager.address)).start()
        assert manager.admin.get_cluster().epoch == 1
        manager.admin.list_streams()


def test_the_manager_is_a_process(tmp_path: Path) -> None:
    """It answers with its token, ends cleanly when asked, and a killed one has a successor."""
    security = Security(token="secret")
    settings = {
        "TOKEN": security.token,
        "STORE": f"sqlite:{tmp_path / 'manager.db'}",
        "LISTEN": "127.0.0.1:0",
        "REST": "127.0.0.1:0",
        "DATA_DIR": str(tmp_path),
        "LOG_FORMAT": "json",
    }
    for epoch, end, code in ((1, signal.SIGKILL, -9), (2, signal.SIGTERM, 0)):
        with subprocess.Popen(
            [sys.executable, "-m", "dovetail", "manager"],
            env={**os.environ, **{f"DOVETAIL_{k}": v for k, v in settings.items()}},
            stderr=subprocess.PIPE,
        ) as process:
            try:
                assert process.stderr is not None
                events = map(json.loads, process.stderr)
                address = next(e["address"] for e in events if "address" in e)
                with open_channel(address, security) as channel:
                    data = channel.unary_unary("/dovetail.v1.Admin/GetCluster")(
                        b"", metadata=call_metadata(security)
                    )
                assert wire.decode(a.ClusterStatus, data).epoch == epoch
            finally:
                process.send_signal(end)
            assert process.wait(PATIENCE_S) == code
