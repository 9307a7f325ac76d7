"""Parquet files of very many columns: the same rows, read a few columns at a time."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.sources import open_source, wide_parquet
from dovetail_processor.sources.wide_parquet import WIDE_COLUMNS, blocks_of
from dovetail_proto.errors import InputError

COLUMNS = WIDE_COLUMNS + 50
ROWS = 700


def table(seed: int) -> pa.Table:
    """Columns of every kind, with nulls in some."""
    random = np.random.default_rng(seed)
    some = random.random(ROWS) < 0.1
    words = pa.array([f"w{i}" * (i % 7) for i in random.integers(0, 40, ROWS)], mask=some)
    numbers = random.integers(0, 1 << 40, ROWS)
    kinds = (
        pa.array(numbers, mask=some),
        pa.array(random.random(ROWS)),
        words,
        words.dictionary_encode(),
        pa.array(some),
        pa.array(numbers).cast(pa.timestamp("us")),
        pa.array([[int(n), 1] if n % 3 else None for n in numbers]),
        pa.array([{"x": int(n), "y": str(n)} for n in numbers]),
    )
    return pa.table({f"c{i}": kinds[i % len(kinds)] for i in range(COLUMNS)})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_rows_are_the_same_whichever_columns_are_read_together(
    tmp_path: Path, seed: int, block_bytes: int
) -> None:
    """In one block per column or in a few, over several row groups, in any order of columns."""
    written = table(seed)
    path = tmp_path / "wide.parquet"
    pq.write_table(written, path, row_group_size=300)
    source = open_source(path)
    names = [n for n in reversed(written.column_names) if n != "c7"]
    with patch.object(wide_parquet, "BLOCK_BYTES_MIN", block_bytes):
        found = list(source.batches(names, batch_rows=1000, batch_bytes=20_000))
    whole = pa.Table.from_batches(found)
    expected = pq.read_table(path).select(names).cast(whole.schema)
    assert whole.equals(expected)
    assert len(found) > 1
    with patch.object(wide_parquet, "WIDE_COLUMNS", 10_000):
        direct = pa.Table.from_batches(source.batches(names, batch_rows=1000, batch_bytes=20_000))
    assert whole.equals(direct)


def test_blocks_hold_every_column_once_and_need_what_they_may() -> None:
    """A column that needs more than a block is one by itself."""
    fields = [pa.field(f"c{i}", pa.int64() if i % 2 else pa.string()) for i in range(500)]
    blocks = blocks_of(fields, 10_000, block_bytes=32 << 20, buffer_bytes=64 << 10)
    assert [n for b in blocks for n in b] == [f.name for f in fields]
    need = {f.name: (64 << 10) + 3 * 10_000 * (8 if f.type == pa.int64() else 16) for f in fields}
    assert len(blocks) > 1
    for block in blocks:
        assert sum(need[n] for n in block) <= 32 << 20
    with patch.object(wide_parquet, "BLOCK_BYTES_MIN", 0):
        alone = blocks_of(fields, 10**7, block_bytes=1, buffer_bytes=0)
    assert [len(b) for b in alone] == [1] * 500


def test_a_full_disk_is_told_as_that_and_not_as_a_damaged_file(tmp_path: Path) -> None:
    """With the folder that was full, and what to do."""
    path = tmp_path / "wide.parquet"
    pq.write_table(table(1), path)

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with (
        patch.object(wide_parquet, "BLOCK_BYTES_MIN", 1),
        patch.object(wide_parquet.tempfile, "TemporaryFile", lambda **_: Full()),
        pytest.raises(InputError, match=r"wide\.parquet: its many columns .* No space left") as e,
    ):
        list(
            open_source(path).batches(
                ["c0", *(f"c{i}" for i in range(1, 120))], batch_rows=100, batch_bytes=1000
            )
        )
    assert "TMPDIR" in e.value.remedy
