"""`dovetail run` on a disk that is full: it waits and says so, and goes on when there is room."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from dovetail.generator import UniformWorkload
from kit.cli import TIMEOUT_S_MAX
from kit.small_disks import full, small_disk
from kit.trades import write_all

WORKLOAD = UniformWorkload(rows=100_000, distinct=25_000)
LEFT_BYTES = 256 << 10
"""Room for the start of a store, and for no push."""


@contextmanager
def waiting_run(disk: Path, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose state does not go onto `disk`, once it has said so; ended in any case."""
    tables = {name: WORKLOAD.table(i) for i, name in enumerate(WORKLOAD.names)}
    query = folder / "query.sql"
    query.write_text(WORKLOAD.sql)
    words = [str(query), *write_all(tables, folder, "parquet"), "--spill-dir", str(disk / "spill")]
    with full(disk, LEFT_BYTES):
        run = subprocess.Popen(
            [
                *(sys.executable, "-m", "dovetail", "run", *words, "--output=none", "--json"),
                *("--memory=8MB", "--partitions=40", "--cleanup=local", *more),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stderr is not None
        told = []
        for line in run.stderr:
            told.append(line)
            if "waits: " in line:
                break
        assert "No space left on device; free space there" in "".join(told[-1:]), told
        try:
            yield run
        finally:
            run.kill()
            run.communicate()


@pytest.mark.parametrize("processors", [1, 2])
def test_a_run_goes_on_when_there_is_room_again(tmp_path: Path, processors: int) -> None:
    """With the results that it would have had."""
    with small_disk(tmp_path / "disk") as disk:
        with waiting_run(disk, tmp_path, f"--processors={processors}") as run:
            (disk / "ballast").unlink()
            out, err = run.communicate(timeout=TIMEOUT_S_MAX)
        assert run.returncode == 0, err
        told = json.loads(out)
        assert told["pushes"] > 0
        with duckdb.connect() as db:
            for i, name in enumerate(WORKLOAD.names):
                db.register(name, WORKLOAD.table(i))
            row = db.execute(f"SELECT count(*) FROM ({WORKLOAD.sql})").fetchone()
        assert row is not None
        assert told["results_run"] + told["results_cleanup"] == row[0]


def test_a_run_that_waits_for_room_can_be_stopped(tmp_path: Path) -> None:
    """It cannot be closed then, and leaves nothing behind."""
    with small_disk(tmp_path / "disk") as disk, waiting_run(disk, tmp_path) as run:
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=TIMEOUT_S_MAX)
        assert run.returncode == 6, err
        assert "stopped while it waited for room" in json.loads(out)["error"]["message"]
        assert not (disk / "spill").exists()
