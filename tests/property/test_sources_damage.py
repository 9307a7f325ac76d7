"""Damaged files: cut at any byte or changed in any place, a file is refused or read as it stands.

Never a crash, and of a file that was cut never a row that was not there.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from dovetail_processor.sources import open_source
from dovetail_proto.errors import InputError

MUTANTS = Path(__file__).parents[1] / "kit" / "mutants.py"
CUTS = 150
"""Places to cut a file at, besides its first and last bytes."""

Rows = list[tuple[object, ...]]


def table() -> pa.Table:
    """Small, with the layouts that are easiest to forge: offsets, indices, views, children."""
    return pa.table(
        {
            "i": [1, 2, 3, None],
            "s": ["a", None, "bcd", ""],
            "l": [[1], None, [], [2, 3]],
            "d": pa.array(["x", "y", None, "x"]).dictionary_encode(),
            "m": pa.array([[("k", 1)], None, [], [("z", None)]], pa.map_(pa.string(), pa.int8())),
            "v": pa.array(["too long to lie in a view", None, "b", "c"], pa.string_view()),
            "t": [{"a": "q"}, None, {"a": None}, {"a": "r"}],
            "f": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
        }
    )


def parquet_file(path: Path) -> None:
    """In two row groups."""
    pq.write_table(table(), path, row_group_size=2)


def ipc_file(path: Path) -> None:
    """In two batches."""
    with pa.ipc.new_file(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=2)


def ipc_stream(path: Path) -> None:
    """In two batches."""
    with pa.ipc.new_stream(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=2)


def feather_file(path: Path) -> None:
    """Compressed."""
    feather.write_feather(table(), path, compression="zstd")


BINARY: dict[str, Callable[[Path], None]] = {
    "t.parquet": parquet_file,
    "t.arrow": ipc_file,
    "t.arrows": ipc_stream,
    "t.feather": feather_file,
}


def cuts(size: int) -> list[int]:
    """Where to cut: everywhere near the ends, and at random places."""
    rng = random.Random(size)
    places = {
        *range(1, 20),
        *range(size - 20, size),
        *(rng.randrange(1, size) for _ in range(CUTS)),
    }
    return sorted(p for p in places if 0 < p < size)


def rows_of(path: Path) -> Rows | None:
    """The rows, or None if the file is refused."""
    try:
        source = open_source(path)
        batches = source.batches(source.schema.names, batch_rows=100, batch_bytes=1 << 20)
        whole = pa.Table.from_batches(list(batches), source.schema)
    except InputError:
        return None
    return list(zip(*whole.to_pydict().values(), strict=True))


@pytest.mark.parametrize("name", BINARY)
def test_a_binary_file_cut_anywhere_is_refused(name: str, tmp_path: Path) -> None:
    """Also a stream that is cut between two batches: it lacks its end mark."""
    path = tmp_path / name
    BINARY[name](path)
    data = path.read_bytes()
    assert rows_of(path)
    for cut in cuts(len(data)):
        path.write_bytes(data[:cut])
        assert rows_of(path) is None, f"cut at {cut} of {len(data)}"


CSV = (
    "name,note\n"
    'ann,"one, two"\n'
    'bob,"three\nlines ""quoted"" here\n"\n'
    "\n"
    'cy,5" nails\n'
    "dé,😀\n"
    '"e ""f""",\n'
) * 3


def csv_rows(text: str) -> Rows | None:
    """What the text holds, by Python's reader; None if it is no table."""
    if _quote_is_open(text):
        return None
    header, *rows = [r for r in csv.reader(io.StringIO(text, newline="")) if r]
    if any(len(r) != len(header) for r in rows):
        return None
    return [tuple(value or None for value in row) for row in rows]


def _quote_is_open(text: str) -> bool:
    quoted = False
    before = "\n"
    for c in text:
        if quoted:
            quoted = c != '"'
        elif c == '"' and before in ',\n"':  # a doubled quote closes and opens
            quoted = True
        before = c
    return quoted


