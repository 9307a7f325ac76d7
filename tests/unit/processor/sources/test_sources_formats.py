"""Every format with every type it can hold, in batches that keep their bounds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from dovetail_processor.sinks import checksum
from dovetail_processor.sources import FileSource, open_source, parquet_files
from dovetail_processor.sources.bounds import Bounds
from dovetail_processor.sources.parquet_files import ParquetFiles
from kit.arrow_samples import odd_samples, plain_samples


def write_parquet(table: pa.Table, path: Path) -> None:
    """Two rows to a row group."""
    pq.write_table(table, path, row_group_size=2)


def write_ipc_file(table: pa.Table, path: Path) -> None:
    """Four rows to a batch."""
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


def write_ipc_stream(table: pa.Table, path: Path) -> None:
    """Four rows to a batch."""
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


def write_feather(table: pa.Table, path: Path) -> None:
    """Compressed."""
    feather.write_feather(table, path, compression="lz4", chunksize=4)


BINARY: dict[str, tuple[Callable[[pa.Table, Path], None], str]] = {
    "Parquet": (write_parquet, "t.parquet"),
    "IPC file": (write_ipc_file, "t.arrow"),
    "IPC stream": (write_ipc_stream, "t.arrows"),
    "Feather": (write_feather, "t.feather"),
}


def read(source: FileSource, columns: Sequence[str] = (), rows: int = 1000) -> pa.Table:
    """All rows of a source, with its promises about batches checked."""
    columns = list(columns) or source.schema.names
    schema = pa.schema([source.schema.field(c) for c in columns])
    batches = list(source.batches(columns, batch_rows=rows, batch_bytes=1 << 20))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        assert 0 < batch.num_rows <= rows
    return pa.Table.from_batches(batches, schema)


def total(table: pa.Table) -> int:
    """The checksum of a table: NaN is equal to itself there."""
    return sum(checksum(b) for b in table.to_batches()) % 2**64


@pytest.mark.parametrize("form", BINARY)
@pytest.mark.parametrize("name", plain_samples())
def test_binary_formats_keep_every_plain_type(form: str, name: str, tmp_path: Path) -> None:
    """Types, values and nulls."""
    write, file = BINARY[form]
    table = pa.table({"before": [1, 2, 3, 4, 5, 6], "c": plain_samples()[name]})
    write(table, tmp_path / file)
    found = read(open_source(tmp_path / file), ["c"], rows=5)
    assert found.schema.field("c").type == table.schema.field("c").type
    assert total(found) == total(table.select(["c"]))


@pytest.mark.parametrize("form", BINARY)
@pytest.mark.parametrize("name", odd_samples())
def test_odd_layouts_become_plain(form: str, name: str, tmp_path: Path) -> None:
    """Dictionaries are decoded, views and extensions laid out plainly, at any depth."""
    write, file = BINARY[form]
    odd, plain = odd_samples()[name]
    try:
        write(pa.table({"c": odd}), tmp_path / file)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        if form not in ("Parquet", "Feather"):  # these cannot hold some of them
            raise
        return
    source = open_source(tmp_path / file)
    for rows in (1, 2, 1000):
        found = read(source, rows=rows)
        assert found.column("c").combine_chunks().equals(plain) or found.num_rows == 0
    assert source.schema.field("c").type == plain.type


@pytest.mark.parametrize("form", BINARY)
def test_columns_come_in_the_order_asked_for(form: str, tmp_path: Path) -> None:
    """And only those."""
    write, file = BINARY[form]
    table = pa.table({n: [f"{n}{i}" for i in range(9)] for n in ("a", "b", "a.b", "a.c", "d")})
    write(table, tmp_path / file)
    for columns in (["d", "a"], ["a"], ["a.b"], ["a.c", "a", "b"]):
        assert read(open_source(tmp_path / file), columns).equals(table.select(columns))


@pytest.mark.parametrize("form", BINARY)
def test_a_file_without_rows_has_columns(form: str, tmp_path: Path) -> None:
    """It is a stream that ends at once."""
    write, file = BINARY[form]
    table = pa.table({"a": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    write(table, tmp_path / file)
    source = open_source(tmp_path / file)
    assert source.schema.equals(table.schema)
    assert read(source).num_rows == 0


def test_totals_are_known_where_the_format_knows(tmp_path: Path) -> None:
    """Rows in Parquet and IPC files, bytes always."""
    table = pa.table({"a": range(10)})
    known = {"t.parquet": 10, "t.arrow": 10, "t.arrows": None, "t.csv": None, "t.jsonl": None}
    write_parquet(table, tmp_path / "t.parquet")
    write_ipc_file(table, tmp_path / "t.arrow")
    write_ipc_stream(table, tmp_path / "t.arrows")
    pa_csv.write_csv(table, tmp_path / "t.csv")
    (tmp_path / "t.jsonl").write_text("".join(f'{{"a": {i}}}\n' for i in range(10)))
    for file, rows in known.items():
        source = open_source(tmp_path / file)
        assert (source.rows_total, source.bytes_total) == (rows, (tmp_path / file).stat().st_size)
        assert read(source).equals(table)


CSV_VALUES: dict[str, list[Any]] = {
    "integer": ["0", "-9223372036854775808", "9223372036854775807", ""],
    "beyond int64": ["12345678901234567890", "-1", "", "7"],
    "real": ["1.5", "2", "", "-1e300"],
    "nan and infinity": ["nan", "inf", "-inf", "1.5"],
    "boolean": ["true", "false", "", "true"],
    "date": ["2024-02-29", "1970-01-01", "", "2100-12-31"],
    "time": ["10:00:00", "23:59:59.5", "", "00:00:00"],
    "timestamp": ["2024-01-01 10:00:00", "2024-01-01T10:00:00.123456", "", "1969-12-31 23:59:59"],
    "text": ["a", '"b, ""c"""', "", '"two\nlines"'],
    "text like null": ["NA", "null", "NULL", "n/a"],
    "quoted empty": ['""', "x", "", "y"],
    "unicode": ["é", "😀", "", "日本"],
    "leading zeros": ["007", "1", "", "2"],
}


