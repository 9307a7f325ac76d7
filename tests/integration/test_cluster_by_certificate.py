"""A whole cluster with mutual TLS and no token, of the programs that people start.

Every process has the files of its role and no others; what is joined, moved, spilled and cleaned up
over these connections is the join, and whoever shows another role or another authority is refused.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail import certificates
from dovetail.admin_calls import AdminCalls
from dovetail.cluster import Cluster
from dovetail.services import END_NOW
from dovetail_proto.certificate_roles import MANAGER, PROCESSOR
from dovetail_proto.transport import Security, Unreachable, open_channel
from kit.cli import dovetail
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, pair, same_bag

WAIT_S = 120.0
SQL = PAIR_SQL.format(left="l", right="r")
LEFT, RIGHT = pair(seed=8, rows=40_000, keys=20_000)


def environment(folder: Path, kind: str, data_dir: Path) -> dict[str, str]:
    """Settings of a process that shows the certificate of this kind."""
    return {
        "DOVETAIL_TLS_AUTHORITY": str(folder / "ca.pem"),
        "DOVETAIL_TLS_CERTIFICATE": str(folder / f"{kind}.pem"),
        "DOVETAIL_TLS_KEY": str(folder / f"{kind}.key"),
        "DOVETAIL_TLS_MUTUAL": "true",
        "DOVETAIL_DATA_DIR": str(data_dir),
        "DOVETAIL_SPILL": str(data_dir.parent / "spill"),
        "DOVETAIL_ROOT": str(data_dir.parent),
        "DOVETAIL_MEMORY": "2500000",
        "DOVETAIL_LISTEN": "127.0.0.1:0",
        "DOVETAIL_REST": "127.0.0.1:0",
        "DOVETAIL_HEARTBEAT_S": "0.2",
        "DOVETAIL_LOG_FORMAT": "json",
    }


def shows(folder: Path, kind: str) -> Security:
    """A caller with the certificate of this kind."""
    return Security("", folder / "ca.pem", folder / f"{kind}.pem", folder / f"{kind}.key")


class ByCertificate:
    """A manager and two processors; `folder` has their certificates."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.folder = path / "certs"
        self._stack = stack
        assert dovetail("certs", "init", self.folder).code == 0
        told = self._start("manager", "manager", "--tethered")
        self.address, self.url = told["address"], f"https://{told['rest']}"
        self.client = stack.enter_context(Cluster(self.url, shows(self.folder, "client")))
        for name in ("p1", "p2"):
            words = ("processor", name, "--manager", self.address, "--tethered")
            self._start("processor", *words)
        until(lambda: self.alive() == ["p1", "p2"], "both processors joined", WAIT_S)

    def alive(self) -> list[str]:
        """Who has joined."""
        return sorted(p.name for p in self.client.status().processors if p.state == "alive")

    def http(self, kind: str) -> httpx.Client:
        """REST as any program calls it, with a certificate of this kind."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        context.load_cert_chain(self.folder / f"{kind}.pem", self.folder / f"{kind}.key")
        made = httpx.Client(base_url=self.url, verify=context, timeout=WAIT_S)
        return self._stack.enter_context(made)

    def _start(self, kind: str, *words: str) -> dict[str, Any]:
        """Start a process with the certificate of its kind; a manager's answer to where it is."""
        data_dir = self.path / words[1] if kind == "processor" else self.path / "manager"
        log = data_dir.with_suffix(".log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "dovetail", *words],
                env={**os.environ, **environment(self.folder, kind, data_dir)},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
            )
        self._stack.callback(process.wait, WAIT_S)
        self._stack.callback(process.send_signal, END_NOW)
        told: dict[str, Any] = {}

        def listens() -> bool:
            assert process.poll() is None, log.read_text()
            whole = log.read_text().rpartition("\n")[0].splitlines()
            told.update(next((e for e in map(json.loads, whole) if "rest" in e), {}))
            return bool(told) or kind == "processor"

        until(listens, "it listened", WAIT_S)
        return told


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByCertificate]:
    """Which has only a little memory."""
    with ExitStack() as stack:
        yield ByCertificate(tmp_path_factory.mktemp("by-certificate"), stack)


