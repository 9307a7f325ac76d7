"""The distribution before any statistics exist (S4 3.2).

Join instances are everywhere, so groups are dealt to all processors by weight: by their memory
limits, unless the query says otherwise, so that all are as full while groups grow alike. Streams
are dealt out evenly; the splits of a stream's queries are where the stream is at home.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import ProcessorId, QueryName, SplitId, split_id


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
    query: QueryName, homes: Sequence[ProcessorId]
) -> dict[ProcessorId, tuple[SplitId, ...]]:
    """Which processor hosts which split: input i's where its stream is at home, `homes[i]`."""
    hosts: dict[ProcessorId, tuple[SplitId, ...]] = {}
    for i, host in enumerate(homes):
        hosts[host] = (*hosts.get(host, ()), split_id(query, i))
    return hosts


def next_home(taken: Iterable[ProcessorId], processors: Sequence[ProcessorId]) -> ProcessorId:
    """The home of a new stream: who has the fewest so far, by name among equals."""
    if not processors:
        raise ConfigError("a stream needs a processor as its home", remedy="start one")
    counts = Counter(taken)
    return min(processors, key=lambda p: (counts[p], p))
