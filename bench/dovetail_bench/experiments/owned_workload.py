"""Streams in which a machine's partitions have a character of their own.

`RangeWorkload` deals its classes of partitions round-robin. Here a class is a *range* of partition
ids, as groups are first dealt to processors, so that "the partitions assigned to machine 1" of S4
is class 0 whatever moves later. A class has a join ratio, and its share of the input may change
from phase to phase:

    shares (1, 1), loads ((50, (10, 1)), (100, (1, 10))): of the first 50 rows of a stream
      10 in 11 have a key of class 0, of the next 100 one in 11, and so on from the beginning

Within a class, keys come as S4 3.4 has it: in each of its ranges every key as often as its ratio.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.generator import Keys, Workload
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.query import PARTITIONS_DEFAULT


@dataclass(frozen=True, slots=True)
class OwnedWorkload(Workload):
    """See the module. `shares` cut the partition ids; `loads` are (rows, weight per class)."""

    tuple_range: int = 30_000
    shares: tuple[float, ...] = (1.0,)
    join_ratios: tuple[int, ...] = (1,)
    loads: tuple[tuple[int, tuple[float, ...]], ...] = ()  # none: in proportion to the shares
    partitions: int = PARTITIONS_DEFAULT

    def class_of(self, groups: Keys) -> Keys:
        """The class of each partition id."""
        total = sum(self.shares)
        bounds = np.cumsum([round(self.partitions * s / total) for s in self.shares])[:-1]
        return np.searchsorted(bounds, groups, side="right")

    def _keys(self, stream: int) -> Iterator[Keys]:
        classes = self._keys_of_classes()
        rngs = [np.random.default_rng([self.seed, stream, c]) for c in range(len(classes))]
        order = np.random.default_rng([self.seed, stream, len(classes)])
        waiting = [np.empty(0, np.int64) for _ in classes]
        loads = self.loads or ((self.tuple_range, self.shares),)
        while True:
            for rows, weights in loads:
                bounds = np.linspace(0, 1, rows, endpoint=False)
                cuts = np.cumsum(weights) / sum(weights)
                chosen = order.permutation(np.searchsorted(cuts, bounds, side="right"))
                keys = np.empty(rows, np.int64)
                for c, one_range in enumerate(classes):
                    here = np.flatnonzero(chosen == c)
                    while waiting[c].size < here.size:
                        more = rngs[c].permutation(one_range)
                        waiting[c] = np.concatenate([waiting[c], more])
                    keys[here], waiting[c] = np.split(waiting[c], [here.size])
                yield keys

    def _keys_of_classes(self) -> list[Keys]:
        """One range of each class, in order of keys: the smallest that its partitions hold."""
        total = sum(self.shares)
        rows = [round(self.tuple_range * s / total) for s in self.shares]
        wanted = [-(-n // ratio) for n, ratio in zip(rows, self.join_ratios, strict=True)]
        # Keys hash evenly: twice what an even hash needs is enough, and checked.
        horizon = 2 * self.tuple_range + 64 * self.partitions
        candidates = np.arange(horizon, dtype=np.int64)
        hashes = canonical_keys([pa.array(candidates)], [pa.int64()]).hashes
        owner = self.class_of(partition_ids(hashes, self.partitions).astype(np.int64))
        found = [candidates[owner == c][:n] for c, n in enumerate(wanted)]
        assert [keys.size for keys in found] == wanted, "the keys do not hash evenly"
        return [np.resize(keys, n) for keys, n in zip(found, rows, strict=True)]