@pytest.mark.parametrize("name", CSV_VALUES)
def test_csv_values_mean_what_duckdb_says(name: str, tmp_path: Path) -> None:
    """DuckDB's reader of CSV is the oracle."""
    path = tmp_path / "t.csv"
    lines = [f"{i},{v}" for i, v in enumerate(CSV_VALUES[name])]
    path.write_text("\n".join(["n,v", *lines]) + "\n")
    found = read(open_source(path))
    expected = duckdb.sql(f"SELECT n, v FROM read_csv('{path}', header = true) ORDER BY n")
    assert repr(list(zip(*found.to_pydict().values(), strict=True))) == repr(
        [(n, Decimal(v) if name == "beyond int64" and v is not None else v)
         for n, v in expected.fetchall()]
    )  # fmt: skip


def test_csv_timestamps_with_zones_are_moments(tmp_path: Path) -> None:
    """Offsets are applied."""
    path = tmp_path / "t.csv"
    path.write_text("n,t\n1,2024-01-01 10:00:00+02:00\n2,2024-01-01T08:00:00Z\n")
    column = read(open_source(path)).column("t")
    assert column.type == pa.timestamp("us", "UTC")
    assert column[0] == column[1]


def test_csv_nanoseconds_are_kept(tmp_path: Path) -> None:
    """Where the first rows have them."""
    path = tmp_path / "t.csv"
    path.write_text("n,t\n1,2024-01-01 10:00:00.123456789\n")
    assert open_source(path).schema.field("t").type == pa.timestamp("ns")


def test_csv_of_a_header_alone_is_text_without_rows(tmp_path: Path) -> None:
    """With and without a newline at the end."""
    for text in ("a,b\n", "a,b", "a,b\r\n"):
        path = tmp_path / "t.csv"
        path.write_text(text, newline="")
        source = open_source(path)
        assert source.schema.equals(pa.schema([("a", pa.string()), ("b", pa.string())]))
        assert read(source).num_rows == 0


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n1,x\n2,y", [(1, "x"), (2, "y")]),
        ("a,b\r\n1,x\r\n2,y\r\n", [(1, "x"), (2, "y")]),
        ("\n\na,b\n\n1,x\n\n\n2,y\n\n", [(1, "x"), (2, "y")]),
        ("\ufeffa,b\n1,x\n", [(1, "x")]),
        ('"a","b\n"\n1,x\n', [(1, "x")]),
        ('a,b\n1,5" nails\n', [(1, '5" nails')]),
        ("a\n1\n\n3\n", [(1,), (None,), (3,)]),
        ("a,\n1,x\n", [(1, "x")]),
    ],
)
def test_csv_is_read_in_all_its_dialects(
    text: str, rows: list[tuple[object, ...]], tmp_path: Path
) -> None:
    """Line ends, blank lines, byte order marks, quotes."""
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8", newline="")
    assert list(zip(*read(open_source(path)).to_pydict().values(), strict=True)) == rows


