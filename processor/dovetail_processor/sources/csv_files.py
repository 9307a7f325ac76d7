"""CSV files: UTF-8, commas, a header, quotes where needed, gzip or not.

Types are inferred and then hold: integers, floating point, booleans (true, false), dates, times,
timestamps, else text. The first thousand rows decide whether a column is text, the first megabyte
how fine its values are: a word among numbers is an error that names its row, not a reason to take
all numbers for text. As in DuckDB, an empty value is null, quoted or not, and nothing else is; a
column without values is text, and so are all columns of a file that has only a header. A row that
does not fit ends the reading with its number; the header is row 1.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from dovetail_processor.sources.bounds import Bounds
from dovetail_processor.sources.csv_rows import conversion, read_rows
from dovetail_processor.sources.file_format import FileFormat, FileInfo, check_names
from dovetail_processor.sources.text_files import (
    BIG_INTEGER,
    INFERENCE_BYTES,
    block_bytes,
    may_hold_big_integers,
    open_text,
)
from dovetail_proto.errors import InputError

_KIND_ROWS = 1000
"""Rows that decide whether a column is text; see the module."""

_TIME = r"^\d{2}:\d{2}:\d{2}(\.\d{1,6})?$"
_LEADING_ZERO = r"^\s*0\d"
_INTEGER = r"^\s*-?\d+\s*$"


class CsvFiles(FileFormat):
    """See `FileFormat`."""

    name = "CSV"
    extensions = (".csv",)

    def inspect(self, path: Path) -> FileInfo:
        """Read the header and infer types from the first rows."""
        names = _header(path)
        first = _first_rows(path, names, {}, names)
        if first is None:
            return FileInfo(pa.schema([(n, pa.string()) for n in names]), None, types_known=False)
        numbers = [n for n in names if _is_number(first.column(n).type)]
        written = _first_rows(path, names, dict.fromkeys(numbers, pa.string()), names)
        assert written is not None
        types = [_settled(path, names, first, written, name) for name in names]
        return FileInfo(pa.schema(list(zip(names, types, strict=True))), None)

    def read(
        self, path: Path, schema: pa.Schema, columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        """Block by block. Values of columns that are not asked for are not looked at."""
        types = {name: schema.field(name).type for name in columns}
        return read_rows(path, schema.names, types, columns, block_bytes(bounds.bytes))

    def agree(self, schema: pa.Schema, other: pa.Schema) -> bool:
        """Names count; whether values fit the types of the first file shows when they are read."""
        return bool(schema.names == other.names)


def _header(path: Path) -> list[str]:
    """The names in the first row; one without a name is called by its place, as in DuckDB."""
    with open_text(path) as stream:
        head = stream.read(INFERENCE_BYTES)
    if b"\0" in head:
        raise InputError("not a text file", remedy="CSV files are UTF-8 text")
    text = head.decode("utf-8-sig", errors="surrogateescape")
    try:
        names = next((row for row in csv.reader(io.StringIO(text, newline="")) if row), None)
    except csv.Error as e:
        raise InputError(f"the header is not CSV: {e}", remedy="check the first row") from e
    if names is None or not any(name.strip() for name in names):
        raise InputError("has no header", remedy="write the column names in the first row")
    for name in names:
        if not name.isprintable() and any("\udc80" <= c <= "\udcff" for c in name):
            raise InputError("the header is not UTF-8", remedy="convert the file to UTF-8")
    names = [name or f"column{i}" for i, name in enumerate(names)]
    check_names(names)
    return names


def _settled(
    path: Path, names: Sequence[str], first: pa.RecordBatch, written: pa.RecordBatch, name: str
) -> pa.DataType:
    """The type to go on with, given what was inferred from the `first` rows.

    `written` has the same rows with numbers as text. Times and timestamps are in microseconds, as
    DuckDB has them, or finer where values are: whole seconds say nothing of the next rows.
    """
    import pyarrow.compute as pc

    values = first.column(name)
    if pa.types.is_string(values.type):
        values = _as_inferred(values.slice(0, _KIND_ROWS))
    t = values.type
    if pa.types.is_null(t) or pa.types.is_binary(t):
        return pa.string()
    if pa.types.is_time(t):
        return pa.time64("us")
    if pa.types.is_timestamp(t):
        micro = pa.timestamp("us", t.tz)
        return micro if _fits(path, names, name, micro) else pa.timestamp("ns", t.tz)
    if _is_number(t):
        text = written.column(name)
        if pc.any(pc.match_substring_regex(text, _LEADING_ZERO)).as_py():
            return pa.string()  # as in DuckDB: an identifier, such as a postal code
        if pa.types.is_floating(t) and may_hold_big_integers(values):
            integers = pc.all(pc.match_substring_regex(text, _INTEGER)).as_py()
            return BIG_INTEGER if integers else t
    return t


def _is_number(t: pa.DataType) -> bool:
    return bool(pa.types.is_integer(t) or pa.types.is_floating(t))


def _as_inferred(values: pa.Array) -> pa.Array:
    """Some written values, as the type that they are taken for."""
    import pyarrow.compute as pc

    if pc.all(pc.match_substring_regex(values, _TIME), min_count=1).as_py():
        return pa.nulls(len(values), pa.time64("us"))  # pyarrow sees times of whole seconds only
    written = pa.BufferOutputStream()
    pa_csv.write_csv(pa.table({"values": values}), written)
    text = written.getvalue()
    table = pa_csv.read_csv(
        pa.BufferReader(text),
        read_options=pa_csv.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=conversion({}, None),
    )
    return table.column(0).combine_chunks()


def _fits(path: Path, names: Sequence[str], name: str, t: pa.DataType) -> bool:
    """Whether a column of the first rows can be read as type `t`."""
    try:
        _first_rows(path, names, {name: t}, [name])
    except InputError:
        return False
    return True


def _first_rows(
    path: Path, names: Sequence[str], types: dict[str, pa.DataType], columns: Sequence[str]
) -> pa.RecordBatch | None:
    """The rows that types are inferred from; None if there are none."""
    pieces = read_rows(path, names, types, columns, INFERENCE_BYTES, blocks_max=2)
    with contextlib.closing(pieces):
        return next(pieces, None)
