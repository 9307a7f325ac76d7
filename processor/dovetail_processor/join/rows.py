"""Between Arrow and rows in pages: `Encoder` writes a batch's columns, `decode` reads them back.

Both work column by column over many rows at once; only nested columns go through Arrow calls.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.join.kernels import columns as kernels
from dovetail_processor.join.layout import Column, Kind, Placement, RowLayout
from dovetail_processor.join.nested import NestedStore
from dovetail_processor.join.slab import Slab
from dovetail_proto.columns import bytes_view, fixed_view, validity, word_view
from dovetail_proto.errors import InputError

_ALL_VALID = np.zeros(0, np.bool_)
_NO_TEXT = np.zeros(0, np.uint32)


class Encoder:
    """The columns of one batch, ready to be copied into rows wherever those get their room."""

    def __init__(self, layout: RowLayout, batch: pa.RecordBatch, order: NDArray[np.int32]) -> None:
        """`order`: the positions of the rows that may be copied."""
        check_nulls(layout, batch)
        self._layout = layout
        self._valid = [_valid_of(c, batch.column(k)) for k, c in enumerate(layout.columns)]
        self._values = [_values_of(c, batch.column(k)) for k, c in enumerate(layout.columns)]
        words = [k for k, c in enumerate(layout.columns) if c.kind is Kind.WORD]
        self._word_ats = np.array([layout.columns[k].at for k in words], np.int64)
        self._word_values = np.array([self._values[k].ctypes.data for k in words], np.int64)
        self.with_nulls = [
            c.field.name
            for c, v in zip(layout.columns, self._valid, strict=True)
            if v.size and c.valid_word
        ]
        """Columns in which this batch holds nulls; a key's never get into a row."""
        self.heap_need = _NO_TEXT
        """Words of text of each row, by position; empty if the layout has no text."""
        if layout.has_text:
            self.heap_need = np.zeros(batch.num_rows, np.uint32)
            for column, values, valid in zip(
                layout.columns, self._values, self._valid, strict=True
            ):
                if column.kind is Kind.TEXT:
                    kernels.add_heap_need(self.heap_need, values[0], valid, order)

    def scatter(self, slab: Slab, place: Placement, first: int, end: int) -> None:
        """Copy rows first … end − 1 (in group order) to their addresses; nested columns aside."""
        rows_at, heap_at, order = place.rows_at, place.heap_at, place.order
        for word in {c.valid_word for c in self._layout.columns} - {0}:
            kernels.fill_4(slab.words, rows_at, word, 0xFFFFFFFF, first, end)
        kernels.scatter_words(
            slab.arena, rows_at, self._word_ats, self._word_values, order, first, end
        )
        for column, values, valid in zip(
            self._layout.columns, self._values, self._valid, strict=True
        ):
            if column.kind is Kind.HALF:
                kernels.scatter_4(slab.words, rows_at, column.at, values, order, first, end)
            elif column.kind in (Kind.BYTES, Kind.BIT):
                kernels.scatter_bytes(
                    slab.raw, rows_at, column.at, column.width, values, order, first, end
                )
            elif column.kind is Kind.TEXT:
                kernels.scatter_text(
                    slab.arena, rows_at, column.at, heap_at, values[0],
                    values[1], valid, order, first, end,
                )  # fmt: skip
            if column.valid_word and valid.size:
                kernels.scatter_valid(
                    slab.words, rows_at, column.valid_word, column.valid_bit, valid, order, first,
                    end,
                )  # fmt: skip


def check_nulls(layout: RowLayout, batch: pa.RecordBatch) -> None:
    """InputError if a column holds nulls although it is declared to have none."""
    for k, column in enumerate(layout.columns):
        if column.kind in (Kind.NULL, Kind.NESTED) or column.field.nullable:
            continue
        if batch.column(k).null_count:
            raise InputError(
                f"column {column.field.name!r} is declared not null but holds nulls",
                remedy="correct the file's schema",
            )


def pick(
    batch: pa.RecordBatch, columns: Sequence[Column], positions: NDArray[np.uint32]
) -> list[pa.Array]:
    """The values of `columns` at some positions of a batch, which must be within it."""
    import pyarrow.compute as pc

    wanted = batch.select([c.field.name for c in columns])
    taken = pc.take(wanted, pa.array(positions), boundscheck=False)  # checking takes as long
    return list(taken.columns)


