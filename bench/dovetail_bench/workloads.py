"""The workloads that the benchmarks and experiments speak of, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.generator import BLOCK_ROWS, RangeWorkload, UniformWorkload

TEXT_BYTES_MIN, TEXT_BYTES_MAX = 10, 60
HOT_SHARE = 100
"""One in so many keys of W3 is hot: half of the larger stream's rows are on these."""


def w1(scale: float = 1.0, *, seed: int = 0) -> RangeWorkload:
    """Many results: 300 000 rows a stream, each of 30 000 keys once per range; 30 M results.

    `scale` shrinks rows and range alike, so results shrink in proportion.
    """
    return RangeWorkload(
        rows=int(300_000 * scale), tuple_range=int(30_000 * scale), join_ratios=(1,), seed=seed
    )


def w2(scale: float = 1.0, *, seed: int = 0) -> UniformWorkload:
    """Many tuples: 3 M rows a stream, keys uniform over 3 M; about 3 M results."""
    return UniformWorkload(rows=int(3_000_000 * scale), distinct=int(3_000_000 * scale), seed=seed)


def mixed_ratios(scale: float = 1.0, *, seed: int = 0) -> RangeWorkload:
    """S4 Fig. 11's partitions: a third each with join ratio 4, 2 and 1."""
    return RangeWorkload(
        rows=int(300_000 * scale),
        tuple_range=int(30_000 * scale),
        join_ratios=(4, 2, 1),
        seed=seed,
    )


def w3(scale: float = 1.0, *, seed: int = 0) -> TextWorkload:
    """Rows with text, a large stream against a small one that a filter cuts; about 2 M results."""
    return TextWorkload(int(9_000_000 * scale), int(600_000 * scale), seed)


@dataclass(frozen=True, slots=True)
class TextWorkload:
    """A large stream (`k`, two numbers, three texts) and a small one (`k` unique, three, three).

    Half of the large one's rows are on one in a hundred of the keys; a filter on the small one
    keeps 2/9 of it.
    """

    large_rows: int
    small_rows: int
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        """The streams' names."""
        return ("large", "small")

    @property
    def sql(self) -> str:
        """The join with every column of both."""
        large = ", ".join(f"l.{c}" for c in self._schema(0).names)
        small = ", ".join(f"s.{c} AS s_{c}" for c in self._schema(1).names if c != "k")
        return f"SELECT {large}, {small}\nFROM large l JOIN small s ON l.k = s.k\nWHERE s.n2 < 2\n"

    def reader(self, stream: int) -> pa.RecordBatchReader:
        """One stream as something that Arrow's writers read."""
        return pa.RecordBatchReader.from_batches(self._schema(stream), self._blocks(stream))

    def _schema(self, stream: int) -> pa.Schema:
        numbers = [("n0", pa.int64()), ("n1", pa.float64())]
        numbers += [("n2", pa.int64())] if stream == 1 else []
        return pa.schema([("k", pa.int64()), *numbers, *((f"t{i}", pa.string()) for i in range(3))])

    def _blocks(self, stream: int) -> Iterator[pa.RecordBatch]:
        total = self.large_rows if stream == 0 else self.small_rows
        unique = np.random.default_rng([self.seed, 2]).permutation(self.small_rows)
        for first in range(0, total, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, total - first)
            rng = np.random.default_rng([self.seed, stream, first])
            keys = unique[first : first + rows]
            if stream == 0:
                hot = rng.random(rows) < 0.5
                most = np.where(hot, max(1, self.small_rows // HOT_SHARE), self.small_rows)
                keys = rng.integers(0, most)
            numbers = [pa.array(rng.integers(0, 1 << 40, rows)), pa.array(rng.random(rows))]
            numbers += [pa.array(rng.integers(0, 9, rows))] if stream == 1 else []
            texts = [_text(rng, rows) for _ in range(3)]
            yield pa.record_batch([pa.array(keys), *numbers, *texts], schema=self._schema(stream))


def _text(rng: np.random.Generator, rows: int) -> pa.Array:
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(TEXT_BYTES_MIN, TEXT_BYTES_MAX + 1, rows), out=offsets[1:])
    letters = rng.integers(ord("a"), ord("z") + 1, int(offsets[-1]), dtype=np.uint8)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
