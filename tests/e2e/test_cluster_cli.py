"""A cluster from the command line, as a user types it: from `up` to `down`, with real processes."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail import DovetailError, connect
from kit.cli import TIMEOUT_S_MAX, Folder, dovetail
from kit.clusters import gone, same_bag
from kit.trades import SQL, streams, write_all

TABLES = streams()
UP = ("up", "--processors", "2", "--memory", "64MB", "--listen", "127.0.0.1:0")
PORT = ("--rest", "127.0.0.1:0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """With a cluster that runs, and is ended whatever happens."""
    path = tmp_path_factory.mktemp("cluster")
    write_all(TABLES, path, "parquet")
    (path / "prices.sql").write_text(SQL)
    here = Folder(path)
    try:
        up = here.json(*UP, *PORT)
        assert up["url"].startswith("http://127.0.0.1:")
        assert up["processors"] == ["p1", "p2"]
        yield here
    finally:
        here.inside("down", "--force")


def test_a_day_of_a_cluster(folder: Folder, tmp_path: Path) -> None:
    """Declare, submit, feed, wait, read, close, clean up: commands as they are typed."""
    for name, table in TABLES.items():
        made = folder.json("stream", "create", name, "--schema", f"{name}.parquet")
        assert [c["name"] for c in made["schema"]] == table.column_names
    submitted = folder.json("submit", "prices.sql", "--partitions", "40", "--weights", "3,1")
    assert submitted["name"] == "prices"
    assert [i["groups"] for i in submitted["instances"]] == [30, 10]
    for name, table in TABLES.items():
        rate = ("--rate", "20000/s") if name == "trades" else ()
        fed = folder.json("feed", name, f"{name}.parquet", *rate)
        assert fed["rows"] == table.num_rows
    assert folder.json("wait", "prices", "--timeout", "60")["rows"] == 10_000

    found = tmp_path / "found.parquet"
    written = folder.json("results", "prices", "--output", str(found))
    results = pq.read_table(found)
    assert written == {"query": "prices", "rows": results.num_rows, "output": str(found)}
    assert same_bag(results, SQL, **TABLES)
    rows = folder("results", "prices", "--format", "jsonl").out.splitlines()
    assert len(rows) == results.num_rows
    assert set(json.loads(rows[0])) == set(results.column_names)
    assert len(folder.quick_json("results", "prices", "--limit", "7")) == 7

    refused = folder.inside("down")
    assert refused.code == 1
    assert "prices would lose what is in memory" in refused.err
    assert folder.quick_json("stream", "end", "trades")["ended"]
    closed = folder.json("close", "prices")
    assert (closed["state"], closed["results"]) == ("closed", results.num_rows)
    assert folder.json("cleanup", "prices", "--output", "none", "--on", "local")["owed"] == 0
    assert folder.quick_json("drop", "prices")["name"] == "prices"


def test_every_verb_looks_and_steers_in_json(used: Folder) -> None:
    """What each says is what the others see."""
    seen = used.quick_json("status")
    assert [p["state"] for p in seen["cluster"]["processors"]] == ["alive", "alive"]
    assert {"twice", "over"} <= {s["name"] for s in seen["streams"]}
    assert used.quick_json("top").keys() == seen.keys()
    assert used.quick_json("status", "taken")["state"] == "running"
    owners = {p["group"]: p["owner"] for p in used.quick_json("partitions", "taken")["partitions"]}
    group = str(next(g for g, owner in owners.items() if owner == "p1"))
    move = used.quick_json("move", "taken", "--groups", group, "--to", "p2")
    assert (move["sender"], move["receiver"]) == ("p1", "p2")
    assert move["id"] in {m["id"] for m in used.quick_json("moves", "taken")}
    pinned = used.quick_json("pin", "taken", "--groups", "1-3")["partitions"]
    assert [p["group"] for p in pinned if p["pinned"]] == [1, 2, 3]
    let_go = used.quick_json("unpin", "taken", "--groups", "1-3")["partitions"]
    assert not any(p["pinned"] for p in let_go)
    assert used.quick_json("pause", "taken")["state"] == "paused"
    assert used.quick_json("resume", "taken")["state"] == "running"
    assert isinstance(used.quick_json("rebalance", "taken", "--dry-run"), list)
    assert isinstance(used.quick_json("adaptations", "taken"), list)
    assert used.quick_json("policy", "set", "active-disk")[0]["policy"] == "active-disk"


PEOPLE = {
    ("status",): "p1",
    ("top",): "p1",
    ("status", "taken"): "rows in",
    ("partitions", "taken"): "map version",
    ("moves", "taken"): "move",
    ("adaptations", "taken"): "",
    ("results", "taken", "--format", "table"): "no results yet",
    ("stream", "list"): "twice",
    ("doctor",): "2 processors alive",
}


@pytest.mark.parametrize("words", PEOPLE, ids=" ".join)
def test_people_get_tables(words: tuple[str, ...], used: Folder) -> None:
    """Where they did not ask for JSON."""
    done = used.inside(*words)
    assert done.code == 0, done.err
    assert PEOPLE[words] in done.out


REFUSED: dict[tuple[str, ...], Any] = {
    ("status", "nope"): lambda c, _: c.query("nope"),
    ("results", "nope"): lambda c, _: c.query("nope"),
    ("stream", "end", "nope"): lambda c, _: c.stream("nope"),
    ("leave", "p9"): lambda c, _: c.leave("p9"),
    ("stream", "create", "twice", "--schema", "quotes.parquet"): lambda c, path: c.create_stream(
        "twice", path / "quotes.parquet"
    ),
    ("feed", "twice", "trades.parquet"): lambda c, _: c.stream("twice").send(TABLES["trades"]),
    ("feed", "over", "quotes.parquet"): lambda c, _: c.stream("over").send(TABLES["quotes"]),
    ("submit", "bad.sql"): lambda c, _: c.submit("SELECT 1", name="bad"),
    ("submit", "same.sql", "--name", "taken"): lambda c, _: c.submit(SAME, name="taken"),
    ("submit", "good.sql"): lambda c, _: c.submit(GOOD, name="good"),
    ("move", "taken", "--groups", "4000", "--to", "p1"): lambda c, _: c.query("taken").move(
        [4000], "p1"
    ),
    ("move", "taken", "--groups", "0", "--to", "p9"): lambda c, _: c.query("taken").move([0], "p9"),
    ("cleanup", "taken", "--output", "none"): lambda c, _: c.query("taken").cleanup(None),
    ("drop", "taken"): lambda c, _: c.query("taken").drop(),
    ("stream", "drop", "twice"): lambda c, _: c.stream("twice").drop(),
    ("stream", "drop", "nope"): lambda c, _: c.stream("nope"),
}

GOOD = "SELECT a.symbol, b.bid FROM twice a JOIN over b ON a.symbol = b.symbol"
SAME = GOOD.replace("over", "twice")


@pytest.fixture(scope="module")
def used(folder: Folder) -> Folder:
    """The same folder, with what the refusals are about."""
    with _client(folder) as cluster:
        cluster.stream("twice", TABLES["quotes"].schema)
        over = cluster.stream("over", TABLES["quotes"].schema)
        cluster.submit(GOOD, name="taken", partitions=8)
        over.end()
    (folder.path / "good.sql").write_text(GOOD)
    (folder.path / "same.sql").write_text(SAME)
    (folder.path / "bad.sql").write_text("SELECT 1")
    return folder


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_commands_refuse_as_the_python_client_does(words: tuple[str, ...], used: Folder) -> None:
    """The same code, message and remedy, and the error's exit code."""
    done = used.inside(*words, "--json")
    told = json.loads(done.out)["error"]
    with _client(used) as cluster, pytest.raises(DovetailError) as refused:
        REFUSED[words](cluster, used.path)
    error = refused.value
    assert (told["code"], told["message"]) == (error.code, error.message)
    assert told["remedy"] == error.remedy
    assert done.code == error.exit_code != 0
    assert "Traceback" not in done.err
    assert done.err.startswith(f"error: {error.message.split()[0]}")