# pyarrow warns of a row that it cannot show, one cut within a character; it is refused as well.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_csv_file_cut_anywhere_has_the_rows_that_are_left_or_is_refused(tmp_path: Path) -> None:
    """At every byte; Python's reader is the oracle, and an open quote is damage."""
    path = tmp_path / "t.csv"
    data = CSV.encode()
    for cut in range(len("name,note\n") + 1, len(data)):
        path.write_bytes(data[:cut])
        try:
            expected = csv_rows(data[:cut].decode())
        except UnicodeDecodeError:
            expected = None
        assert rows_of(path) == expected, data[:cut]


JSON = '{"n": 1, "s": "a\\"{é"}\n\n{"n": null, "s": "😀"}\n{"n": 3}\n{"n": 4, "s": null}\n' * 3


def json_rows(data: bytes) -> Rows | None:
    """What the lines hold, by Python's reader; None if one is not a whole object."""
    try:
        objects = [json.loads(line) for line in data.decode().split("\n") if line.strip()]
    except ValueError:
        return None
    return [(o.get("n"), o.get("s")) for o in objects]


def test_json_lines_cut_anywhere_have_the_rows_that_are_left_or_are_refused(
    tmp_path: Path,
) -> None:
    """At every byte after the first line; Python's reader is the oracle."""
    path = tmp_path / "t.jsonl"
    data = JSON.encode()
    for cut in range(data.index(b"\n"), len(data)):
        path.write_bytes(data[:cut])
        assert rows_of(path) == json_rows(data[:cut]), data[:cut]


@pytest.mark.parametrize(("name", "text"), [("t.csv.gz", CSV), ("t.jsonl.gz", JSON)])
def test_a_packed_file_cut_anywhere_is_refused(name: str, text: str, tmp_path: Path) -> None:
    """Gzip knows where it ends."""
    path = tmp_path / name
    data = gzip.compress(text.encode(), mtime=0)
    for cut in cuts(len(data)):
        path.write_bytes(data[:cut])
        assert rows_of(path) is None, f"cut at {cut} of {len(data)}"


def test_forged_files_never_crash_the_process(tmp_path: Path) -> None:
    """Bytes are changed at seeded places; whatever is read is valid, the rest is refused."""
    for name, write in BINARY.items():
        write(tmp_path / name)
    files = [str(tmp_path / name) for name in BINARY]
    words = [sys.executable, str(MUTANTS), "17", "400", *files]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    for line in done.stdout.splitlines():
        assert int(line.split()[1]) > 100, line


def test_a_forged_offset_is_refused_before_it_is_followed(tmp_path: Path) -> None:
    """The offset points far behind the text; pyarrow alone would read there."""
    column = pa.array(["first", "second", "third"])
    offsets = column.buffers()[1].to_pybytes()
    path = tmp_path / "t.arrow"
    with pa.ipc.new_file(path, pa.schema([("s", pa.string())])) as writer:
        writer.write_batch(pa.record_batch([column], ["s"]))
    data = path.read_bytes()
    assert data.count(offsets) == 1
    forged = bytearray(offsets)
    forged[4:8] = (2**30).to_bytes(4, "little")
    path.write_bytes(data.replace(offsets, bytes(forged)))
    assert rows_of(path) is None


def test_what_lies_under_the_nulls_of_a_view_is_not_followed(tmp_path: Path) -> None:
    """A view there may point anywhere: validation passes over it, and a cast would not."""
    views = pa.array(["short", None, "a text that is too long to lie in a view"], pa.string_view())
    validity, places, text = views.buffers()
    forged = bytearray(places.to_pybytes())
    forged[16:32] = b"\xff" * 16
    column = pa.Array.from_buffers(views.type, 3, [validity, pa.py_buffer(bytes(forged)), text])
    path = tmp_path / "t.arrow"
    with pa.ipc.new_file(path, pa.schema([("v", pa.string_view())])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], ["v"]))
    assert rows_of(path) == [("short",), (None,), ("a text that is too long to lie in a view",)]


def test_nulls_in_a_column_that_says_it_has_none_are_refused(tmp_path: Path) -> None:
    """Whoever trusts the schema would take what lies under them for values."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    path = tmp_path / "t.arrow"
    with pa.ipc.new_file(path, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([1, None])], schema=schema))
    assert rows_of(path) is None
