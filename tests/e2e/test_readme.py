"""README.md does what it says: its commands and programs are run as they stand on the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.cli import dovetail
from kit.clusters import same_bag
from kit.trades import streams, write_all

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
FREE_PORTS = {"DOVETAIL_LISTEN": "127.0.0.1:0", "DOVETAIL_REST": "127.0.0.1:0"}
"""Somebody may have a cluster on the usual ones."""

BLOCK_TIMEOUT_S = 600
"""A block has a dozen commands, each of which takes seconds on a busy machine."""

TABLES = streams(rows=2_000, symbols=300)
TABLES["trades"] = TABLES["trades"].append_column(
    "size", pa.array(np.random.default_rng(4).integers(1, 1_000, 2_000))
)


def blocks(kind: str) -> list[str]:
    """The blocks of one kind, in order; those without one are what the reader did before."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


SQL = blocks("sql")[0]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """With the files that the page speaks of; a cluster that is left in it is ended."""
    write_all(TABLES, tmp_path, "parquet", "csv", "jsonl")
    (tmp_path / "prices.sql").write_text(SQL)
    yield tmp_path
    if (tmp_path / ".dovetail").exists():
        dovetail("down", "--force", cwd=tmp_path)


def test_the_commands_of_the_readme_run_as_printed(folder: Path) -> None:
    """A run of files, and a cluster from `up` to `down`; both are exact."""
    for block in blocks("sh"):
        _run(["bash", "-euo", "pipefail", "-c", block], folder)
    assert same_bag(_parquet(folder / "results"), SQL, **TABLES)
    assert same_bag(_parquet(folder / "found.parquet"), SQL, **TABLES)


def test_the_programs_of_the_readme_run_as_printed(folder: Path) -> None:
    """A cluster of the program's own, and a whole run."""
    cluster, run = blocks("python")
    printed = _run([sys.executable, "-c", cluster], folder)
    assert sorted(re.findall(r"{'price': 10.0, 'bid': (9.\d)}", printed)) == ["9.0", "9.5"]
    results = int(_run([sys.executable, "-c", run], folder))
    found = _parquet(folder / "joined")
    assert same_bag(found, SQL, **TABLES)
    assert found.num_rows == results


def _run(words: list[str], folder: Path) -> str:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **FREE_PORTS, "PATH": programs},
        capture_output=True,
        text=True,
        timeout=BLOCK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{words[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _parquet(path: Path) -> pa.Table:
    return pq.read_table(path, partitioning=None)