@pytest.mark.parametrize(
    "words",
    [
        ("status", "nope"),
        ("stream", "end", "nope"),
        ("leave", "p9"),
        ("move", "taken", "--groups", "0", "--to", "p9"),
        ("results", "taken", "--log", "p9"),
    ],
    ids=" ".join,
)
def test_a_name_that_nobody_has_ends_with_2(words: tuple[str, ...], used: Folder) -> None:
    """As other slips of the caller do."""
    assert used.inside(*words).code == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("feed", "twice", "quotes.parquet", "--rate", "fast"), "--rate 'fast' is no rate"),
        (("pin", "taken", "--groups", "a"), "--groups 'a' are no groups"),
        (("submit", "good.sql", "--weights", "x"), "--weights 'x' are no numbers"),
        (("results", "taken", "--format", "parquet"), "Parquet needs a file"),
        (("results", "taken", "--output", "x.what"), "its suffix names no format"),
        (("stream", "create", "s"), "has no schema"),
        (("up",), "a cluster runs in"),
    ],
)
def test_slips_in_flags_are_named(words: tuple[str, ...], text: str, used: Folder) -> None:
    """Before anything is done."""
    done = used.inside(*words)
    assert done.code == 2
    assert text in done.err
    assert "Traceback" not in done.err


