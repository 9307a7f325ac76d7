"""The workloads that the benchmarks and experiments speak of, by name."""

from __future__ import annotations

from dovetail.generator import RangeWorkload, UniformWorkload


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