def test_a_csv_column_without_a_name_is_called_by_its_place(tmp_path: Path) -> None:
    """As in DuckDB."""
    path = tmp_path / "t.csv"
    path.write_text("a,,c\n1,2,3\n")
    assert open_source(path).schema.names == ["a", "column1", "c"]


def test_csv_rows_longer_than_a_block_are_read_once(tmp_path: Path) -> None:
    """Among short rows and blank lines, which must not be counted twice."""
    path = tmp_path / "t.csv"
    rows: list[tuple[int, str]] = [(i, f"r{i}") for i in range(40_000)]
    for at, length in ((10_000, 300_000), (39_999, 2_500_000)):
        rows[at] = (at, "long,\n" * (length // 6))
    with path.open("w", newline="") as file:
        file.write("n,s\n")
        for n, s in rows:
            file.write(f'{n},"{s}"\n\n' if n % 3 else f'{n},"{s}"\n')
    found = read(open_source(path), rows=10_000)
    assert found.column("n").to_pylist() == [n for n, _ in rows]
    assert found.column("s").to_pylist() == [s for _, s in rows]


JSON_ROWS = [
    '{"i": 1, "f": 1.5, "s": "a", "b": true, "l": [1, 2], "o": {"x": 1, "y": ["p"]}, "n": null}',
    '{"i": null, "f": 2, "s": "", "b": null, "l": [], "o": {"x": null}, "n": null}',
    "",
    '{"s": "é\\ud83d\\ude00\\n", "l": null, "o": null}',
    '{"i": -5, "f": -0.0, "s": "2024", "b": false, "l": [null], "o": {"y": []}}',
]


def test_json_lines_hold_every_type_of_json(tmp_path: Path) -> None:
    """Python's own reader is the oracle; a field that is missing is null."""
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(JSON_ROWS))
    found = read(open_source(path)).to_pylist()
    for row, line in zip(found, [line for line in JSON_ROWS if line], strict=True):
        expected: dict[str, Any] = dict.fromkeys(found[0]) | json.loads(line)
        if expected["o"] is not None:
            expected["o"] = {"x": None, "y": None} | expected["o"]
        assert row == expected


def test_json_text_that_is_a_moment_throughout_becomes_one(tmp_path: Path) -> None:
    """As in DuckDB; anything else stays text."""
    rows = [
        {"d": "2024-02-29", "t": "2024-01-01 10:00:00", "z": "2024-01-01T10:00:00Z",
         "m": "2024-01-01", "w": "2024-13-01", "c": "10:00:00"},
        {"d": None, "t": "2024-01-02 00:00:00", "z": "2024-01-01T08:00:00Z",
         "m": "soon", "w": "2024-12-01", "c": "10:00:01"},
    ]  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    found = read(open_source(path))
    assert {f.name: f.type for f in found.schema} == {
        "d": pa.date32(), "t": pa.timestamp("us"), "z": pa.timestamp("us", "UTC"),
        "m": pa.string(), "w": pa.string(), "c": pa.string(),
    }  # fmt: skip
    oracle = duckdb.sql(f"SELECT d, t, epoch_us(z), m, w FROM '{path}'").fetchall()
    ours = found.set_column(2, "z", found.column("z").cast(pa.int64())).drop_columns(["c"])
    assert list(zip(*ours.to_pydict().values(), strict=True)) == oracle


def test_json_integers_beyond_64_bits_stay_exact(tmp_path: Path) -> None:
    """As floating point, two keys could become equal."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"k": 12345678901234567890}\n{"k": 12345678901234567891}\n{"k": null}\n')
    assert read(open_source(path)).column("k").to_pylist() == [
        Decimal(12345678901234567890), Decimal(12345678901234567891), None,
    ]  # fmt: skip


def test_json_objects_without_fields_are_left_out(tmp_path: Path) -> None:
    """Parquet could not hold them."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1, "meta": {}, "deep": {"x": {}, "y": 1}}\n')
    assert read(open_source(path)).to_pylist() == [{"a": 1, "deep": {"y": 1}}]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_text_is_unpacked(name: str, tmp_path: Path) -> None:
    """Gzip, known by its first bytes, in one or several members."""
    texts = {
        "t.csv": ["a,s\n1,x\n", "2,y\n"],
        "t.jsonl": ['{"a": 1, "s": "x"}\n', '{"a": 2, "s": "y"}\n'],
    }
    packed = b"".join(gzip.compress(part.encode()) for part in texts[name])
    for file in (f"{name}.gz", name):
        (tmp_path / file).write_bytes(packed)
        assert read(open_source(tmp_path / file)).to_pydict() == {"a": [1, 2], "s": ["x", "y"]}


def test_batches_keep_their_bounds_in_rows_and_bytes(tmp_path: Path) -> None:
    """A row larger than the bound comes alone; small pieces are joined."""
    text = [("x" * (50_000 if i % 100 == 7 else i % 50)) for i in range(3000)]
    table = pa.table({"n": range(3000), "s": text})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=64)
    source = open_source(tmp_path / "t.parquet")
    batches = list(source.batches(["n", "s"], batch_rows=500, batch_bytes=20_000))
    assert pa.Table.from_batches(batches).equals(table)
    for batch in batches:
        assert batch.num_rows <= 500
        assert batch.nbytes <= 20_000 or batch.num_rows == 1
    small = [b for b in batches if b.num_rows > 1]
    assert sum(b.num_rows for b in small) / len(small) > 20