def test_a_wrong_token_is_refused(folder: Folder) -> None:
    """The environment's counts more than the folder's."""
    done = dovetail("status", "--json", cwd=folder.path, environment={"DOVETAIL_TOKEN": "wrong"})
    assert done.code == 8
    assert done.json["error"]["code"] == "unauthenticated"


def test_the_token_is_for_its_owner(folder: Folder) -> None:
    """The file that commands find the cluster by can be read by nobody else."""
    file = folder.path / ".dovetail" / "cluster.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_down_ends_every_process_and_up_starts_on_the_same_data(tmp_path: Path) -> None:
    """Streams are remembered; the token is another one."""
    here = Folder(tmp_path)
    schema = pa.table({"k": [1]})
    pq.write_table(schema, tmp_path / "k.parquet")
    one = (*UP[:2], "1", *UP[3:], *PORT)
    first = here.json(*one)
    try:
        here.json("stream", "create", "kept", "--schema", "k.parquet")
        assert here.json("down")["ended"] == ["p1", "manager"]
        assert all(gone(pid) for pid in first["pids"].values())
        again = here.inside("down")
        assert again.code == 2
        assert "no cluster was started" in again.err
        unreachable = here("status", "--json", "--url", first["url"])
        assert unreachable.code == 7
        assert unreachable.json["error"]["code"] == "unreachable"
        second = here.json(*one)
        assert second["token"] != first["token"]
        assert [s["name"] for s in here.json("stream", "list")] == ["kept"]
    finally:
        here.inside("down", "--force")


def test_a_cluster_in_the_foreground_ends_with_a_signal(tmp_path: Path) -> None:
    """And takes its processes with it."""
    words = [*UP[:2], "1", *UP[3:], *PORT, "--foreground", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        up = json.loads(process.stdout.readline())
        assert Folder(tmp_path).json("status")["cluster"]["epoch"] == 1
        process.terminate()
        assert process.wait(TIMEOUT_S_MAX) == 0
    finally:
        process.kill()
        process.communicate()
    assert all(gone(pid) for pid in up["pids"].values())
    assert not (tmp_path / ".dovetail" / "cluster.json").exists()


def _client(folder: Folder) -> Any:
    left = json.loads((folder.path / ".dovetail" / "cluster.json").read_text())
    return connect(left["url"], left["token"])
