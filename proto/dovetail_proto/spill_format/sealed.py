"""JSON files that know when they are damaged, and fields that are checked before they are used.

A sealed file is one JSON object on readable lines:

    {"kind": "manifest", "version": 4, "crc32": "8f3a09c1", "body": {…}}

`crc32` is the CRC-32 of `body` as JSON without spaces, keys sorted, ASCII only. So a file that was
cut short, altered or replaced by another kind is refused by name. A `Fields` is a body on its way
in: each field is taken with the type it must have, and none may be missing or left over.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dovetail_proto.errors import SpillError

FORMAT_VERSION = 4
"""Raised whenever a file of the spill store changes meaning; other versions are refused."""

PACK_LEVEL = 1
"""Of zlib: higher ones take several times as long for a tenth less."""

INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1
_HEX64 = re.compile(r"[0-9a-f]{16}")
_HEX32 = re.compile(r"[0-9a-f]{8}")


def seal(kind: str, body: Mapping[str, Any]) -> bytes:
    """The bytes of a sealed file; `body` holds nothing but JSON values."""
    head = {"kind": kind, "version": FORMAT_VERSION, "crc32": hex32(_crc(body))}
    return (json.dumps({**head, "body": body}, indent=None) + "\n").encode()


def unseal(kind: str, data: bytes, place: str) -> Fields:
    """The body of a sealed file read from `place`; SpillError if it is not whole and unaltered."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as e:
        refuse(place, f"is not JSON: {e}")
    if not isinstance(raw, dict) or raw.keys() != {"kind", "version", "crc32", "body"}:
        refuse(place, f"is not a sealed {kind}")
    if raw["kind"] != kind:
        refuse(place, f"is a {raw['kind']!r}, not a {kind!r}")
    if raw["version"] != FORMAT_VERSION:
        raise SpillError(
            f"{place}: has format version {raw['version']!r}, this Dovetail reads {FORMAT_VERSION}",
            remedy="use the Dovetail that wrote it",
        )
    if not isinstance(raw["body"], dict) or raw["crc32"] != hex32(_crc(raw["body"])):
        refuse(place, "does not match its own checksum")
    return Fields(raw["body"], place)


def refuse(place: str, why: str) -> NoReturn:
    """Raise the SpillError for damage in the file at `place`."""
    raise SpillError(
        f"{place}: {why}", remedy="restore this file from a copy; nothing was read from it"
    )


def hex64(value: int) -> str:
    """A uint64 as JSON can carry it without loss: 16 hexadecimal digits."""
    return f"{value:016x}"


def hex32(value: int) -> str:
    """A CRC-32 as 8 hexadecimal digits."""
    return f"{value:08x}"


def pack(values: NDArray[Any], dtype: str) -> str:
    """Unsigned integers as base64 of their little-endian bytes under zlib.

    SpillError if `dtype` cannot hold one. A list of JSON numbers takes a hundred times as long to
    read; what is said of ten thousand small groups is a fifth of its size under zlib.
    """
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= np.iinfo(dtype).max:
        raise SpillError(f"spill store: a number does not fit {dtype}")
    raw = values.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    return base64.b64encode(zlib.compress(raw, PACK_LEVEL)).decode()


def _crc(body: Mapping[str, Any]) -> int:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return zlib.crc32(text.encode())