def test_a_source_can_be_read_again(tmp_path: Path) -> None:
    """Each reading starts at the first row."""
    write_parquet(pa.table({"a": range(10)}), tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet")
    first = source.batches(["a"], batch_rows=3, batch_bytes=1000)
    begun = next(first).num_rows
    assert read(source).num_rows == 10
    assert begun + sum(b.num_rows for b in first) == 10


def test_repeated_values_in_parquet_do_not_break_the_bound(tmp_path: Path) -> None:
    """A dictionary of one long value is small in the file and large in memory."""
    table = pa.table({"s": ["x" * 20_000] * 3000, "n": range(3000)})
    pq.write_table(table, tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 200_000
    source = open_source(tmp_path / "t.parquet")
    count = 0
    before = pa.total_allocated_bytes()
    for batch in source.batches(["n", "s"], batch_rows=65536, batch_bytes=1 << 20):
        assert batch.nbytes <= 1 << 20
        assert pa.total_allocated_bytes() - before < 10 << 20
        assert batch.column("n")[0].as_py() == count
        count += batch.num_rows
    assert count == 3000


def test_parts_of_a_parquet_file_are_read_each_in_steps_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is at short text and takes more rows at a time, while the other one is at long text."""
    monkeypatch.setattr(parquet_files, "PART_ROWS", 16_000)
    table = pa.table({"s": ["x"] * 16_000 + ["y" * 1_000] * 16_000})
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=8_000)
    bounds = Bounds(rows=65536, bytes=100_000)
    short, long = ParquetFiles().parts(path, table.schema, ["s"], bounds)
    rows = long.read()
    at_once = [next(rows).num_rows for _ in range(8_000 // 64)]
    assert max(at_once) <= 100, "as many as a batch may hold"
    assert max(piece.num_rows for piece in short.read()) == 4096
    rest = [piece.num_rows for piece in rows]
    assert max(rest) <= 100
    assert sum(at_once) + sum(rest) == 16_000


def test_dictionaries_are_decoded_in_bounded_pieces(tmp_path: Path) -> None:
    """Decoded whole, this batch would take 60 MB."""
    values = pa.array(["x" * 20_000, "y"])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 3000 + [1] * 3000, pa.int8()), values)
    write_ipc_file(pa.table({"s": column}), tmp_path / "t.arrow")
    source = open_source(tmp_path / "t.arrow")
    before = pa.total_allocated_bytes()
    rows = 0
    for batch in source.batches(["s"], batch_rows=65536, batch_bytes=1 << 20):
        rows += batch.num_rows
        assert pa.total_allocated_bytes() - before < 10 << 20
    assert rows == 6000
