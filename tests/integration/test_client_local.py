"""Local clusters: they start whole or not at all, survive what they must, and end for sure."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dovetail
from dovetail.processes import ClusterStartError
from dovetail_proto.admin import MoveGroups
from dovetail_proto.errors import ConfigError, Refusal
from dovetail_proto.transport import Unreachable, call_metadata, open_channel, raised
from dovetail_proto.wire import admin as wire
from kit.cli import dovetail as run_command
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, gone, pair, same_bag, small_cluster

WAIT_S = 120.0

DEAD_AFTER_S = 8.0
"""A processor that loads its kernels on a busy machine is silent for a second or two."""

PARENT = """
import json, signal, sys
from kit.clusters import small_cluster
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with small_cluster(processors=1) as local:
    print(json.dumps([p.pid for p in local.processes.values()]), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_processes_end_with_their_parent(number: signal.Signals) -> None:
    """Whether it could say goodbye or not."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert len(pids) == 2
        parent.send_signal(number)
        parent.wait(WAIT_S)
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: all(gone(pid) for pid in pids))


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """Here its manager's store is no database; the end of the log is in the message."""
    (tmp_path / "store").mkdir()
    local = small_cluster(processors=1, data_dir=tmp_path, store=f"sqlite:{tmp_path / 'store'}")
    with pytest.raises(ClusterStartError, match="manager ended with code") as failed:
        local.start()
    assert str(tmp_path / "store") in failed.value.message
    assert local.processes == {}
    assert (tmp_path / "logs" / "manager.log").exists()


@pytest.mark.parametrize("face", ["listen", "rest"])
def test_a_cluster_whose_address_is_taken_starts_nothing(face: str, tmp_path: Path) -> None:
    """Whoever listens there may be another cluster, which would answer in its place."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        local = small_cluster(processors=1, data_dir=tmp_path, **{face: address})
        with pytest.raises(ConfigError, match=f"'{address}' .* another program listens there"):
            local.start()
    assert local.processes == {}
    assert not (tmp_path / "logs").exists()


FORGETS = """
import sys, threading, dovetail, pyarrow as pa
cluster = dovetail.local(processors=1, data_dir=sys.argv[1] or None)
for name in "lr":
    cluster.stream(name, pa.schema([("k", pa.int64())]))
query = cluster.submit("SELECT l.k FROM l JOIN r ON l.k = r.k", name="q")
for name in "lr":
    cluster.stream(name).send(pa.table({"k": [1, 2, 2]}))
query.wait()

def read():  # after the end of the main thread, too
    threading.main_thread().join()
    print(sorted(query.results().to_arrow()["k"].to_pylist()))

threading.Thread(target=lambda: [*query.results(follow=True)], daemon=True).start()
threading.Thread(target=read).start()
"""


def test_a_single_processor_is_threads_of_the_program_and_ends_with_it(tmp_path: Path) -> None:
    """Also of one that forgets to close it; nothing is printed, and nothing is left."""
    ended = subprocess.run(
        [sys.executable, "-c", FORGETS, ""],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[1, 2, 2, 2, 2]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_single_processor_spills_and_is_cleaned_up_in_this_process(tmp_path: Path) -> None:
    """No child is started; its threads are members, and are gone in the end."""
    left, right = pair(seed=3, rows=200_000, keys=60_000)
    me, threads = psutil.Process(), threading.active_count()
    children = me.children(recursive=True)
    with dovetail.local(processors=1, memory="8MB", threads=1, data_dir=tmp_path) as cluster:
        assert me.children(recursive=True) == children
        streams = [cluster.stream("l", left.schema), cluster.stream("r", right.schema)]
        query = cluster.submit(PAIR_SQL.format(left="l", right="r"), name="q", partitions=40)
        for start in range(0, left.num_rows, 20_000):
            streams[0].send(left.slice(start, 20_000))
            streams[1].send(right.slice(start, 20_000))
        assert query.close(WAIT_S).pushes > 0
        query.cleanup(tmp_path / "owed", master="local")
        run = query.results().to_arrow()
    owed = pq.read_table(tmp_path / "owed" / "phase=cleanup")
    whole = pa.concat_tables([run, owed.select(run.column_names)])
    assert same_bag(whole, PAIR_SQL.format(left="a", right="b"), a=left, b=right)
    until(lambda: threading.active_count() <= threads, "its threads are gone")


def test_nobody_gets_the_ports_of_a_cluster_before_or_between_its_managers() -> None:
    """They are chosen before anything listens there, and a manager that comes back needs them."""
    local = small_cluster(processors=1)

    def takes(address: str) -> bool:
        with socket.socket() as other:  # as one that asks for any port would get it
            try:
                other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
            except OSError:
                return False
        return True

    addresses = (local.address, local.url)
    assert not any(map(takes, addresses))
    with local:
        local.kill("manager")
        assert not any(map(takes, addresses))
        local.restart_manager()
        assert local.cluster.status().epoch == 2


def test_a_temporary_folder_goes_and_a_named_one_stays(tmp_path: Path) -> None:
    """The manager may be a thread of this process, too. Calls after the end are refused."""
    with small_cluster(processors=1, here="manager") as local:
        folder = local.data_dir
        assert folder.is_dir()
        cluster = local.cluster
        assert cluster.status().processors[0].state == "alive"
        assert list(local.processes) == ["p1"]
        stream = cluster.stream("s", pa.schema([("k", pa.int64())]))
        stream.send(pa.table({"k": [1]}))
    assert not folder.exists()
    for call in (cluster.status, lambda: stream.send(pa.table({"k": [1]}))):
        with pytest.raises(Refusal, match="connection to the cluster is closed; make the call"):
            call()


def test_joining_outlives_the_manager_and_a_death_is_told(tmp_path: Path) -> None:
    """Kill and restart the manager between rows; then kill a processor, and start it again."""
    left, right = pair(seed=1)
    with small_cluster(data_dir=tmp_path, dead_after_s=DEAD_AFTER_S) as local:
        cluster = local.cluster
        streams = [cluster.stream("l", left.schema), cluster.stream("r", right.schema)]
        query = cluster.submit(PAIR_SQL.format(left="l", right="r"), name="q", partitions=20)
        streams[0].send(left)
        local.kill("manager")
        with pytest.raises(Unreachable):
            cluster.status()
        streams[0].send(left)
        local.restart_manager()
        local.wait_until_joined(local.names)
        streams[1].send(right)
        query.wait(WAIT_S)
        assert cluster.status().epoch == 2
        twice = pa.concat_tables([left, left])
        found = query.results().to_arrow()
        assert same_bag(found, PAIR_SQL.format(left="a", right="b"), a=twice, b=right)

        local.kill("p2")
        until(lambda: query.status().state == "failed")
        assert "p2" in query.status().cause
        with pytest.raises(Refusal, match="has failed"):
            query.wait(WAIT_S)
        with pytest.raises(Unreachable, match="processor 'p2'"):
            query.results()
        assert query.results(logs=["p1"]).to_arrow().num_rows > 0
        local.start_processor("p2")
        assert {p.name for p in cluster.status().processors if p.state == "alive"} == {"p1", "p2"}
    assert (tmp_path / "manager.db").exists()


def test_what_spilled_is_produced_by_the_clean_up(tmp_path: Path) -> None:
    """Results of the run and of the clean-up together are the join."""
    left, right = pair(seed=2, rows=200_000, keys=60_000)
    with dovetail.local(processors=2, memory="4MB", threads=1, data_dir=tmp_path) as cluster:
        streams = [cluster.stream("l", left.schema), cluster.stream("r", right.schema)]
        query = cluster.submit(PAIR_SQL.format(left="l", right="r"), name="q", partitions=40)
        for start in range(0, left.num_rows, 20_000):
            streams[0].send(left.slice(start, 20_000))
            streams[1].send(right.slice(start, 20_000))
        closed = query.close(WAIT_S)
        assert closed.pushes > 0
        cleaned = query.cleanup(tmp_path / "owed", master="local")
        again = query.cleanup(tmp_path / "owed", master="local")
        run = query.results().to_arrow()
    owed = pq.read_table(tmp_path / "owed" / "phase=cleanup")
    assert cleaned.results == again.results == owed.num_rows > 0
    whole = pa.concat_tables([run, owed.select(run.column_names)])
    assert same_bag(whole, PAIR_SQL.format(left="a", right="b"), a=left, b=right)


NO_ROOM = r"'p2' has no room for \d+ bytes, \d+ are free"


def test_a_move_to_a_processor_without_room_is_refused() -> None:
    """By Python, gRPC and the command line, with the numbers; groups stay, the query goes on."""
    with small_cluster(processors=2) as local:
        query = local.cluster.submit(
            _declared(local.cluster), name="full", partitions=20, policy="none", counting=True
        )
        rows = 900_000  # more than half of what either may hold
        left = pa.table({"k": range(rows), "v": [0.0] * rows})
        local.cluster.stream("room_l").send(left)
        query.wait()
        before = query.partitions()
        mine = [p.group for p in before.partitions if p.owner == "p1"]
        with pytest.raises(Refusal, match=NO_ROOM):
            query.move(mine, "p2")
        with open_channel(local.address, local.security) as channel:
            move = channel.unary_unary("/dovetail.v1.Admin/Move")
            asked = wire.encode(MoveGroups("full", tuple(mine), "p2"))
            with pytest.raises(grpc.RpcError) as failed:
                move(asked, metadata=call_metadata(local.security))
        assert re.search(NO_ROOM, str(raised(failed.value)))
        told = run_command(
            *("move", "full", "--groups", ",".join(map(str, mine)), "--to", "p2", "--json"),
            environment={"DOVETAIL_URL": local.url, "DOVETAIL_TOKEN": local.token},
        )
        assert told.code != 0
        assert re.search(NO_ROOM, told.json["error"]["message"])
        assert query.partitions() == before
        assert query.status().state == "running"
        assert [m.outcome for m in query.moves()] == ["rolled back"] * 3


def _declared(cluster: dovetail.Cluster) -> str:
    schema = pa.schema([("k", pa.int64()), ("v", pa.float64())])
    for name in ("room_l", "room_r"):
        cluster.stream(name, schema)
    return "SELECT l.k, l.v, r.v AS w FROM room_l l JOIN room_r r ON l.k = r.k"
