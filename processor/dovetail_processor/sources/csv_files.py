"""CSV files: UTF-8, commas, a header, quotes where needed, gzip or not.

Types are inferred over the first megabyte and then hold: integers, floating point, booleans
(true, false), dates, times, timestamps, else text. As in DuckDB, an empty value is null, quoted or
not, and nothing else is; a column without values is text, and so are all columns of a file that
has only a header. A row that does not fit ends the reading with its number; the header is row 1.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from dovetail_processor.sources.bounds import Bounds
from dovetail_processor.sources.file_format import FileFormat, FileInfo, check_names
from dovetail_processor.sources.text_files import (
    BIG_INTEGER,
    INFERENCE_BYTES,
    ROW_BYTES_MAX,
    block_bytes,
    may_hold_big_integers,
    open_text,
)
from dovetail_proto.errors import InputError

_END_MARK = "--end-of-file--"
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
        return FileInfo(pa.schema([(n, _settled(path, names, first, n)) for n in names]), None)

    def read(
        self, path: Path, schema: pa.Schema, columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        """Block by block. Values of columns that are not asked for are not looked at."""
        types = {name: schema.field(name).type for name in columns}
        return _pieces(path, schema.names, types, columns, block_bytes(bounds.bytes))

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
    if names is None:
        raise InputError("has no header", remedy="write the column names in the first row")
    for name in names:
        if not name.isprintable() and any("\udc80" <= c <= "\udcff" for c in name):
            raise InputError("the header is not UTF-8", remedy="convert the file to UTF-8")
    names = [name or f"column{i}" for i, name in enumerate(names)]
    check_names(names)
    return names


def _settled(path: Path, names: Sequence[str], first: pa.RecordBatch, name: str) -> pa.DataType:
    """The type to go on with, given what was inferred from the first rows.

    Times and timestamps are in microseconds, as DuckDB has them, or finer where values are: whole
    seconds in the first rows say nothing of the next ones.
    """
    t = first.column(name).type
    if pa.types.is_null(t) or pa.types.is_binary(t):
        return pa.string()
    if pa.types.is_time(t):
        return pa.time64("us")
    if pa.types.is_timestamp(t):
        micro = pa.timestamp("us", t.tz)
        fits = _first_rows_as(path, names, name, micro) is not None
        return micro if fits else pa.timestamp("ns", t.tz)
    if pa.types.is_floating(t) and may_hold_big_integers(first.column(name)):
        written = _first_rows_as(path, names, name, pa.string())
        if written is not None:
            integers = pc.match_substring_regex(written.column(0), _INTEGER)
            return BIG_INTEGER if pc.all(integers).as_py() else t
    return t


def _first_rows_as(
    path: Path, names: Sequence[str], name: str, t: pa.DataType
) -> pa.RecordBatch | None:
    """A column of the first rows, read as type `t`; None if it does not fit."""
    try:
        return _first_rows(path, names, {name: t}, [name])
    except InputError:
        return None


def _first_rows(
    path: Path, names: Sequence[str], types: dict[str, pa.DataType], columns: Sequence[str]
) -> pa.RecordBatch | None:
    """The rows that types are inferred from; None if there are none."""
    pieces = _pieces(path, names, types, columns, INFERENCE_BYTES, blocks_max=2)
    with contextlib.closing(pieces):
        return next(pieces, None)


def _pieces(
    path: Path,
    names: Sequence[str],
    types: dict[str, pa.DataType],
    columns: Sequence[str],
    block: int,
    *,
    blocks_max: int | None = None,
) -> Generator[pa.RecordBatch]:
    """The rows, in blocks that grow where a row does not fit into one.

    With `blocks_max`, no more of the file is read, and only the first piece may be used.
    """
    done = 0
    while True:
        limit = None if blocks_max is None else blocks_max * block
        text = _MarkedText(path, len(names), limit)
        rows = _Rows(text, names, types, columns, block, skip=done)
        try:
            for batch in rows:
                done += batch.num_rows
                yield batch
            return
        except pa.ArrowInvalid as e:
            if "straddling" not in str(e):
                raise _row_error(str(e), names) from e
            if block >= ROW_BYTES_MAX:
                raise InputError(
                    f"row {done + 2} or one soon after it is longer than {ROW_BYTES_MAX} bytes",
                    remedy="look there for a quote that is not closed",
                ) from e
            block *= 4
        finally:
            rows.close()


class _Rows:
    """One pass of pyarrow's reader over the file, which must end in the end mark."""

    def __init__(
        self,
        text: _MarkedText,
        names: Sequence[str],
        types: dict[str, pa.DataType],
        columns: Sequence[str],
        block: int,
        *,
        skip: int,
    ) -> None:
        self._text = text
        self._marks_seen = 0
        self._reader: pa_csv.CSVStreamingReader | None = None
        self._options = {
            "read_options": pa_csv.ReadOptions(
                use_threads=False,  # else errors do not tell the row
                block_size=block,
                column_names=names,
                skip_rows_after_names=1 + skip,
            ),
            "parse_options": pa_csv.ParseOptions(
                newlines_in_values=True,
                ignore_empty_lines=len(names) > 1,  # in a single column they are nulls
                invalid_row_handler=self._on_invalid_row,
            ),
            "convert_options": pa_csv.ConvertOptions(
                null_values=[""],
                strings_can_be_null=True,
                column_types=types,
                include_columns=columns,
            ),
        }

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._reader = pa_csv.open_csv(pa.PythonFile(self._text, "r"), **self._options)
        for batch in self._reader:
            if batch.num_rows:
                yield batch
        if self._marks_seen != 1:
            raise InputError(
                "the last row has a quote that is not closed",
                remedy="restore the rest of the file or close the quote",
            )

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._text.close()

    def _on_invalid_row(self, row: pa_csv.InvalidRow) -> str:
        if row.text != self._text.mark:
            return "error"
        self._marks_seen += 1
        return "skip"


