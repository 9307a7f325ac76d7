"""State on disk, on real clusters: policies that change, places that are full or cannot be made."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_proto import admin as a
from dovetail_proto.errors import ConfigError, Refusal
from dovetail_proto.messages import Heard
from kit.cluster_faults import FaultyCluster, until
from kit.clusters import MEMORY_BYTES
from kit.fault_cases import SHORT_MEMORY, Case
from kit.scripted_processor import ScriptedProcessor
from kit.small_disks import full, small_disk


def pushes(case: Case, more_than: int) -> None:
    """Until the query has pushed more often than so."""
    until(lambda: case.query.status().pushes > more_than, "state goes to disk")


def test_no_change_of_policy_loses_a_result(tmp_path: Path) -> None:
    """To disk and back while rows flow, and pushed groups that move where nothing was pushed."""
    with FaultyCluster(processors=2) as local:
        case = Case(local, "changing", home="p1", **{**SHORT_MEMORY, "policy": "none"})
        case.feed(0.3)
        case.query.wait()
        assert case.query.status().pushes == 0
        case.query.set_policy("disk")
        case.allow(0.6)
        pushes(case, 0)
        case.query.set_policy("distributed")
        case.feed(0.7)
        local.start_processor("p3")
        for sender in ("p1", "p2"):
            until(lambda s=sender: bool(case.groups_of(s)), "it owns groups")
            case.await_moved(sender, "p3")
        case.query.set_policy("none")
        case.feed(1.0)
        case.end_feeds()
        assert case.check_closed(tmp_path / "owed") > 0, "something was owed"


def test_a_query_that_cannot_begin_ends_nothing_else(tmp_path: Path) -> None:
    """Folders that cannot be made, memory that cannot be had: that query fails and says why."""
    with FaultyCluster(processors=2, memory_bytes=4 * MEMORY_BYTES) as local:
        case = Case(local, "goes-on", home="p1")
        case.feed(0.5)
        sql = case.query.status().sql
        for place in ("results", "spill"):
            with pytest.raises(Refusal, match=r"failed: processor p.: .*File name too long"):
                local.cluster.submit(sql, name=f"no-{place}", **{place: tmp_path / ("x" * 300)})
        process = psutil.Process(local.processes["p1"].pid)
        limits = process.rlimit(resource.RLIMIT_AS)
        room = process.memory_info().vms + 2 * MEMORY_BYTES  # not what a query's state may need
        process.rlimit(resource.RLIMIT_AS, (room, limits[1]))
        with pytest.raises(Refusal, match="cannot be had: Cannot allocate memory"):
            local.cluster.submit(sql, name="no-memory")
        process.rlimit(resource.RLIMIT_AS, limits)
        case.feed(1.0)
        case.end_feeds()
        case.check_so_far()
        assert all(p.state == "alive" for p in local.cluster.status().processors)


def test_a_full_disk_holds_a_query_up_and_loses_nothing(tmp_path: Path) -> None:
    """While it runs and while it closes: it says so, others go on, and so does it in the end."""
    with small_disk(tmp_path / "disk") as disk, FaultyCluster(processors=1) as local:
        case = Case(local, "held-up", home="p1", spill=disk / "spill", **SHORT_MEMORY)
        beside = Case(local, "beside", home="p1", policy="none")

        def waits() -> bool:
            status = case.query.status()
            assert status.state != "failed", status.cause
            return "p1 waits:" in status.cause and "No space left" in status.cause

        with full(disk):
            case.allow(0.5)
            until(waits, "the query says that it waits")
            assert case.query.status().pushes == 0
            beside.feed(1.0)
            beside.check_so_far()
        pushes(case, 0)
        until(lambda: not case.query.status().cause, "it says that it goes on")
        case.feed(1.0)
        case.query.wait()
        case.end_feeds()
        before = case.query.status().pushes
        with full(disk):
            with pytest.raises(Refusal, match="not closed within the time given"):
                case.query.close(0)
            until(waits, "it waits while it closes")
        until(lambda: case.query.status().state == "closed", "it closes")
        assert case.query.status().pushes > before
        assert case.check_closed(tmp_path / "owed") > 0


def test_state_may_go_to_disk_only_where_a_clean_up_finds_it(tmp_path: Path) -> None:
    """Neither from the start nor later, unless the manager or the query names a place."""
    schema = pa.schema([("k", pa.int64())]).serialize().to_pybytes()
    sql = "SELECT l.k FROM l JOIN r ON l.k = r.k"
    settings = ManagerSettings(store=str(tmp_path / "manager.db"), roots=("/",))
    with ManagerServer(settings) as manager:
        p1 = ScriptedProcessor(manager.address, "p1")
        assert p1.wait(Heard).member
        for name in ("l", "r"):
            manager.admin.create_stream(a.CreateStream(name, schema))
        with pytest.raises(ConfigError, match="'lazy-disk' puts state on disk"):
            manager.admin.submit(a.Submit("unplaced", sql))
        manager.admin.submit(a.Submit("unplaced", sql, policy="distributed"))
        for policy in ("disk", "lazy-disk", "active-disk"):
            with pytest.raises(ConfigError, match="start the manager with the setting `spill`"):
                manager.admin.set_policy(a.SetPolicy("unplaced", policy))
        assert manager.admin.set_policy(a.SetPolicy("unplaced", "none")).policy == "none"
        manager.admin.submit(a.Submit("placed", sql, policy="none", spill="/spill"))
        assert manager.admin.set_policy(a.SetPolicy("placed", "disk")).policy == "disk"
        p1.close()
