"""A submission is answered well only when every processor runs the query, on every face."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

import dovetail
from dovetail_manager import loop
from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.messages import Assign, Heard
from kit.cli import dovetail as run_command
from kit.scripted_processor import PATIENCE_S, ScriptedProcessor

SCHEMA = pa.schema([("k", pa.int64())]).serialize().to_pybytes()
SQL = "SELECT l.k FROM l JOIN r ON l.k = r.k"
SAID = "is submitted, but within 2 s it was not heard of by processor 'p2'"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ManagerServer]:
    """One that waits long for the silent."""
    settings = ManagerSettings(
        str(tmp_path / "m.db"), rest="127.0.0.1:0", spill_root="/spill", roots=("/",)
    )
    with ManagerServer(settings) as made:
        yield made


@pytest.fixture
def deaf(manager: ManagerServer) -> Iterator[ScriptedProcessor]:
    """The second of two processors; it lives, and carries nothing out that comes from now on."""
    both = [ScriptedProcessor(manager.address, name) for name in ("p1", "p2")]
    for one in both:
        assert one.wait(Heard).member
    for name in ("l", "r"):
        manager.admin.create_stream(a.CreateStream(name, SCHEMA))
    both[1].acknowledge = False
    yield both[1]
    for one in both:
        one.close()


def url(manager: ManagerServer) -> str:
    """Of its REST."""
    return f"http://{manager.rest_address}"


def test_a_submission_that_a_member_has_not_heard_of_says_so(
    manager: ManagerServer, deaf: ScriptedProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REST, Python and the command line name the processor; the query is there."""
    monkeypatch.setattr(loop, "EVERYWHERE_S_MAX", 2.0)
    answer = httpx.post(f"{url(manager)}/v1/queries", json={"name": "q1", "sql": SQL}, timeout=60)
    assert answer.status_code == 409
    assert answer.json()["domain"] == "busy"
    assert f"query 'q1' {SAID}" in answer.json()["message"]
    with dovetail.connect(url(manager)) as client:
        with pytest.raises(Refusal, match=f"query 'q2' {SAID}") as refused:
            client.submit(SQL, name="q2")
        assert refused.value.domain is Domain.BUSY
        told = run_command("submit", SQL, "--name", "q3", "--url", url(manager))
        assert told.code == refused.value.exit_code
        assert f"query 'q3' {SAID}" in " ".join(told.err.split())
        assert [q.name for q in client.queries()] == ["q1", "q2", "q3"]


def test_a_submission_returns_when_the_last_member_runs_it(
    manager: ManagerServer, deaf: ScriptedProcessor
) -> None:
    """However late that is; it is told again until then."""
    with dovetail.connect(url(manager)) as client, ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(client.submit, SQL, name="q")
        deaf.wait(Assign, lambda m: '"q"' in m.document)
        assert not submitted.done()
        deaf.acknowledge = True
        query = submitted.result(PATIENCE_S)
        assert {i.processor for i in query.status().instances} == {"p1", "p2"}


def test_a_submission_fails_with_a_member_that_dies_before_it_hears_of_it(
    tmp_path: Path,
) -> None:
    """It is told what became of the query instead of what was wanted."""
    settings = ManagerSettings(
        str(tmp_path / "m.db"), rest="127.0.0.1:0", spill_root="/s", roots=("/",), dead_after_s=4.0
    )
    with ManagerServer(settings) as manager:
        both = [ScriptedProcessor(manager.address, name) for name in ("p1", "p2")]
        for one in both:
            assert one.wait(Heard).member
        for name in ("l", "r"):
            manager.admin.create_stream(a.CreateStream(name, SCHEMA))
        both[1].acknowledge = False
        silence = threading.Thread(
            target=lambda: (both[1].wait(Assign, lambda m: '"q"' in m.document), both[1].close())
        )
        silence.start()
        answer = httpx.post(
            f"{url(manager)}/v1/queries", json={"name": "q", "sql": SQL}, timeout=60
        )
        silence.join()
        both[0].close()
    assert answer.status_code == 409
    assert "query 'q' has failed: processor p2 died" in answer.json()["message"]