class _MarkedText:
    """A file's text with a last line that is no row, as much of a Python file as pyarrow needs.

    pyarrow takes a quote that is still open at the end of the file for closed, so that a file cut
    short within a value would pass. An open quote swallows the mark, and we miss it.
    """

    def __init__(self, path: Path, columns: int, limit_bytes: int | None) -> None:
        self.mark = _END_MARK + "," * columns  # a field too many: never a row
        self._stream = open_text(path)
        self._left = limit_bytes  # what may still be read of the file; None: all of it
        self._last = b"\n"
        self._tail: bytes | None = None  # what is left of the mark; None before the end

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def read(self, size: int) -> bytes:
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
            if size == 0:
                return b""
        if self._tail is None:
            data: bytes = self._stream.read(size)
            if data:
                self._last = data[-1:]
                return data
            line = f"{self.mark}\n".encode()
            self._tail = line if self._last in (b"\n", b"\r") else b"\n" + line
        data, self._tail = self._tail[:size], self._tail[size:]
        return data

    def close(self) -> None:
        self._stream.close()


def _row_error(message: str, names: Sequence[str]) -> InputError:
    """What pyarrow says of a row, in our words."""
    match = re.search(r"Row #(\d+): (.*)", message, re.DOTALL)
    if match is None:
        return InputError(f"not CSV: {message}", remedy="check that it is a CSV file")
    row, reason = match.groups()
    column = re.match(r"In CSV column #(\d+)", message)
    if column is not None:
        reason = f"column {names[int(column[1])]!r}: {reason}"
        remedy = "correct the value; types are those of the first rows"
    else:
        remedy = "correct the row, or put values with commas in quotes"
    reason = reason.replace("CSV conversion error to", "not of type")
    return InputError(f"row {row} (the header is row 1): {_short(reason)}", remedy=remedy)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} …"