class Fields:
    """A JSON object from outside. Take every field once, then `done()`."""

    def __init__(self, raw: Any, place: str) -> None:
        if not isinstance(raw, dict):
            refuse(place, f"an object was expected, not {_shown(raw)}")
        self._raw: dict[str, Any] = dict(raw)
        self.place = place

    def take(self, name: str) -> Any:
        """The field as JSON gave it."""
        if name not in self._raw:
            refuse(self.place, f"field {name!r} is missing")
        return self._raw.pop(name)

    def integer(self, name: str, low: int = 0, high: int = INT64_MAX) -> int:
        """An integer in low … high."""
        value = self.take(name)
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, f"an integer in {low} … {high}", value)
        return value

    def boolean(self, name: str) -> bool:
        """True or false."""
        value = self.take(name)
        if type(value) is not bool:
            self.refuse(name, "true or false", value)
        return value

    def text(self, name: str) -> str:
        """A string."""
        value = self.take(name)
        if type(value) is not str:
            self.refuse(name, "text", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """A string or null."""
        return self.take(name) if self._raw.get(name, 0) is None else self.text(name)

    def hex64(self, name: str) -> int:
        """A uint64 that `hex64` wrote."""
        return self._hex(name, _HEX64)

    def hex32(self, name: str) -> int:
        """A CRC-32 that `hex32` wrote."""
        return self._hex(name, _HEX32)

    def items(self, name: str) -> list[Any]:
        """A list of anything."""
        value = self.take(name)
        if type(value) is not list:
            self.refuse(name, "a list", value)
        return value

    def fields(self, name: str) -> Fields:
        """An object."""
        return Fields(self.take(name), f"{self.place}: {name}")

    def optional(self, name: str) -> Fields | None:
        """An object or null."""
        value = self.take(name)
        return None if value is None else Fields(value, f"{self.place}: {name}")

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self.items(name)
        for value in values:
            if type(value) is not str:
                self.refuse(name, "a list of text", value)
        return tuple(values)

    def ints(self, name: str, low: int = 0, high: int = INT64_MAX) -> NDArray[np.int64]:
        """A list of integers, each in low … high."""
        values = self.items(name)
        for value in values:
            if type(value) is not int or not low <= value <= high:
                self.refuse(name, f"integers in {low} … {high}", value)
        return np.array(values, np.int64)

    def int_pairs(self, name: str) -> list[tuple[int, int]]:
        """A list of pairs of integers."""
        values = self.items(name)
        for value in values:
            if not (isinstance(value, list) and [type(x) for x in value] == [int, int]):
                self.refuse(name, "pairs of integers", value)
        return [(a, b) for a, b in values]

    def packed_ints(
        self, name: str, dtype: str, size: int, low: int = 0, high: int = INT64_MAX
    ) -> NDArray[np.int64]:
        """`size` integers that `pack` wrote, each in low … high."""
        values = self.packed(name, dtype, size)
        wrong = np.flatnonzero((values < low) | (values > high))
        if wrong.size:
            self.refuse(name, f"integers in {low} … {high}", int(values[wrong[0]]))
        return values.astype(np.int64)

    def packed(self, name: str, dtype: str, size: int) -> NDArray[Any]:
        """An array of `size` values that `pack` wrote."""
        text = self.text(name)
        length = size * np.dtype(dtype).itemsize
        inflate = zlib.decompressobj()
        try:
            raw = inflate.decompress(base64.b64decode(text, validate=True), length + 1)
        except (ValueError, zlib.error):
            self.refuse(name, "base64 of bytes under zlib", text)
        if len(raw) != length or not inflate.eof:
            self.refuse(name, f"{size} values of {dtype}", f"{len(raw)} bytes or more")
        return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).astype(dtype)

    def done(self) -> None:
        """Refuse what was not taken: a field of another version must not be ignored."""
        if self._raw:
            refuse(self.place, f"unknown field {sorted(self._raw)[0]!r}")

    def refuse(self, name: str, expected: str, value: Any) -> NoReturn:
        """Raise the SpillError for a field that is not what was expected."""
        refuse(self.place, f"field {name!r} must be {expected}, not {_shown(value)}")

    def _hex(self, name: str, pattern: re.Pattern[str]) -> int:
        value = self.text(name)
        if not pattern.fullmatch(value):
            self.refuse(name, "hexadecimal digits of fixed length", value)
        return int(value, 16)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


Check = Callable[[bool, str], None]
"""`check(holds, what)`: refuse the file at hand unless a sentence about it holds."""


def checker(place: str) -> Check:
    """The `Check` for the file at `place`."""

    def check(holds: bool, what: str) -> None:
        if not holds:
            refuse(place, what)

    return check
