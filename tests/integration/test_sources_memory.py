"""The memory of a reader, seen from outside: bounded, whatever the file's own units are.

A process reads a file whose single row group, batch or object is far larger than what the reader
may hold, and its resident memory is sampled by the one that started it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

LIMIT_BYTES = 64 << 20
"""More than a reader needs by far with any allocator, less than a quarter of any file here."""

READER = """
import sys
import pyarrow.csv, pyarrow.json, pyarrow.parquet
from dovetail_processor.sources import open_source
print("ready", flush=True)
sys.stdin.readline()
source = open_source(sys.argv[1])
rows = 0
for batch in source.batches(source.schema.names, batch_rows=65536, batch_bytes=1 << 20):
    rows += batch.num_rows
print(rows, flush=True)
"""


def peak_bytes(path: Path) -> tuple[int, int]:
    """Read the file in another process: its rows, and by how much its memory grew at most."""
    words = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        process = psutil.Process(child.pid)
        before = peak = process.memory_info().rss
        child.stdin.write("go\n")
        child.stdin.close()
        while child.poll() is None and process.status() != psutil.STATUS_ZOMBIE:
            peak = max(peak, process.memory_info().rss)
        rows = int(child.stdout.readline())
    assert child.returncode == 0
    return rows, peak - before


ROWS = 12_000_000


def numbers() -> pa.Table:
    """Three columns of eight bytes that do not compress: 288 MB."""
    rng = np.random.default_rng(3)
    return pa.table({n: pa.array(rng.integers(0, 2**62, ROWS)) for n in ("a", "b", "c")})


def one_row_group(path: Path) -> int:
    """Parquet, everything in one row group."""
    pq.write_table(numbers(), path, row_group_size=ROWS, use_dictionary=False, compression="none")
    assert pq.ParquetFile(path).metadata.num_row_groups == 1
    return ROWS


def one_batch(path: Path) -> int:
    """An IPC file of one record batch."""
    table = numbers()
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return ROWS


def one_batch_stream(path: Path) -> int:
    """An IPC stream of one record batch."""
    table = numbers()
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    return ROWS


def repeated_text(path: Path) -> int:
    """Parquet, small on disk and 1 GB in memory: one long text again and again."""
    rows = 100_000
    column = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int32)), pa.array(["long text " * 1000])
    )
    pq.write_table(pa.table({"s": column}), path, store_schema=False)
    return rows


def long_csv(path: Path) -> int:
    """260 MB of rows."""
    block = "".join(f"{i},{'text ' * 5}{i},{i / 7}\n" for i in range(50_000))
    with path.open("w") as file:
        file.write("n,s,f\n")
        for _ in range(100):
            file.write(block)
    return 5_000_000


def long_json(path: Path) -> int:
    """260 MB of lines."""
    block = "".join(f'{{"n": {i}, "s": "{"text " * 20}"}}\n' for i in range(20_000))
    with path.open("w") as file:
        for _ in range(105):
            file.write(block)
    return 2_100_000


FILES: dict[str, Callable[[Path], int]] = {
    "numbers.parquet": one_row_group,
    "text.parquet": repeated_text,
    "numbers.arrow": one_batch,
    "numbers.arrows": one_batch_stream,
    "t.csv": long_csv,
    "t.jsonl": long_json,
}


@pytest.mark.parametrize("name", FILES)
def test_a_reader_holds_a_small_part_of_a_large_file(name: str, tmp_path: Path) -> None:
    """Whatever the size of a row group, a batch or the file."""
    path = tmp_path / name
    written = FILES[name](path)
    rows, grown = peak_bytes(path)
    assert rows == written
    assert grown < LIMIT_BYTES, (
        f"{grown / 1e6:.0f} MB for a file of {path.stat().st_size / 1e6:.0f} MB"
    )
    path.unlink()
