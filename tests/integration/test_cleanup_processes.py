"""The clean-up with several processes, killed processes, and its memory seen from outside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pyarrow as pa
import pytest

from dovetail_pipeline.cleanup import run_local
from dovetail_pipeline.cleanup.crew import Crew
from dovetail_proto.errors import SpillError
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.spill_format import RunRecord, SpillStore
from kit.spills import Spilled, make_plan, owed_results, read_bag, spill, write_group

MEMORY_BYTES = 64 << 20
MODULE = "dovetail_pipeline.cleanup"

PROGRAM = """
import json, sys
from unittest.mock import patch
from dovetail_pipeline.cleanup import run_local
from dovetail_proto.spill_format import SpillStore

def main():
    root, out, workers, memory_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with (
        patch.multiple("dovetail_pipeline.cleanup.bins", BIN_COST_MIN=200, FILE_COST=0),
        patch("dovetail_pipeline.cleanup.local.COST_PER_PROCESS", 1),
        patch("dovetail_pipeline.cleanup.crew.SHOW_S", 0),
    ):
        store = SpillStore.open(root)
        place = None if out == "none" else out
        def show(p):
            print(json.dumps({"stage": p.stage, "done": p.bins_done}), flush=True)
            sys.stdin.readline()
        result = run_local(
            store, place, workers=workers, memory_bytes=memory_bytes,
            progress=show if len(sys.argv) > 5 else lambda p: None,
        )
    print(json.dumps({"rows": result.rows}), flush=True)
    sys.stdin.readline()

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def spilled(tmp_path_factory: pytest.TempPathFactory) -> Spilled:
    """A closed store with about 1 000 owed results."""
    rng = np.random.default_rng(1)
    rows = 300
    tables = [
        pa.table({"k": rng.integers(0, rows // 2, rows), "n": np.arange(rows)}) for _ in range(3)
    ]
    plan = make_plan([t.schema for t in tables])
    epochs = [np.sort(rng.integers(0, 4, rows)) for _ in tables]
    return spill(tmp_path_factory.mktemp("cleanup") / "spill", plan, tables, epochs, rng=rng)


@pytest.fixture
def copied(spilled: Spilled, tmp_path: Path) -> Spilled:
    """The same store, to be worked on."""
    shutil.copytree(spilled.store.root, tmp_path / "spill")
    store = SpillStore.open(str(tmp_path / "spill"))
    return Spilled(store, spilled.tables, spilled.generations)


@pytest.fixture
def many_processes() -> Iterator[None]:
    """Start them for little work."""
    with (
        patch.multiple(f"{MODULE}.bins", BIN_COST_MIN=50, FILE_COST=0),
        patch(f"{MODULE}.local.COST_PER_PROCESS", 1),
    ):
        yield


def clean_up_processes() -> list[psutil.Process]:
    """The living ones that this process started."""
    alive = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
    return [c for c in alive if "spawn_main" in " ".join(c.cmdline())]


@pytest.mark.usefixtures("many_processes")
def test_processes_share_the_work(copied: Spilled, tmp_path: Path):
    """Same results, same checksum, as in one process; none of them is left."""
    alone = run_local(copied.store, None, workers=1, memory_bytes=MEMORY_BYTES)
    result = run_local(copied.store, tmp_path / "out", workers=3, memory_bytes=MEMORY_BYTES)
    assert result.bins > 4
    assert read_bag(tmp_path / "out") == owed_results(copied)
    assert (result.rows, result.checksum) == (alone.rows, alone.checksum)
    assert not clean_up_processes()


def failing_elsewhere(settings: dict[str, object]) -> object:
    """The work of other processes: it finds a damaged file."""

    def work(job: dict[str, object], tick: object) -> dict[str, object]:
        raise SpillError(f"file of job {job['n']}: damaged", remedy="restore it", more="lost")

    return work


def test_an_error_of_another_process_is_raised_here():
    """With its type, message and remedy, while this process is at work."""

    def work_here(job: dict[str, object], tick: Callable[[int, int], None]) -> dict[str, object]:
        while True:  # until looking at the others raises
            tick(1, 1)

    with (
        Crew(2, work_here, failing_elsewhere, {}) as crew,
        pytest.raises(SpillError, match=r"^file of job 2: damaged; restore it$") as caught,
    ):
        crew.run([{"n": 1}, {"n": 2}], lambda job, answer: None, lambda results, size: None)
    assert caught.value.remedy == "restore it"
    assert not clean_up_processes()


class Program:
    """A clean-up in a process of its own, which waits for a line before each step."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
        # As for the processes that a clean-up starts: an allocator that gives memory back.
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "jemalloc"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read(self) -> dict[str, object]:
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program ended"
        found: dict[str, object] = json.loads(line)
        return found

    def go(self) -> None:
        """Let it take the next step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.mark.parametrize("bins_done", [0, 1, 3])
def test_a_clean_up_that_was_killed_goes_on(copied: Spilled, tmp_path: Path, bins_done: int):
    """SIGKILL, with so many bins finished: none is lost and none made twice."""
    out = tmp_path / "out"
    with Program(copied.store.root, out, 1, MEMORY_BYTES, "step") as program:
        while True:
            said = program.read()
            if said.get("stage") == "joining" and said["done"] == bins_done:
                break
            program.go()
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()
    with patch.multiple(f"{MODULE}.bins", BIN_COST_MIN=200, FILE_COST=0):
        result = run_local(copied.store, out, workers=1, memory_bytes=MEMORY_BYTES)
    assert result.bins_resumed == bins_done
    assert read_bag(out) == owed_results(copied)


def test_other_processes_end_with_the_one_that_was_killed(copied: Spilled, tmp_path: Path):
    """So that nobody goes on writing into an output that is being resumed."""
    with Program(copied.store.root, tmp_path / "out", 2, MEMORY_BYTES, "step") as program:
        while program.read().get("stage") != "joining":
            program.go()
        others = psutil.Process(program.process.pid).children(recursive=True)
        assert others
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()
        _, alive = psutil.wait_procs(others, timeout=120)
        assert not alive
    run_local(copied.store, tmp_path / "out", workers=1, memory_bytes=MEMORY_BYTES)
    assert read_bag(tmp_path / "out") == owed_results(copied)


def test_a_process_that_dies_is_reported(copied: Spilled, tmp_path: Path):
    """As the system does when memory runs out; what is finished is kept."""

    def kill(progress: object) -> None:
        for child in clean_up_processes():
            os.kill(child.pid, signal.SIGKILL)
            while child.status() != psutil.STATUS_ZOMBIE:
                pass

    with (
        patch.multiple(f"{MODULE}.bins", BIN_COST_MIN=50, FILE_COST=0),
        patch(f"{MODULE}.local.COST_PER_PROCESS", 1),
        patch(f"{MODULE}.crew.SHOW_S", 0),
        pytest.raises(SpillError, match=r"ended by itself \(exit code -9\).*fewer workers"),
    ):
        run_local(
            copied.store, tmp_path / "out", workers=2, memory_bytes=MEMORY_BYTES, progress=kill
        )
    run_local(copied.store, tmp_path / "out", workers=1, memory_bytes=MEMORY_BYTES)
    assert read_bag(tmp_path / "out") == owed_results(copied)


def large_store(root: Path, rows: int) -> SpillStore:
    """Two groups, three generations; rows of 68 bytes; every tenth row has the same key."""
    schema = pa.schema([("k", pa.int64()), ("a", pa.float64()), ("s", pa.string())])
    store = SpillStore.create(str(root), make_plan([schema, schema], partitions=2))
    rng = np.random.default_rng(0)
    produced: Counter[int] = Counter()
    for generation in range(3):
        writer = store.begin_push()
        counts = [Counter[int](), Counter[int]()]  # rows by key, per input
        parts: list[list[pa.Table]] = []
        for i in range(2):
            keys = rng.integers(0, 3 * rows, rows)
            keys[:: 10 if i == 0 else 40_000] = 77
            counts[i].update(keys.tolist())
            hashes = canonical_keys([pa.array(keys)], [pa.int64()]).hashes
            order = np.argsort(hashes, kind="stable")
            text = pa.array(np.char.add("x" * 44, keys[order].astype("U8")))
            columns = [pa.array(keys[order]), pa.array(rng.random(rows)), text]
            table = pa.Table.from_arrays(columns, schema=schema)
            groups = partition_ids(hashes[order], 2)
            cut = int(np.searchsorted(groups, 1))
            edges = [(0, cut), (cut, rows)]
            parts.append([table.slice(a, b - a) for a, b in edges])
        for group in range(2):
            write_group(writer, group, generation, [parts[i][group] for i in range(2)])
        writer.commit()
        both = sorted(counts[0].keys() & counts[1].keys())
        hashes = canonical_keys([pa.array(both)], [pa.int64()]).hashes
        for key, group in zip(both, partition_ids(hashes, 2).tolist(), strict=True):
            produced[group] += counts[0][key] * counts[1][key]
    store.close_run(RunRecord((3 * rows, 3 * rows), 0, 0, produced))
    return store


def peak_bytes(root: Path, out: Path, memory_bytes: int) -> int:
    """The largest resident size of a clean-up, as the system saw it."""
    with Program(root, out, 1, memory_bytes) as program:
        assert program.read()["rows"]
        status = Path(f"/proc/{program.process.pid}/status").read_text()
    return 1024 * int(next(x.split()[1] for x in status.splitlines() if x.startswith("VmHWM")))


@pytest.mark.skipif(not Path("/proc").exists(), reason="the peak is read from /proc")
def test_memory_stays_within_its_bound(tmp_path: Path):
    """60 MB of rows with a hot key, in 24 MB: at most 25 % more than that and the empty process."""
    empty = large_store(tmp_path / "small", 100)
    large = large_store(tmp_path / "large", 150_000)
    held = sum(int(e.memory_bytes.sum()) for p in large.pushes() for e in p.inputs if e)
    assert held > 2.4 * (24 << 20)
    before = peak_bytes(Path(empty.root), tmp_path / "a", 24 << 20)
    after = peak_bytes(Path(large.root), tmp_path / "b", 24 << 20)
    assert after - before < 1.25 * (24 << 20)
