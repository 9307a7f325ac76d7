"""What bad input gets: InputError that names the file, the row where there is one, and a remedy."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.sources import open_source
from dovetail_proto.errors import InputError


def drain(path: Path) -> int:
    """Read a source to its end; the number of rows."""
    source = open_source(path)
    batches = source.batches(source.schema.names, batch_rows=1000, batch_bytes=1 << 20)
    return sum(b.num_rows for b in batches)


def refused(path: Path, text: str) -> None:
    """Reading the source ends in an error that names it, matches `text` and has a remedy."""
    with pytest.raises(InputError, match=text) as caught:
        drain(path)
    assert str(path) in caught.value.message
    assert caught.value.remedy
    assert len(str(caught.value)) < 1000


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def ipc_bytes(table: pa.Table) -> bytes:
    """The table as an IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


TABLE = pa.table({"a": range(100), "s": [f"s{i}" for i in range(100)]})
PARQUET, IPC = parquet_bytes(TABLE), ipc_bytes(TABLE)
CSV = b"a,s\n1,x\n2,y\n"
JSON = b'{"a": 1, "s": "x"}\n{"a": 2, "s": "y"}\n'

SPOILT: dict[str, tuple[str, bytes, str]] = {
    "empty parquet": ("t.parquet", b"", "is empty"),
    "empty csv": ("t.csv", b"", "is empty"),
    "empty json": ("t.jsonl", b"", "is empty"),
    "empty ipc": ("t.arrow", b"", "is empty"),
    "half a parquet": ("t.parquet", PARQUET[: len(PARQUET) // 2], "damaged"),
    "parquet without footer": ("t.parquet", PARQUET[:-8], "damaged"),
    "half an ipc file": ("t.arrow", IPC[: len(IPC) // 2], "damaged"),
    "csv called parquet": ("t.parquet", CSV, "is not Parquet"),
    "json called ipc": ("t.arrow", JSON, "is not Arrow IPC"),
    "parquet called csv": ("t.csv", PARQUET, "is Parquet.*called otherwise"),
    "ipc called json": ("t.jsonl", IPC, "is Arrow IPC.*called otherwise"),
    "ipc called parquet": ("t.parquet", IPC, "is Arrow IPC.*called otherwise"),
    "parquet in gzip": ("t.parquet.gz", gzip.compress(PARQUET), "inside gzip"),
    "feather version 1": ("t.feather", b"FEA1" + bytes(100), "Feather version 1"),
    "unknown extension": ("t.dat", b"hello", r"no format.*\.parquet"),
    "no extension": ("t", b"hello", "no format"),
    "noise called csv": ("t.csv", b"\0\1\2" * 50, "not a text file"),
    "utf-16 csv": ("t.csv", CSV.decode().encode("utf-16"), "not a text file"),
    "latin-1 header": ("t.csv", "é,b\n1,2\n".encode("latin-1"), "header is not UTF-8"),
    "latin-1 value": ("t.csv", "a,b\n1,x\n2,é\n".encode("latin-1"), "row 3.*'b'.*UTF8"),
    "blank csv": ("t.csv", b"\n\n \n\n", "no header|damaged"),
    "repeated name": ("t.csv", b"a,b,a\n1,2,3\n", "several columns named 'a'"),
    "a field too many": ("t.csv", CSV + b"3,z,!\n", "row 4.*[Ee]xpected 2 columns, got 3"),
    "a field too few": ("t.csv", CSV + b"3\n4,z\n", "row 4.*[Ee]xpected 2 columns, got 1"),
    "open quote": ("t.csv", CSV + b'3,"z\n4,y\n', "row 4.*quote"),
    "open quote in a number": ("t.csv", b'a,s\n1,x\n"2,y\n3,z\n', "row 3.*(quote|columns)"),
    "truncated gzip": ("t.csv.gz", gzip.compress(CSV * 100)[:-20], "[Tt]runcated"),
    "json array": ("t.json", b'[{"a": 1}, {"a": 2}]', "JSON array.*jq"),
    "pretty json": ("t.json", b'{\n  "a": 1\n}\n', "row 1"),
    "broken json": ("t.jsonl", JSON + b'{"a": 3, "s": \n' + JSON, "row 3"),
    "cut json": ("t.jsonl", JSON + b'{"a": 3, "s": "z', "row 3"),
    "json number": ("t.jsonl", b"1\n2\n", "row 1|no format"),
    "json of no fields": ("t.jsonl", b"{}\n{}\n", "no fields"),
    "blank json": ("t.jsonl", b"\n \n", "no rows"),
    "json type changes": ("t.jsonl", JSON + b'{"a": "three", "s": "z"}\n', "row 3.*'a'.*string"),
    "json field twice": ("t.jsonl", JSON + b'{"a": 1, "a": 2}\n', "row 3.*'a'.*twice"),
    "two objects a line": ("t.jsonl", JSON + b'{"a": 1} {"a": 2}\n', "row 3.*exactly one"),
    "json not utf-8": ("t.jsonl", JSON + b'{"a": 3, "s": "\xff"}\n', "row 3.*UTF-8"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """With the row where the format has rows."""
    file, data, text = SPOILT[name]
    (tmp_path / file).write_bytes(data)
    refused(tmp_path / file, text)


FAR = 200_000
"""Rows before the one that is wrong: far behind what types are inferred from."""


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("5,x,1.5,!", rf"row {FAR + 2} .*[Ee]xpected 3 columns, got 4"),
        ("5", rf"row {FAR + 2} .*[Ee]xpected 3 columns, got 1"),
        ("five,x,1.5", rf"row {FAR + 2} .*'a'.*int64.*'five'"),
        ("5.5,x,1.5", rf"row {FAR + 2} .*'a'.*int64.*'5.5'"),
        ("5,x,NA", rf"row {FAR + 2} .*'f'.*double.*'NA'"),
        ('5,"x,1.5', rf"row {FAR + 2} .*quote"),
    ],
)
def test_a_csv_row_far_from_the_start_is_named(line: str, text: str, tmp_path: Path) -> None:
    """Types are long fixed."""
    rows = "".join(f"{i},s{i},{i / 2}\n" for i in range(FAR))
    (tmp_path / "t.csv").write_text(f"a,s,f\n{rows}{line}\n6,y,2.5\n")
    refused(tmp_path / "t.csv", text)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"a": "five"}', rf"row {FAR + 1}: .*'a'.*string"),
        ('{"a": 5.5}', rf"row {FAR + 1}: .*int64.*5.5"),
        ('{"a": 5, "new": 1}', rf"row {FAR + 1}: unexpected field"),
        ('{"a": 5', rf"row {FAR + 1}: "),
        ('{"a": 5, "d": "soon"}', rf"row {FAR + 1}: .*'soon'.*date"),
        ("[]", rf"row {FAR + 1}: "),
    ],
)
def test_a_json_line_far_from_the_start_is_named(line: str, text: str, tmp_path: Path) -> None:
    """Also a field that would otherwise be lost without a word."""
    rows = '{"a": 1, "d": "2024-01-01"}\n' * FAR
    (tmp_path / "t.jsonl").write_text(f'{rows}{line}\n{{"a": 6}}\n')
    refused(tmp_path / "t.jsonl", text)


@pytest.mark.parametrize("value", ["{i}", "{i}.5", "2024-01-01", "10:00:00", "true"])
def test_a_word_among_numbers_is_an_error_not_a_type(value: str, tmp_path: Path) -> None:
    """Even where the file is small: a thousand values decide that the column is not text."""
    rows = "".join(f"{value.format(i=i)},x\n" for i in range(1500))
    (tmp_path / "t.csv").write_text(f"a,s\n{rows}many,x\n")
    refused(tmp_path / "t.csv", "row 1502 .*'a'.*'many'")


def test_a_csv_row_beyond_all_measure_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have to be held whole."""
    monkeypatch.setattr("dovetail_processor.sources.csv_rows.ROW_BYTES_MAX", 4 << 20)
    (tmp_path / "t.csv").write_bytes(CSV + b'3,"' + b"x" * (20 << 20) + b'"\n')
    refused(tmp_path / "t.csv", "longer than .* bytes.*quote")


def test_a_json_line_beyond_all_measure_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have to be held whole."""
    monkeypatch.setattr("dovetail_processor.sources.json_lines.ROW_BYTES_MAX", 4 << 20)
    (tmp_path / "t.jsonl").write_bytes(JSON + b'{"a": 3, "s": "' + b"x" * (9 << 20) + b'"}\n')
    refused(tmp_path / "t.jsonl", "row 3 is longer than")


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    """Missing, a pipe that nobody writes to, a device, a link to nowhere."""
    refused(tmp_path / "missing.parquet", "no such file")
    os.mkfifo(tmp_path / "pipe.csv")
    refused(tmp_path / "pipe.csv", "is not a file")
    refused(Path("/dev/null"), "is not a file")
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / "link.csv", "no such file")
    (tmp_path / "t.csv").write_bytes(CSV)
    refused(tmp_path / "t.csv" / "below.csv", "damaged|no such file|[Nn]ot a directory")


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so the system's answer is played back."""
    (tmp_path / "t.csv").write_bytes(CSV)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dovetail_processor.sources.text_files.Path.open", denied)
    refused(tmp_path / "t.csv", "may not be read")


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    """Nested folders too; hidden files and those that begin with _ are not data."""
    for name, value in {
        "b.csv": 2,
        "a.csv": 1,
        "c/z.csv": 4,
        "c/d/e.csv": 3,
        "x=5/f.csv": 5,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"n\n{value}\n")
    for name in ("_SUCCESS", ".a.csv.crc", "_temporary/part.csv", ".hidden/x.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("not data")
    source = open_source(tmp_path)
    batches = list(source.batches(["n"], batch_rows=100, batch_bytes=1000))
    assert [v.as_py() for b in batches for v in b.column(0)] == [1, 2, 3, 4, 5]
    assert len(batches) == 1
    assert source.bytes_total == 5 * 4


def test_links_in_a_folder_are_followed_once(tmp_path: Path) -> None:
    """A link back to the folder would never end."""
    folder, other = tmp_path / "in", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (folder / "a.csv").write_text("n\n1\n")
    (other / "b.csv").write_text("n\n2\n")
    (folder / "other").symlink_to(other)
    (other / "back").symlink_to(folder)
    (folder / "c.csv").symlink_to(other / "b.csv")
    assert drain(folder) == 3


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    """A folder with these files."""
    for name, data in files.items():
        (root / name).write_bytes(data)
    return root


def test_a_folder_has_one_format_and_one_schema(tmp_path: Path) -> None:
    """The file that differs is named, before any row is read."""
    narrow = parquet_bytes(TABLE.select(["a"]))
    typed = parquet_bytes(TABLE.set_column(0, "a", TABLE.column("a").cast(pa.int32())))
    cases: list[tuple[dict[str, bytes], str]] = [
        ({"0.parquet": PARQUET, "1.csv": CSV}, r"1\.csv.*CSV.*0\.parquet is Parquet"),
        ({"0.parquet": PARQUET, "1.parquet": narrow}, r"1\.parquet.*columns a instead of a, s"),
        ({"0.parquet": PARQUET, "1.parquet": typed}, r"1\.parquet.*'a' is int32.*int64"),
        ({"0.csv": CSV, "1.csv": b"s,a\nx,1\n"}, r"1\.csv.*columns s, a instead of a, s"),
        ({"0.csv": CSV, "1.csv": b""}, r"1\.csv.*empty"),
        ({"0.csv": CSV, "notes.txt": b"hello"}, r"notes\.txt.*no format"),
        ({"0.csv": CSV, "1.csv": b"a,s\nthree,x\n"}, r"1\.csv: row 2 .*'a'.*'three'"),
        ({"0.jsonl": JSON, "1.jsonl": b'{"a": 1}\n{"b": 1}\n'}, r"1\.jsonl: row 2.*unexpected"),
        ({}, "without data files"),
    ]
    for i, (files, text) in enumerate(cases):
        folder = tmp_path / str(i)
        folder.mkdir()
        with pytest.raises(InputError, match=text) as caught:
            drain(folder_of(folder, files))
        assert caught.value.message.count(str(folder)) == 1


def test_a_csv_file_with_a_header_alone_does_not_decide_on_types(tmp_path: Path) -> None:
    """The first file with rows does."""
    folder_of(tmp_path, {"0.csv": b"a,s\n", "1.csv": CSV})
    assert open_source(tmp_path).schema.field("a").type == pa.int64()
    assert drain(tmp_path) == 2


def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    """Its schema may be another by now."""
    path = tmp_path / "t.parquet"
    path.write_bytes(PARQUET)
    source = open_source(path)
    path.write_bytes(parquet_bytes(TABLE.slice(0, 7)))
    batches = source.batches(["a"], batch_rows=10, batch_bytes=1000)
    with pytest.raises(InputError, match="changed since"):
        next(batches)


def test_unions_are_refused_by_column(tmp_path: Path) -> None:
    """Nothing behind the sources could hold them."""
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    (tmp_path / "t.arrow").write_bytes(ipc_bytes(pa.table({"u": union})))
    refused(tmp_path / "t.arrow", "column 'u'.*union")


def test_columns_without_a_place_for_values_are_left_out(tmp_path: Path) -> None:
    """Lists of no length, text of no width, structs of no fields; alone they are no stream."""
    hollow = {
        "l": pa.nulls(2, pa.list_(pa.int8(), 0)),
        "b": pa.array([b"", None], pa.binary(0)),
        "s": pa.nulls(2, pa.struct([])),
    }
    (tmp_path / "t.arrow").write_bytes(ipc_bytes(pa.table({"a": [1, 2], **hollow})))
    assert open_source(tmp_path / "t.arrow").schema.names == ["a"]
    assert drain(tmp_path / "t.arrow") == 2
    (tmp_path / "u.arrow").write_bytes(ipc_bytes(pa.table(hollow)))
    refused(tmp_path / "u.arrow", "has no columns")


def test_unknown_columns_are_a_defect_of_the_caller(tmp_path: Path) -> None:
    """The planner knows the schema."""
    (tmp_path / "t.csv").write_bytes(CSV)
    for columns in (["nope"], []):
        with pytest.raises(ValueError, match="columns"):
            open_source(tmp_path / "t.csv").batches(columns, batch_rows=1, batch_bytes=1)
