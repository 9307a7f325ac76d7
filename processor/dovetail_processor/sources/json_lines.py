"""JSON lines: one object per line, UTF-8, gzip or not.

Columns and types are inferred over the first megabyte and then hold. A field that a row lacks is
null; a field that the first megabyte does not know, or a value of another type, ends the reading
with the number of its line, rather than being lost. Text that is throughout a date or a timestamp
becomes one, as in DuckDB, in columns but not inside lists and objects. Columns of which no value
is known are text; objects without fields are left out.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pa_json

from dovetail_processor.sources.bounds import Bounds
from dovetail_processor.sources.file_format import FileFormat, FileInfo
from dovetail_processor.sources.text_files import (
    BIG_INTEGER,
    INFERENCE_BYTES,
    ROW_BYTES_MAX,
    block_bytes,
    may_hold_big_integers,
    open_text,
)
from dovetail_proto.errors import InputError

_DATE = r"^\d{4}-\d{2}-\d{2}$"
_TIMESTAMP = r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?$"
_ZONED = r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:?\d{2})$"

_MOMENTS = {
    _DATE: pa.date32(),
    _TIMESTAMP: pa.timestamp("us"),
    _ZONED: pa.timestamp("us", "UTC"),
}

_BOM = b"\xef\xbb\xbf"

_REASON_CHARS_MAX = 300
"""pyarrow quotes values of the file, which may be of any length."""


class JsonLines(FileFormat):
    """See `FileFormat`."""

    name = "JSON lines"
    extensions = (".jsonl", ".ndjson", ".json")

    def inspect(self, path: Path) -> FileInfo:
        """Infer columns and types from the first rows."""
        first = next(_blocks(path, INFERENCE_BYTES), None)
        if first is None:
            raise InputError("has no rows", remedy="write one JSON object per line")
        if first.data.lstrip().startswith(b"["):
            raise InputError(
                "holds a JSON array, not JSON lines", remedy="convert it with `jq -c '.[]'`"
            )
        inferred = first.parse(lambda data: _parse(data, None))
        if not inferred.num_columns:
            raise InputError("the rows have no fields", remedy="write one JSON object per line")
        parsed = pa.schema(
            [(n, _parsed_type(first, n, inferred.column(n))) for n in inferred.column_names]
        )
        table = first.parse(lambda data: _parse(data, parsed))
        return FileInfo(pa.schema([(n, _moment(table.column(n))) for n in parsed.names]), None)

    def read(
        self, path: Path, schema: pa.Schema, columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        """Block by block; all columns are parsed, so that no field goes unseen."""
        parsed = pa.schema([(f.name, _written_type(f.type)) for f in schema])
        wanted = pa.schema([schema.field(name) for name in columns])
        for block in _blocks(path, block_bytes(bounds.bytes)):
            table = block.parse(lambda data: _parse(data, parsed).select(wanted.names).cast(wanted))
            yield from table.to_batches()

    def agree(self, schema: pa.Schema, other: pa.Schema) -> bool:
        """Always: rows may lack fields, and what does not fit shows when it is read."""
        return True


def _parse(data: bytes, schema: pa.Schema | None) -> pa.Table:
    return pa_json.read_json(
        pa.BufferReader(data),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "error",
        ),
    )


def _parsed_type(block: _Block, name: str, column: pa.ChunkedArray) -> pa.DataType:
    """What to parse a column as, given what pyarrow inferred."""
    if pa.types.is_floating(column.type) and may_hold_big_integers(column):
        rows = (json.loads(line) for line in block.data.splitlines() if line.strip())
        if all(isinstance(row.get(name), int | None) for row in rows if row is not None):
            return BIG_INTEGER
    return _without_guesses(column.type)


def _without_guesses(t: pa.DataType) -> pa.DataType:
    """`t` with text in place of timestamps, which pyarrow sees too easily, and of nulls."""
    if pa.types.is_null(t) or pa.types.is_timestamp(t):
        return pa.string()
    if pa.types.is_list(t):
        return pa.list_(_without_guesses(t.value_type))
    if pa.types.is_struct(t):
        return pa.struct([(f.name, _without_guesses(f.type)) for f in t])
    return t


def _moment(column: pa.ChunkedArray) -> pa.DataType:
    """Date or timestamp if the column's text is one throughout, else its own type."""
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return column.type
    for pattern, moment in _MOMENTS.items():
        if pc.all(pc.match_substring_regex(column, pattern)).as_py():
            with contextlib.suppress(pa.ArrowInvalid):  # such as month 13
                column.cast(moment)
                return moment
    return column.type


def _written_type(t: pa.DataType) -> pa.DataType:
    """What values of a column of type `t` look like in the file."""
    return pa.string() if t in _MOMENTS.values() else t


@dataclass(frozen=True, slots=True)
class _Block:
    """Some whole lines of a file, not all of them blank."""

    data: bytes
    first_line: int  # its number in the file, from 1

    def parse(self, parse: Callable[[bytes], pa.Table]) -> pa.Table:
        """What `parse` makes of the lines; InputError naming the first line that it refuses."""
        try:
            return _parse_all(self.data, parse)
        except pa.ArrowException:
            raise self._first_error(parse) from None

    def _first_error(self, parse: Callable[[bytes], pa.Table]) -> InputError:
        lines = self.data.splitlines(keepends=True)
        good, bad = 0, len(lines)  # how many lines pass, how many do not
        reason = ""
        while good + 1 < bad or not reason:
            middle = (good + bad + 1) // 2 if reason else bad
            try:
                _parse_all(b"".join(lines[:middle]), parse)
                good = middle
            except pa.ArrowException as e:
                bad, reason = middle, str(e)
        return InputError(
            f"row {self.first_line + bad - 1}: {_in_words(reason)[:_REASON_CHARS_MAX]}",
            remedy="correct the line; fields and types are those of the first rows",
        )


def _parse_all(data: bytes, parse: Callable[[bytes], pa.Table]) -> pa.Table:
    """Parse valid lines, one row from each that is not blank."""
    if data.isspace():
        return pa.table({})
    table = parse(data)
    table.validate(full=True)  # pyarrow lets text through that is not UTF-8
    if table.num_rows != data.count(b"\n") and table.num_rows != sum(
        not line.isspace() for line in data.splitlines(keepends=True)
    ):
        raise pa.ArrowInvalid("a line has to hold exactly one JSON object")
    return table


def _in_words(message: str) -> str:
    """What pyarrow says of a line, without the row that it counts within the block."""
    if "UTF8" in message:
        return "text that is not UTF-8"
    if "unexpected field" in message:
        return "unexpected field, one that the first rows do not have"
    message = re.sub(r"^JSON parse error: | in row \d+$", "", message)
    return re.sub(r"Column\(/?(.*?)\)", r"field '\1'", message)


def _blocks(path: Path, size: int) -> Iterator[_Block]:
    """The lines of the file in blocks of about `size` bytes."""
    line, rest = 1, b""
    with open_text(path) as stream:
        while data := stream.read(size):
            rest = rest.removeprefix(_BOM) + data if line == 1 else rest + data
            end = rest.rfind(b"\n") + 1
            if end == 0 and len(rest) > ROW_BYTES_MAX:
                raise InputError(
                    f"row {line} is longer than {ROW_BYTES_MAX} bytes",
                    remedy="write one JSON object per line",
                )
            block, rest = rest[:end], rest[end:]
            if block and not block.isspace():
                yield _Block(block, line)
            line += block.count(b"\n")
    if rest and not rest.isspace():
        yield _Block(rest, line)
