"""The rows of a CSV file, by pyarrow's streaming parser, with the number of a row that is wrong.

Three things pyarrow leaves to us. A row longer than a block: the file is read again from there in
larger blocks. A quote that is open at the end of the file, which pyarrow takes for closed, so that
a file cut short within a value would pass: we add a last line that is no row and that the open
quote swallows. The thread of its own in which it reads ahead: it goes on after an error, and would
end the whole process if it asked for the next block while the interpreter ends; so a pass over a
file is over when nobody can read from it any more.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from dovetail_processor.sources.text_files import ROW_BYTES_MAX, open_text
from dovetail_proto.errors import InputError

_END_MARK = "--end-of-file--"
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 4096

_LET_GO_S_MAX = 10.0
"""pyarrow lets a file go when the block that it reads has come; no disk is slower."""


def read_rows(
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
        rows = _Rows(_MarkedText(path, len(names), limit), names, types, columns, block)
        skip = done
        try:
            for whole in rows:
                batch = whole.slice(min(skip, whole.num_rows))
                skip -= whole.num_rows - batch.num_rows
                done += batch.num_rows
                if batch.num_rows:
                    yield batch
            if not rows.complete:
                raise _open_quote(done + 1)
            return
        except pa.ArrowInvalid as e:
            if "straddling" not in str(e):
                raise _row_error(str(e), names) from None  # it may quote megabytes
            if block >= ROW_BYTES_MAX:
                raise InputError(
                    f"row {done + 2} or one soon after it is longer than {ROW_BYTES_MAX} bytes",
                    remedy="look there for a quote that is not closed",
                ) from e
            block *= 4
        finally:
            rows.close()


def conversion(
    types: dict[str, pa.DataType], columns: Sequence[str] | None
) -> pa_csv.ConvertOptions:
    """How values are read: an empty one is null, whatever its type; nothing else is."""
    return pa_csv.ConvertOptions(
        null_values=[""], strings_can_be_null=True, column_types=types, include_columns=columns
    )


class _Rows:
    """One pass of pyarrow's reader over the file, which must end in the end mark."""

    def __init__(
        self,
        text: _MarkedText,
        names: Sequence[str],
        types: dict[str, pa.DataType],
        columns: Sequence[str],
        block: int,
    ) -> None:
        self._text = text
        self._marks_seen = 0
        self._let_go = threading.Event()  # set: no thread of pyarrow's can read the text any more
        self._let_go.set()
        self._reader: pa_csv.CSVStreamingReader | None = None
        self._options = {
            "read_options": pa_csv.ReadOptions(
                use_threads=False,  # else errors do not tell the row
                block_size=block,
                column_names=names,
                skip_rows_after_names=1,
            ),
            "parse_options": pa_csv.ParseOptions(
                newlines_in_values=True,
                ignore_empty_lines=len(names) > 1,  # in a single column they are nulls
                invalid_row_handler=self._on_invalid_row,
            ),
            "convert_options": conversion(types, columns),
        }

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._let_go.clear()
        self._reader = pa_csv.open_csv(self._watched_file(), **self._options)
        yield from self._reader

    def _watched_file(self) -> pa.PythonFile:
        """The text as pyarrow reads it, by an object that lives as long as somebody may."""
        face = _Face(self._text)
        weakref.finalize(face, self._let_go.set).atexit = False
        return pa.PythonFile(face, "r")

    @property
    def complete(self) -> bool:
        """After the last row: whether the end mark came."""
        return self._marks_seen == 1

    def close(self) -> None:
        """Returns when nobody reads the text any more."""
        self._text.end()
        self._reader = None
        self._let_go.wait(_LET_GO_S_MAX)
        self._text.close()

    def _on_invalid_row(self, row: pa_csv.InvalidRow) -> str:
        if row.text != self._text.mark:
            return "error"
        self._marks_seen += 1
        return "skip"


class _Face:
    """As much of a Python file as pyarrow needs; its life ends with the last that may read."""

    closed = False

    def __init__(self, text: _MarkedText) -> None:
        self.read = text.read

    def close(self) -> None:
        """Called by pyarrow; the text is closed by whoever opened it."""


class _MarkedText:
    """A file's text with the end mark."""

    def __init__(self, path: Path, columns: int, limit_bytes: int | None) -> None:
        self.mark = _END_MARK + "," * columns  # a field too many: never a row
        self._stream = open_text(path)
        self._head = b""  # the start of the text, without blank lines: these would count as rows
        while not self._head and (data := self._stream.read(_HEAD_BYTES)):
            self._head = data.removeprefix(_BOM).lstrip(b"\r\n")
        self._left = limit_bytes  # what may still be read; None: all of it
        self._last = b"\n"
        self._tail: bytes | None = None  # what is left of the mark; None before the end
        self._ended = False

    def end(self) -> None:
        """Nothing more is wanted: whoever reads on finds the end."""
        self._ended = True

    def read(self, size: int) -> bytes:
        """The next `size` bytes, less only at the end: each read is a block to pyarrow."""
        if self._ended:
            return b""
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
        parts = []
        while size > 0 and (part := self._part(size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, size: int) -> bytes:
        if self._head:
            part, self._head = self._head[:size], self._head[size:]
            self._last = part[-1:]
            return part
        if self._tail is None:
            data: bytes = self._stream.read(size)
            if data:
                self._last = data[-1:]
                return data
            line = f"{self.mark}\n".encode()
            self._tail = line if self._last in (b"\n", b"\r") else b"\n" + line
        part, self._tail = self._tail[:size], self._tail[size:]
        return part

    def close(self) -> None:
        self._stream.close()


def _row_error(message: str, names: Sequence[str]) -> InputError:
    """What pyarrow says of a row, in our words."""
    match = re.search(r"Row #(\d+): (.*)", message, re.DOTALL)
    if match is None:
        return InputError(f"not CSV: {message}", remedy="check that it is a CSV file")
    row, reason = match.groups()
    if _END_MARK in reason:
        return _open_quote(int(row))
    column = re.match(r"In CSV column #(\d+)", message)
    if column is not None:
        reason = f"column {names[int(column[1])]!r}: {reason}"
        remedy = "correct the value; the first rows decide on types"
    else:
        remedy = "correct the row, or put values with commas in quotes"
    reason = reason.replace("CSV conversion error to", "not of type")
    return InputError(f"row {row} (the header is row 1): {_short(reason)}", remedy=remedy)


def _open_quote(row: int) -> InputError:
    return InputError(
        f"row {row} (the header is row 1) has a quote that is not closed",
        remedy="restore the rest of the file or close the quote",
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} …"
