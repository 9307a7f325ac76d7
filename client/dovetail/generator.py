"""The stream generator: inputs whose join behaves as an experiment wants it, from a seed.

A workload describes n streams of rows (`k` int64, `seq` int64, `v` float64 and, if asked for, a
text `pad`), joined on `k`, and delivers each stream block by block, so that it can be larger than
memory. The same seed gives the same rows, whatever they are written to.

S4 3.4 controls its streams by two factors, and so does `RangeWorkload`:

    tuple range 12, range join ratios (2, 1): in every 12 consecutive rows of a stream,
      6 rows have a key from a partition of class 0: 3 distinct keys, each twice   (ratio 2)
      6 rows have a key from a partition of class 1: 6 distinct keys, each once    (ratio 1)

The next range uses the same keys again. So with three streams a row of ratio r meets about r² rows
of its key in the first range, (2r)² in the second, and so on. The class of a partition is its id
modulo the number of classes: each class has an equal share of the partitions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_proto.errors import ConfigError
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.query import PARTITIONS_DEFAULT

BLOCK_ROWS = 1 << 16
"""Rows per generated block where the workload has no natural block: 1.5 MB without padding."""

Keys = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workload(ABC):
    """n streams of `rows` rows each; subclasses choose the keys."""

    streams: int = 3
    rows: int = 300_000
    pad_bytes: int = 0  # bytes of random text added to each row
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The streams' names: s0, s1, …"""
        return tuple(f"s{i}" for i in range(self.streams))

    @property
    def schema(self) -> pa.Schema:
        """What every stream looks like."""
        pad = [("pad", pa.string())] if self.pad_bytes else []
        return pa.schema([("k", pa.int64()), ("seq", pa.int64()), ("v", pa.float64()), *pad])

    @property
    def sql(self) -> str:
        """The join of all streams on `k`, with every stream's columns in the results."""
        columns = ["s0.k"]
        for name in self.names:
            columns += [f"{name}.{c} AS {name}_{c}" for c in self.schema.names if c != "k"]
        rest = " ".join(f"JOIN {name} ON {name}.k = s0.k" for name in self.names[1:])
        return f"SELECT {', '.join(columns)}\nFROM s0 {rest}\n"

    def blocks(self, stream: int) -> Iterator[pa.RecordBatch]:
        """The rows of one stream in order, in blocks that depend on the workload alone."""
        done = 0
        for block, keys in enumerate(self._keys(stream)):
            kept = keys[: self.rows - done]
            rng = np.random.default_rng([self.seed, stream, block, 1])
            columns = [
                pa.array(kept),
                pa.array(np.arange(done, done + kept.size)),
                pa.array(rng.random(kept.size)),
            ]
            if self.pad_bytes:
                columns.append(_random_text(rng, kept.size, self.pad_bytes))
            yield pa.record_batch(columns, schema=self.schema)
            done += kept.size
            if done >= self.rows:
                return

    def reader(self, stream: int) -> pa.RecordBatchReader:
        """One stream as something that Arrow's writers and DuckDB read."""
        return pa.RecordBatchReader.from_batches(self.schema, self.blocks(stream))

    def table(self, stream: int) -> pa.Table:
        """One stream as a whole, in one chunk; for workloads that fit in memory."""
        return self.reader(stream).read_all().combine_chunks()

    @abstractmethod
    def _keys(self, stream: int) -> Iterator[Keys]:
        """Blocks of keys, without end or with at least `rows` keys in all."""


@dataclass(frozen=True, slots=True)
class RangeWorkload(Workload):
    """S4's generator: a tuple range, and a range join ratio for each class of partitions."""

    tuple_range: int = 30_000
    join_ratios: tuple[int, ...] = (1,)
    partitions: int = PARTITIONS_DEFAULT

    def __post_init__(self) -> None:
        if self.tuple_range < 1 or min(self.join_ratios, default=0) < 1:
            raise ConfigError(
                f"tuple range {self.tuple_range} with join ratios {self.join_ratios}",
                remedy="both must be 1 or more",
            )
        if len(self.join_ratios) > self.partitions:
            raise ConfigError(
                f"{len(self.join_ratios)} join ratios for {self.partitions} partitions",
                remedy="give at most one ratio per partition",
            )

    def keys_of_classes(self) -> list[Keys]:
        """The distinct keys of each class, the smallest that its partitions hold."""
        classes = len(self.join_ratios)
        wanted = [
            -(-len(rows) // ratio)
            for rows, ratio in zip(self._rows_of_classes(), self.join_ratios, strict=True)
        ]
        # A class holds about 1/classes of all integers; look further until all have enough.
        horizon = int(max(wanted) * classes * 1.2) + 64 * classes
        while True:
            candidates = np.arange(horizon, dtype=np.int64)
            hashes = canonical_keys([pa.array(candidates)], [pa.int64()]).hashes
            owner = partition_ids(hashes, self.partitions) % classes
            found = [candidates[owner == c] for c in range(classes)]
            if all(keys.size >= n for keys, n in zip(found, wanted, strict=True)):
                return [keys[:n] for keys, n in zip(found, wanted, strict=True)]
            horizon *= 2

    def _rows_of_classes(self) -> list[range]:
        bounds = np.linspace(0, self.tuple_range, len(self.join_ratios) + 1).astype(int)
        return [range(a, b) for a, b in pairwise(bounds)]

    def _keys(self, stream: int) -> Iterator[Keys]:
        parts = [
            np.resize(keys, len(rows))
            for keys, rows in zip(self.keys_of_classes(), self._rows_of_classes(), strict=True)
        ]
        one_range = np.concatenate(parts)
        block = 0
        while True:
            yield np.random.default_rng([self.seed, stream, block]).permutation(one_range)
            block += 1


@dataclass(frozen=True, slots=True)
class UniformWorkload(Workload):
    """Keys drawn uniformly from 0 … distinct − 1."""

    distinct: int = 300_000

    def _keys(self, stream: int) -> Iterator[Keys]:
        block = 0
        while True:
            rng = np.random.default_rng([self.seed, stream, block])
            yield rng.integers(0, self.distinct, BLOCK_ROWS)
            block += 1


@dataclass(frozen=True, slots=True)
class HotKeyWorkload(Workload):
    """Uniform keys, but key 0 has half of the rows of stream 0 and `hot_elsewhere` of each other.

    The hot key alone produces rows / 2 × hot_elsewhere^(streams − 1) results.
    """

    distinct: int = 300_000
    hot_elsewhere: int = 4

    def _keys(self, stream: int) -> Iterator[Keys]:
        block = 0
        while True:
            rng = np.random.default_rng([self.seed, stream, block])
            keys = rng.integers(1, self.distinct, BLOCK_ROWS)
            if stream == 0:
                keys[rng.permutation(BLOCK_ROWS)[: BLOCK_ROWS // 2]] = 0
            else:
                first = block * BLOCK_ROWS
                hot = np.linspace(0, self.rows - 1, self.hot_elsewhere).astype(np.int64) - first
                keys[hot[(hot >= 0) & (hot < BLOCK_ROWS)]] = 0
            yield keys
            block += 1


def _random_text(rng: np.random.Generator, rows: int, width: int) -> pa.Array:
    letters = rng.integers(ord("a"), ord("z") + 1, rows * width, dtype=np.uint8)
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
