"""How the work is cut: slices, bins and bounded batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail_pipeline.cleanup import OpenFiles, delta_terms, open_catalog
from dovetail_pipeline.cleanup.bins import Segment, pack_bins
from dovetail_pipeline.cleanup.combinations import owed_batches
from dovetail_pipeline.cleanup.reading import SliceReader
from dovetail_pipeline.cleanup.slices import Slice, slice_from_json
from dovetail_pipeline.cleanup.widths import fixed_width, value_widths
from kit.spills import make_plan, owed_results, spill

MEMORY_BYTES = 64 << 20


def test_bins_are_even_and_a_heavy_key_is_shared():
    """Within a fifth of the share; the heavy key is in several bins, by rows."""
    segments = [Segment(i * 100, i * 100 + 50, 1e6, None) for i in range(100)]
    segments.append(Segment(5075, 5075, 1e8, (10_000, 30)))
    bins = pack_bins(segments, workers=2)
    assert len(bins) == 8
    share = sum(s.cost for s in segments) / 8
    assert all(abs(b.cost - share) < 0.2 * share for b in bins)
    by_rows = [s for b in bins for s in b.slices if s.rows is not None]
    assert [s.rows[1] for s in by_rows] == [(0, 30)] * len(by_rows)
    assert [s.rows[0][0] for s in by_rows[1:]] == [s.rows[0][1] for s in by_rows[:-1]]
    assert (by_rows[0].rows[0][0], by_rows[-1].rows[0][1]) == (0, 10_000)
    covered = [s for b in bins for s in b.slices if s.rows is None]
    for segment in segments[:-1]:
        assert sum(c.low <= segment.low and segment.high <= c.high for c in covered) == 1


@pytest.mark.parametrize("h", [0, 5, 9])
@pytest.mark.parametrize("alone", [False, True])
def test_cutting_a_slice_loses_no_hash(h: int, alone: bool):
    """The parts are disjoint, smaller and complete."""
    parts = Slice(0, 9).cut_at(h, alone=alone)
    assert len(parts) > 1
    assert [x for p in parts for x in range(p.low, p.high + 1)] == list(range(10))
    assert [slice_from_json(p.to_json()) for p in parts] == parts
    assert not alone or Slice(h, h) in parts


def test_cutting_rows_loses_no_combination():
    """Down to single rows, and then no further."""
    todo, found = [Slice(3, 3)], []
    while todo:
        part = todo.pop()
        smaller = part.cut_rows((2, 3, 1))
        todo += smaller
        if not smaller:
            found.append(part.rows)
    assert sorted(found) == [((a, a + 1), (b, b + 1), (0, 1)) for a in range(2) for b in range(3)]


def test_batches_keep_to_their_bytes(tmp_path: Path):
    """Also where a few values are much larger than the others."""
    rows = 60
    wide = ["x" * (20_000 if r % 20 == 0 else 10) for r in range(rows)]
    tables = [
        pa.table({"k": np.zeros(rows, int), "s": pa.array(wide)}),
        pa.table({"k": np.zeros(rows, int), "l": pa.array([[1] * (r % 7) for r in range(rows)])}),
    ]
    plan = make_plan([t.schema for t in tables])
    spilled = spill(tmp_path / "s", plan, tables, [np.arange(rows) % 3] * 2)
    catalog = open_catalog(spilled.store)
    bound = 100_000
    with OpenFiles(catalog, MEMORY_BYTES) as files:
        reader = SliceReader(catalog, files, [["k", "s"], ["k", "l"]])
        found = reader.read(Slice(0, 2**64 - 1), 1 << 30)
    batches = list(owed_batches(plan, found, delta_terms(2), bound, Counter()))
    assert max(b.nbytes for b in batches) < 1.2 * bound
    assert sum(b.num_rows for b in batches) == len(owed_results(spilled))


def test_widths_of_values_add_up_to_the_size_of_a_column():
    """For every kind of column, nested ones too."""
    columns = [
        pa.array([1, 2], pa.int16()),
        pa.array([True, False]),
        pa.array(["a", "", "abc"]),
        pa.array([b"xx"], pa.large_binary()),
        pa.array(["some text that is long"], pa.string_view()),
        pa.array([[1, 2, 3], []], pa.list_(pa.int64())),
        pa.array([[["a"], ["b", "cc"]], [[]]]),
        pa.array([{"x": "abc", "y": 1.0}]),
        pa.array([[("k", 1), ("kk", 2)]], pa.map_(pa.string(), pa.int8())),
        pa.array([["ab", "c"]], pa.list_(pa.string(), 2)),
        pa.array([1, 2], pa.decimal256(50, 0)),
        pa.nulls(3),
    ]
    for column in columns:
        widths = value_widths(column)
        assert widths.size == len(column)
        assert abs(int(widths.sum()) - column.nbytes) <= 24
        if fixed_width(column.type) is not None:
            assert set(widths.tolist()) == {fixed_width(column.type)}
