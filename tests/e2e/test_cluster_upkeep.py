"""A cluster of `dovetail up` whose processes die: what is told, and how it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kit.cli import TIMEOUT_S_MAX, Folder
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, gone, pair, same_bag

UP = ("up", "--processors", "2", "--memory", "64MB")
ANY = ("--listen", "127.0.0.1:0", "--rest", "127.0.0.1:0")
LEFT, RIGHT = pair(seed=6)
SQL = PAIR_SQL.format(left="l", right="r")

DEAD_AFTER_S = 8.0
"""A processor that loads its kernels on a busy machine is silent for a second or two."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """With a cluster of short patience, two streams and a query that runs."""
    monkeypatch.setenv("DOVETAIL_HEARTBEAT_S", "0.1")
    monkeypatch.setenv("DOVETAIL_DEAD_AFTER_S", str(DEAD_AFTER_S))
    here = Folder(tmp_path)
    for name, table in (("l", LEFT), ("r", RIGHT)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    try:
        here.quick_json(*UP, *ANY)
        for name in ("l", "r"):
            here.quick_json("stream", "create", name, "--schema", f"{name}.parquet")
        here.quick_json("submit", SQL, "--name", "joined")
        yield here
    finally:
        here.inside("down", "--force")


def test_a_dead_processor_is_told_of_and_started_again(folder: Folder) -> None:
    """By name, or with whatever else is missing; and not by `up` in another folder."""
    left = _left(folder)
    taken = ("--listen", left["address"], "--rest", "127.0.0.1:0")
    elsewhere = Folder(folder.path / "elsewhere")
    elsewhere.path.mkdir()
    second = elsewhere.inside(*UP, *taken)
    assert second.code == 2
    assert f"address '{left['address']}' cannot be listened on: another program" in second.err

    _kill(folder, "p2")
    until(lambda: _states(folder)["p2"] == "dead", "the manager missed p2")
    told = folder.inside("doctor")
    assert told.code == 1
    assert "processor p2 is dead: it was silent for" in " ".join(told.out.split())
    stages = {
        i["processor"]: i["stage"] for i in folder.quick_json("status", "joined")["instances"]
    }
    assert stages["p2"] == "dead"
    problems = folder.inside("doctor", "--json").json["problems"]
    assert "`dovetail restart p2`" in problems[0]
    assert "query joined has failed: processor p2 died: it was silent for" in problems[1]
    assert folder.quick_json("restart", "p2")["started"] == "p2"
    assert _states(folder) == {"p1": "alive", "p2": "alive"}
    assert folder.inside("restart", "p9").code == 2

    folder.quick_json("drop", "joined")
    folder.quick_json("submit", SQL, "--name", "joined")
    _feed(folder)
    folder.quick_json("close", "joined")
    _kill(folder, "p1")
    _kill(folder, "manager")
    more = folder.quick_json("up", "--processors", "3")
    assert more["started"] == ["p1", "manager", "p3"]
    assert _states(folder) == dict.fromkeys(("p1", "p2", "p3"), "alive")
    assert _exact(folder)
    assert folder.inside("up").code == 2
    assert folder.quick_json("down")["ended"] == ["p1", "p2", "p3", "manager"]


def test_down_asks_whoever_answers_before_it_ends_processors(folder: Folder) -> None:
    """No manager is no reason to believe that nothing runs; one started by hand is asked."""
    _feed(folder)
    _kill(folder, "manager")
    refused = folder.inside("down")
    assert refused.code == 1
    assert "whether queries run on p1, p2 is not known" in refused.err
    assert "`dovetail restart manager` first, or give --force" in refused.err
    assert "`dovetail restart manager`" in folder.inside("doctor", "--json").json["problems"][1]
    told = folder.inside("doctor").out
    assert "dead: its manager has ended" in told
    assert "none here" not in told

    left = _left(folder)
    by_hand = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "manager"],
        cwd=folder.path,
        env={
            **os.environ,
            "DOVETAIL_TOKEN": left["token"],
            "DOVETAIL_LISTEN": left["address"],
            "DOVETAIL_REST": left["url"].rpartition("/")[2],
        },
    )
    try:
        until(lambda: folder.inside("status").code == 0, "it answers")
        asked = folder.inside("down")
        assert asked.code == 1
        assert "joined would lose what is in memory" in asked.err
        taken = folder.inside("restart", "manager")
        assert taken.code == 2
        assert "another program listens there" in taken.err
    finally:
        by_hand.terminate()
        by_hand.wait(TIMEOUT_S_MAX)
    assert folder.quick_json("restart", "manager")["started"] == "manager"
    first = _pids(folder)["manager"]
    assert folder.quick_json("restart", "manager")["pid"] != first
    assert gone(first)
    leaver = _pids(folder)["p2"]
    until(lambda: set(_states(folder).values()) == {"alive"}, "both are attached")
    assert folder.quick_json("restart", "p2")["pid"] != leaver
    assert gone(leaver)
    folder.quick_json("close", "joined")
    assert _exact(folder)
    assert folder.quick_json("down")["ended"] == ["p1", "p2", "manager"]


def _left(folder: Folder) -> dict[str, Any]:
    left: dict[str, Any] = json.loads((folder.path / ".dovetail" / "cluster.json").read_text())
    return left


def _pids(folder: Folder) -> dict[str, int]:
    return {p["name"]: p["pid"] for p in _left(folder)["processes"]}


def _kill(folder: Folder, name: str) -> None:
    pid = _pids(folder)[name]
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), f"{name} is gone")


def _states(folder: Folder) -> dict[str, str]:
    members = folder.quick_json("status")["cluster"]["processors"]
    return {p["name"]: p["state"] for p in members}


def _feed(folder: Folder) -> None:
    for name in ("l", "r"):
        folder.quick_json("feed", name, f"{name}.parquet")
    folder.quick_json("wait", "joined")


def _exact(folder: Folder) -> bool:
    folder.quick_json("results", "joined", "--output", "found.parquet")
    return same_bag(pq.read_table(folder.path / "found.parquet"), SQL, l=LEFT, r=RIGHT)
