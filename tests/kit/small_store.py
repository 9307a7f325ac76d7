"""A small spill store, push by push: two groups of two inputs, 40 rows each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.spill_format import SpillStore
from kit.spills import make_plan, write_group

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])
PLAN = make_plan([SCHEMA, SCHEMA], partitions=2)


def rows_of(group: int, count: int, seed: int) -> pa.Table:
    """Rows of one group in hash order."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 1000, 50 * count)
    hashes = canonical_keys([pa.array(keys)], [pa.int64()]).hashes
    mine = np.flatnonzero(partition_ids(hashes, 2) == group)[:count]
    mine = mine[np.argsort(hashes[mine], kind="stable")]
    text = pa.array([f"{seed}-{i}" for i in range(count)])
    return pa.Table.from_arrays([pa.array(keys[mine]), text], schema=SCHEMA)


def push_both_groups(store: SpillStore, generation: int) -> None:
    """Push both groups."""
    writer = store.begin_push()
    for group in (0, 1):
        tables = [rows_of(group, 40, 10 * generation + 2 * group + i) for i in (0, 1)]
        write_group(writer, group, generation, tables)
    writer.commit()


def content(store: SpillStore) -> list[list[Any]]:
    """All rows by push, every byte checked."""
    found = []
    for manifest in store.pushes():
        rows = []
        for index in (0, 1):
            file = store.open_input(manifest, index)
            assert file is not None
            file.check_all()
            rows += file.read(range(manifest.inputs[index].row_groups), ["k", "s"]).to_pylist()
            file.close()
        found.append(rows)
    return found