def decode(
    slab: Slab,
    columns: Sequence[Column],
    rows_at: NDArray[np.uint32],
    nested: NestedStore | None,
    with_nulls: Set[str],
) -> list[pa.Array]:
    """The values of `columns` in the rows at `rows_at`, each an array of its column's type.

    Columns that are not in `with_nulls` have held no null so far: their validity is not looked at.
    """
    rows = rows_at.size
    words = [c for c in columns if c.kind is Kind.WORD]
    data = {c.field.name: pa.allocate_buffer(8 * rows) for c in words}
    addresses = np.array([data[c.field.name].address for c in words], np.int64)
    ats = np.array([c.at for c in words], np.int64)
    kernels.gather_words(slab.arena, rows_at, ats, addresses)
    arrays = []
    for column in columns:
        if column.kind is Kind.WORD:
            valid, nulls = _decode_valid(slab, column, rows_at, with_nulls)
            buffers = [valid, data[column.field.name]]
            arrays.append(pa.Array.from_buffers(column.field.type, rows, buffers, nulls))
        else:
            arrays.append(_decode_other(slab, column, rows_at, nested, with_nulls))
    return arrays


def _decode_other(
    slab: Slab,
    column: Column,
    rows_at: NDArray[np.uint32],
    nested: NestedStore | None,
    with_nulls: Set[str],
) -> pa.Array:
    rows = rows_at.size
    kind = column.kind
    if kind is Kind.NULL:
        return pa.nulls(rows, column.field.type)
    if kind is Kind.NESTED:
        assert nested is not None
        return nested.take(column, slab, rows_at)
    valid, nulls = _decode_valid(slab, column, rows_at, with_nulls)
    if kind is Kind.TEXT:
        return _decode_text(slab, column, rows_at, valid, nulls)
    if kind is Kind.HALF:
        data: NDArray[Any] = np.empty(rows, np.uint32)
        kernels.gather_4(slab.words, rows_at, column.at, data)
    else:
        data = np.empty(rows * column.width, np.uint8)
        kernels.gather_bytes(slab.raw, rows_at, column.at, column.width, data)
        if kind is Kind.BIT:
            data = np.packbits(data, bitorder="little")
    return pa.Array.from_buffers(column.field.type, rows, [valid, pa.py_buffer(data)], nulls)


def text_bytes(slab: Slab, column: Column, rows_at: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Length of each row's value in a text column."""
    lengths = np.empty(rows_at.size, np.uint32)
    kernels.gather_4(slab.words, rows_at, column.at + 1, lengths)
    return lengths


def value_bytes(
    column: Column, array: pa.Array, positions: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Bytes of some values of a text column; of nested values the mean, at least 1."""
    if column.kind is Kind.TEXT:
        offsets: NDArray[np.int32] = _values_of(column, array)[0]
        return (offsets[positions + 1] - offsets[positions]).astype(np.int64)
    return np.full(positions.size, 1 + int(array.nbytes) // max(1, len(array)), np.int64)


def _decode_valid(
    slab: Slab, column: Column, rows_at: NDArray[np.uint32], with_nulls: Set[str]
) -> tuple[pa.Buffer | None, int]:
    if column.field.name not in with_nulls:
        return None, 0
    bitmap = np.zeros((rows_at.size + 7) // 8, np.uint8)
    nulls = kernels.gather_valid(slab.words, rows_at, column.valid_word, column.valid_bit, bitmap)
    return (pa.py_buffer(bitmap), nulls) if nulls else (None, 0)


def _decode_text(
    slab: Slab, column: Column, rows_at: NDArray[np.uint32], valid: pa.Buffer | None, nulls: int
) -> pa.Array:
    offsets = np.zeros(rows_at.size + 1, np.int32)
    np.cumsum(text_bytes(slab, column, rows_at), out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    kernels.gather_text(slab.arena, rows_at, column.at, offsets, data)
    plain = _plain_text(column.field.type)
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.Array.from_buffers(plain, rows_at.size, buffers, nulls)
    return array if plain == column.field.type else array.cast(column.field.type)


def _valid_of(column: Column, array: pa.Array) -> NDArray[np.bool_]:
    mask = validity(array)
    if mask is None or column.kind in (Kind.NULL, Kind.NESTED):
        return _ALL_VALID
    # Rows with a null in a key column are dropped before they get here: they have no bit.
    return mask if column.valid_word else _ALL_VALID


def _values_of(column: Column, array: pa.Array) -> Any:
    """What the scatter kernel of the column's kind takes."""
    if column.kind is Kind.WORD:
        return word_view(array, "u8")
    if column.kind is Kind.HALF:
        return word_view(array, "u4")
    if column.kind is Kind.BYTES:
        return fixed_view(array).reshape(-1)
    if column.kind is Kind.BIT:
        return fixed_view(array.cast(pa.uint8())).reshape(-1)
    if column.kind is Kind.TEXT:
        plain = _plain_text(column.field.type)
        return bytes_view(array if array.type == plain else array.cast(plain))
    return None


def _plain_text(t: pa.DataType) -> pa.DataType:
    is_binary = pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t)
    return pa.binary() if is_binary else pa.string()