def test_it_joins_moves_spills_and_cleans_up_exactly(cluster: ByCertificate) -> None:
    """Fed by Python and by REST; a group goes from one processor to the other and back."""
    client, http = cluster.client, cluster.http("client")
    streams = [client.stream("l", LEFT.schema), client.stream("r", RIGHT.schema)]
    query = client.submit(SQL, name="q", partitions=40, policy="disk")
    step = 10_000
    for stream, table in zip(streams, (LEFT, RIGHT), strict=True):
        stream.send(table.slice(0, step))
    query.wait(WAIT_S)

    def owner() -> str:
        return next(p.owner for p in query.partitions().partitions if p.group == 0)

    first = owner()
    for there in ("p2", "p1") if first == "p1" else ("p1", "p2"):
        query.move([0], there)
        until(lambda: all(m.ended_s for m in query.moves()), "the move was over", WAIT_S)
        assert owner() == there, query.moves()
    assert all(m.size_bytes > 0 for m in query.moves())

    for start in range(step, LEFT.num_rows, step):
        streams[0].send(LEFT.slice(start, step))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, RIGHT.schema) as out:
            out.write_table(RIGHT.slice(start, step))
        sent = http.post(
            "/v1/streams/r/batches",
            content=sink.getvalue().to_pybytes(),
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        )
        assert sent.status_code == 200, sent.text
    assert query.close(WAIT_S).pushes > 0
    query.cleanup(cluster.path / "owed", master="local")
    run = query.results().to_arrow()
    owed = pq.read_table(cluster.path / "owed" / "phase=cleanup").select(run.column_names)
    assert owed.num_rows > 0
    assert same_bag(pa.concat_tables([run, owed]), SQL, l=LEFT, r=RIGHT)

    reader = cluster.http("reader")
    assert reader.get("/v1/queries/q").json()["state"] == "closed"
    read = reader.get("/v1/queries/q/results")
    assert read.status_code == 200, read.text
    assert pa.ipc.open_stream(read.content).read_all().num_rows == run.num_rows
    assert reader.delete("/v1/queries/q").status_code == 403
    env = environment(cluster.folder, "reader", cluster.path / "nobody")
    looked = dovetail("status", "q", environment={**env, "DOVETAIL_URL": cluster.url})
    assert looked.code == 0, looked.err


def test_a_readers_certificate_makes_no_processor(cluster: ByCertificate) -> None:
    """The program says so and ends; the manager refuses a caller that goes on all the same."""
    words = ("processor", "p3", "--manager", cluster.address)
    env = environment(cluster.folder, "reader", cluster.path / "p3")
    done = dovetail(*words, environment=env)
    assert done.code == 2
    assert "has to be of 'dovetail processor'" in done.err
    with (
        open_channel(cluster.address, shows(cluster.folder, "reader")) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        list(channel.stream_stream("/dovetail.v1.Control/Attach")(iter(()), timeout=WAIT_S))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert cluster.alive() == ["p1", "p2"]


def test_certificates_of_another_authority_open_nothing(
    cluster: ByCertificate, tmp_path: Path
) -> None:
    """Whether the stranger trusts the cluster or not; neither manager nor processors answer him."""
    certificates.init(tmp_path)
    members = [p.address for p in cluster.client.status().processors if p.state == "alive"]
    for authority in (tmp_path / "ca.pem", cluster.folder / "ca.pem"):
        for kind in ("client", "processor", "manager"):
            stranger = Security("", authority, tmp_path / f"{kind}.pem", tmp_path / f"{kind}.key")
            with closing(AdminCalls(cluster.url, stranger)) as calls, pytest.raises(Unreachable):
                calls.list_queries()
            for address, to, method in (
                (cluster.address, MANAGER, "Control/Attach"),
                *((member, PROCESSOR, "DataPlane/Feed") for member in members),
            ):
                with open_channel(address, stranger, to=to) as channel:
                    call = channel.stream_stream(f"/dovetail.v1.{method}")
                    with pytest.raises(grpc.RpcError) as refused:
                        list(call(iter(()), timeout=WAIT_S))
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert cluster.alive() == ["p1", "p2"]
