"""What the text formats share: bytes of a file, unpacked if need be, and exact integer types."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

_GZIP_MAGIC = b"\x1f\x8b"

INFERENCE_BYTES = 1 << 20
"""How much of a file decides on its columns and their types."""

ROW_BYTES_MAX = 64 << 20
"""A row has to be held whole; a longer one is taken for damage, such as a quote left open."""

BIG_INTEGER = pa.decimal128(38, 0)
"""What integers beyond 64 bits are read as. As floating point they would be equal to others."""

_BIG_INTEGER_MIN, _BIG_INTEGER_END = 2.0**63, 1e38


def open_text(path: Path) -> pa.NativeFile:
    """The bytes of the file from its start, unpacked if it is a gzip file."""
    packed = is_packed(path)
    raw = pa.OSFile(str(path), "rb")
    return pa.CompressedInputStream(raw, "gzip") if packed else raw


def is_packed(path: Path) -> bool:
    """Whether it is a gzip file."""
    with path.open("rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


def block_bytes(batch_bytes: int) -> int:
    """How much text to parse at a time: a part of a batch, within what parsers are good at.

    pyarrow reads up to 32 blocks of CSV ahead: 2 to 8 MB.
    """
    return max(64 << 10, min(batch_bytes // 4, 256 << 10))


def may_hold_big_integers(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether these floating-point values may stand for integers that int64 does not hold."""
    import pyarrow.compute as pc

    known = values.drop_null()
    if len(known) == 0 or not pc.all(pc.equal(pc.floor(known), known)).as_py():
        return False
    return bool(_BIG_INTEGER_MIN <= pc.max(pc.abs(known)).as_py() < _BIG_INTEGER_END)
