"""What a processor keeps of queries: whose it is, and how it goes when they are dropped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dovetail_manager.planner import plan_query
from dovetail_pipeline.service import Service
from dovetail_processor.shell import files
from dovetail_processor.shell.files import TRASH, ProcessorFiles, Remover, claim, open_store
from dovetail_proto.assignment import DroppedRun, QueryTask
from dovetail_proto.errors import SpillError
from dovetail_proto.ids import ProcessorId, QueryName
from dovetail_proto.messages import Stage
from dovetail_proto.roots import Roots
from dovetail_proto.spill_format import RunRecord, SpillStore
from kit.cluster_faults import until
from kit.hand_shell import HandWorker
from kit.object_store import SCHEME, ObjectStore

P1, P2, Q = ProcessorId("p1"), ProcessorId("p2"), QueryName("q")
SCHEMA = pa.schema([("k", pa.int64())])
SQL = "SELECT a.k FROM a JOIN b ON a.k = b.k"
PLAN = plan_query(SQL, dict.fromkeys("ab", SCHEMA), name="q", partitions=8)
WAIT_S = 60.0


def task(spill: str, run: str = "r1") -> QueryTask:
    """As much of one as a store needs."""
    return SimpleNamespace(spill=spill, plan=PLAN, run=run)  # type: ignore[return-value]


def test_processors_never_share_a_store(tmp_path: Path) -> None:
    """Neither by a fragment, which file systems ignore, nor because one is open and empty."""
    with pytest.raises(SpillError, match="#"):
        open_store(P1, task(f"file://{tmp_path}/spill#day"))
    mine = open_store(P1, task(str(tmp_path)))
    again = open_store(P1, task(str(tmp_path)))
    assert mine is not None
    assert again is not None
    assert mine.id == again.id
    (tmp_path / "p2").symlink_to(tmp_path / "p1")
    with pytest.raises(SpillError, match="not empty"):
        open_store(P2, task(str(tmp_path)))


def test_names_of_a_dropped_query_are_free_before_its_files_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged store of another stays and stops nothing; the next process empties the trash."""
    data, spill = tmp_path / "data", tmp_path / "spill"
    (claim(data, Q, "r1") / "segment").write_text("results")
    SpillStore.create(str(spill / "a"), PLAN, run="r1")
    (spill / "a" / "query.json").write_bytes(b"\xff damaged")
    open_store(P1, task(str(spill)))
    slow, delete = Event(), shutil.rmtree

    def rmtree(path: Path, **_: object) -> None:
        assert slow.wait(WAIT_S)
        delete(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    Remover(data).remove([DroppedRun(Q, "r1", str(spill))])
    try:
        assert not any(claim(data, Q, "r2").glob("segment"))
        assert not (data / "left-over").exists()
        store = open_store(P1, task(str(spill), "r2"))
        assert store is not None
        assert store.run == "r2"
    finally:
        slow.set()
    until(lambda: not any((data / TRASH).iterdir()), "the logs were gone", WAIT_S)
    until(lambda: len(list(spill.iterdir())) == 2, "the store was gone", WAIT_S)
    assert sorted(p.name for p in spill.iterdir()) == ["a", "p1"]

    (data / TRASH / "half" / "deleted").mkdir(parents=True)
    Remover(data)
    until(lambda: not any((data / TRASH).iterdir()), "the trash was empty", WAIT_S)


@pytest.mark.parametrize("place", ["remote", "mounted"])
def test_a_process_that_ends_while_it_deletes_leaves_the_rest_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Also what it could not reach; stores of other runs in the same place stay."""
    data, objects = tmp_path / "data", ObjectStore()
    monkeypatch.setattr(files, "open_storage", objects.storage)
    for name, run in (("p1", "r1"), ("p2", "r1"), ("p3", "r2")):
        SpillStore.create(str(tmp_path / "spill" / name), PLAN, run=run)
    objects.upload(tmp_path / "spill", "spill")
    gone = DroppedRun(Q, "r1", f"{SCHEME}spill" if place == "remote" else str(tmp_path / "spill"))

    def stores() -> set[str]:
        if place == "remote":
            return {path.split("/")[1] for path in objects.objects}
        return {path.name for path in (tmp_path / "spill").iterdir()}

    class Ended:
        """A thread of a process that is not there any more."""

        def __init__(self, **_: object) -> None:
            """Whatever it was to do."""

        def start(self) -> None:
            """It never gets to it."""

    with monkeypatch.context() as ended:
        ended.setattr(files.threading, "Thread", Ended)
        Remover(data).remove([gone])
    assert len(stores()) == 3

    def out(verb: str, path: str) -> None:
        raise OSError("the service cannot be reached")

    objects.before = out
    files._go_on(data)
    objects.before = lambda verb, path: None
    assert len(stores()) == (3 if place == "remote" else 1)
    Remover(data)
    until(lambda: stores() == {"p3"}, "the stores were gone", WAIT_S)
    until(lambda: not any((data / TRASH).iterdir()), "nothing is left to do", WAIT_S)


def test_a_query_may_take_the_name_of_one_that_goes_in_the_same_assignment(
    tmp_path: Path,
) -> None:
    """The dropped one's results are deleted, not put aside as ones that are to be kept."""
    (claim(tmp_path, Q, "r1") / "segment").write_text("results")
    one = HandWorker(PLAN)
    one.shell.files = ProcessorFiles(P1, tmp_path, Roots())  # type: ignore[assignment]
    [follows] = one.wanted.queries
    gone = DroppedRun(Q, "r1", None)
    one.set(queries=(replace(follows, run="r2", log="p1"),), dropped=(gone,))
    one.settle()
    assert one.query.stage is Stage.RUNNING, one.query.cause
    assert (tmp_path / "results" / Q / "p1").is_dir()
    assert not (tmp_path / "left-over").exists()


def test_a_managers_clean_up_takes_no_place_from_a_store(tmp_path: Path) -> None:
    """Whoever may write to the spill place would have results written outside the roots."""
    store = SpillStore.create(str(tmp_path / "p1"), PLAN, run="r1")
    store.close_run(
        RunRecord(
            rows_in=(0, 0),
            results_run=0,
            checksum=0,
            produced={},
            output=str(tmp_path / "elsewhere"),
            processor="p1",
            processors=("p1",),
            owned=dict.fromkeys(range(8), 0),
        )
    )
    request = {"spill": str(tmp_path), "query": "q", "run": "r1", "output": None}
    assert Service(request, SimpleNamespace())._found().output is None  # type: ignore[arg-type]
