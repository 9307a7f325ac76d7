"""The distribution before any statistics exist (S4 3.2).

Join instances are everywhere, so groups are dealt to all processors, equally or by weight; light
operators (splits, unions) go round-robin.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import ProcessorId, QueryName, SplitId


def distribute(
    partitions: int, processors: Sequence[ProcessorId], weights: Sequence[float] | None = None
) -> list[ProcessorId]:
    """The owner of every group: contiguous ranges, by largest remainder of the weights.

    Equal without weights: the sizes then differ by at most one.
    """
    if not processors:
        raise ConfigError("a query needs at least one processor", remedy="start one")
    shares = list(weights) if weights is not None else [1.0] * len(processors)
    if len(shares) != len(processors):
        raise ConfigError(
            f"{len(shares)} weights for {len(processors)} processors", remedy="give one each"
        )
    if any(not 0 <= w < float("inf") for w in shares) or sum(shares) <= 0:
        raise ConfigError(f"weights {shares} must be finite, not negative and not all 0")
    exact = [partitions * w / sum(shares) for w in shares]
    counts = [int(e) for e in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: partitions - sum(counts)]:
        counts[i] += 1
    return [p for p, n in zip(processors, counts, strict=True) for _ in range(n)]


def place_splits(
    query: QueryName, inputs: int, processors: Sequence[ProcessorId]
) -> dict[ProcessorId, tuple[SplitId, ...]]:
    """Which processor hosts the split of which input: round-robin; hosts without one left out."""
    hosts: dict[ProcessorId, tuple[SplitId, ...]] = {}
    for i in range(inputs):
        host = processors[i % len(processors)]
        hosts[host] = (*hosts.get(host, ()), SplitId(f"{query}/{i}"))
    return hosts
