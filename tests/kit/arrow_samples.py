"""A column of every Arrow type that a stream may have, with nulls and the edges of its range."""

from __future__ import annotations

import decimal
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

ROWS = 6
"""Rows of every sample."""


def plain_samples() -> dict[str, pa.Array]:
    """Types that pass a source unchanged, by the name of the type."""
    integers = [
        pa.array([0, -(2 ** (b - 1)), 2 ** (b - 1) - 1, None, 5, -1], f"int{b}")
        for b in (8, 16, 32, 64)
    ]
    unsigned = [pa.array([0, 1, 2**b - 1, None, 5, 7], f"uint{b}") for b in (8, 16, 32, 64)]
    reals = [0.0, -0.0, float("nan"), float("inf"), None, -1.5]
    floats = [pa.array(reals, t) for t in (pa.float16(), pa.float32(), pa.float64())]
    text = ["", "a", "seven b", "eight by", None, "é😀 and a text of more than twelve bytes"]
    texts = [pa.array(text, t) for t in (pa.string(), pa.large_string())]
    raw = [b"", b"\0", b"\xff\xfe", b"12345678", None, b"9 bytes.."]
    binaries = [pa.array(raw, t) for t in (pa.binary(), pa.large_binary())]
    fixed = pa.array([b"abc", b"\0\0\0", None, b"xyz", b"abc", b"\xff\xff\xff"], pa.binary(3))
    days = [0, 19000, None, -1, 1, 40000]
    moments = [0, 86_400, None, -86_400, 1_700_000_000, 1]
    dates = [pa.array(days, pa.int32()).cast(pa.date32())]
    times = [
        pa.array([0, 1, None, 86_399, 3600, 7], pa.int32()).cast(pa.time32("ms")),
        *(
            pa.array([0, 1, None, 86_399_999_999, 3600, 7], pa.int64()).cast(pa.time64(u))
            for u in ("us", "ns")
        ),
    ]
    stamps = [
        pa.array(moments, pa.int64()).cast(pa.timestamp(unit, zone))
        for unit in ("ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin")
    ]
    spans = [pa.array(moments, pa.int64()).cast(pa.duration(u)) for u in ("s", "ms", "us", "ns")]
    columns = [
        pa.nulls(ROWS),
        pa.array([True, False, None, True, True, False]),
        *integers, *unsigned, *floats, *texts, *binaries, fixed,
        *dates, *times, *stamps, *spans, *_decimals(), *_nested(),
    ]  # fmt: skip
    return {str(c.type): c for c in columns}


def _decimals() -> list[pa.Array]:
    values = [decimal.Decimal(v) if v else None for v in ("0", "1.25", "-7.50", "", "99.99", "-1")]
    return [
        pa.array(values, t)
        for t in (
            pa.decimal32(5, 2), pa.decimal64(15, 2), pa.decimal128(30, 2), pa.decimal256(60, 2)
        )
    ]  # fmt: skip


def _nested() -> list[pa.Array]:
    lists = [[1, 2], [], None, [None], [3], [4, 5, 6]]
    pairs = [[1, 2], None, [3, None], [5, 6], [7, 8], [9, 10]]
    deep = [[["a"], []], [], None, [None, ["b", None]], [["c"]], [[]]]
    structs = [
        {"a": 1, "b": ["x"]}, None, {"a": None, "b": None}, {"a": 2, "b": []},
        {"a": 3, "b": [None]}, {"a": 4, "b": ["y", "z"]},
    ]  # fmt: skip
    maps = [[("k", 1)], [], None, [("l", None), ("m", 2)], [("k", 3)], [("", 4)]]
    return [
        pa.array(lists, pa.list_(pa.int32())),
        pa.array(lists, pa.large_list(pa.int64())),
        pa.array(pairs, pa.list_(pa.int16(), 2)),
        pa.array(deep, pa.list_(pa.list_(pa.string()))),
        pa.array(structs, pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])),
        pa.array(maps, pa.map_(pa.string(), pa.int32())),
        pa.array([[s] if s else s for s in structs], pa.list_(pa.struct([("a", pa.int8())]))),
    ]


def odd_samples() -> dict[str, tuple[pa.Array, pa.Array]]:
    """Types that a source lays out anew: a column, and the column that is to come out."""
    text = pa.array(["a", "b", None, "a", "", "long enough not to fit into a view"])
    encoded = text.dictionary_encode()
    lists = pa.array([[1, 2], [], None, [None], [3], [4, 5, 6]], pa.list_(pa.int64()))
    dates = pa.array([1, 2, None, 1, 1, 2], pa.int32()).cast(pa.date32())
    uuids = pa.array([b"0123456789abcdef"] * ROWS, pa.binary(16))
    runs = pa.RunEndEncodedArray.from_arrays(
        pa.array([2, 3, ROWS], pa.int32()), pa.array(["x", None, "y"])
    )
    result = {
        "dictionary of text": (encoded, text),
        "dictionary of dates": (dates.dictionary_encode(), dates),
        "dictionary of lists": (
            pa.DictionaryArray.from_arrays(
                pa.array([0, 1, None, 0, 0, 1], pa.int8()), pa.array([["p"], ["q", None]])
            ),
            pa.array([["p"], ["q", None], None, ["p"], ["p"], ["q", None]]),
        ),
        "view of text": (text.cast(pa.string_view()), text),
        "view of binary": (text.cast(pa.binary()).cast(pa.binary_view()), text.cast(pa.binary())),
        "view of lists": (pa.array(lists.to_pylist(), pa.list_view(pa.int64())), lists),
        "large view of lists": (
            pa.array(lists.to_pylist(), pa.large_list_view(pa.int64())),
            lists.cast(pa.large_list(pa.int64())),
        ),
        "runs": (runs, pc.run_end_decode(runs)),
        "extension": (pa.ExtensionArray.from_storage(pa.uuid(), uuids), uuids),
    }
    for name, wrap in _WRAPPERS.items():
        result[f"{name} of dictionaries"] = (wrap(encoded), wrap(text))
        result[f"{name} of views"] = (wrap(text.cast(pa.string_view())), wrap(text))
    return result


def _in_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(
        pa.array([0, 2, 2, 3, 4, 6, 6], pa.int32()),
        values,
        mask=pa.array([False, True, False, False, False, False]),
    )


def _in_large_list(values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array([0, 2, 2, 3, 4, 6, 6], pa.int64()), values)


def _in_pairs(values: pa.Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(
        pa.concat_arrays([values, values]), 2, mask=pa.array([False] * 5 + [True])
    )


def _in_struct(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(
        [values, values], ["f", "g"], mask=pa.array([True] + [False] * 5)
    )


def _in_map(values: pa.Array) -> pa.Array:
    keys = pa.array(list("uvwxyz"))
    return pa.MapArray.from_arrays(pa.array([0, 2, 2, 3, 4, 6, 6], pa.int32()), keys, values)


_WRAPPERS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "list": _in_list,
    "large list": _in_large_list,
    "pairs": _in_pairs,
    "struct": _in_struct,
    "map": _in_map,
}
