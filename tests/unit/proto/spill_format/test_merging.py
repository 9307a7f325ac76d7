"""Many small pushes become one: rows keep group and generation, at whatever step it is stopped."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail_proto.errors import SpillError
from dovetail_proto.partitioning import canonical_keys
from dovetail_proto.spill_format import LocalStorage, RunRecord, SpillStore
from dovetail_proto.spill_format.merging import (
    LEFT_AT_CLOSE,
    MERGED_AT,
    MERGED_BYTES_MAX,
    MERGED_MAX,
    choose,
)
from dovetail_proto.spill_format.writer import PushWriter
from kit.dying_storage import DyingStorage, Killed
from kit.small_store import PLAN, push_both_groups
from kit.spills import make_plan, write_group

PUSHES = 5


def held(store: SpillStore) -> Counter[str]:
    """All rows of a store with input, group and generation, every byte checked."""
    found: Counter[str] = Counter()
    for push in store.pushes():
        for i, entry in enumerate(push.inputs):
            file = store.open_input(push, i)
            if file is None or entry is None:
                continue
            file.check_all()
            names = [*store.plan.inputs[i].kept.names, "__group", "__generation"]
            rows = file.read(range(entry.row_groups), names)
            file.close()
            keys = [rows.column(k).combine_chunks() for k in store.plan.inputs[i].key]
            hashes = canonical_keys(keys, store.plan.key_types).hashes
            file.check_hashes(hashes, range(entry.row_groups))
            pairs = zip(rows["__group"].to_pylist(), rows["__generation"].to_pylist(), strict=True)
            said = dict(
                zip(
                    zip(push.group.tolist(), push.generation.tolist(), strict=True),
                    entry.group_rows.tolist(),
                    strict=True,
                )
            )
            assert Counter(pairs) == {k: n for k, n in said.items() if n}
            found.update(f"{i} {row!r}" for row in rows.to_pylist())
    return found


def filled(root: Path, pushes: int = PUSHES) -> SpillStore:
    """A store of some pushes."""
    store = SpillStore.create(str(root), PLAN)
    for generation in range(pushes):
        push_both_groups(store, generation)
    return store


def numbers(store: SpillStore) -> list[int]:
    """The pushes that exist."""
    return [p.push for p in store.pushes()]


@pytest.mark.parametrize("at_once_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("row_group_bytes", [1, 700, 1 << 20])
def test_merged_pushes_hold_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_group_bytes: int, at_once_bytes: int
) -> None:
    """In one file per input, in hash order, each row with its group and generation."""
    monkeypatch.setattr("dovetail_proto.spill_format.writer.ROW_GROUP_BYTES", row_group_bytes)
    monkeypatch.setattr("dovetail_proto.spill_format.merging.MERGED_AT_ONCE_BYTES", at_once_bytes)
    store = filled(tmp_path / "s")
    before = held(store)
    store.merge([1, 2, 4])
    assert numbers(store) == [3, 5, 6]
    assert held(store) == before
    store.merge([3, 6])
    assert numbers(store) == [5, 7]
    assert store.pushes()[1].replaces.tolist() == [1, 2, 3, 4, 6]
    assert sorted(p.name for p in (tmp_path / "s/pushes").iterdir()) == ["000005", "000007"]
    push_both_groups(store, PUSHES)
    assert numbers(store) == [5, 7, 8]
    store.close_run(RunRecord((0, 0), 0, 0))
    again = SpillStore.open(str(tmp_path / "s"))
    assert numbers(again) == [5, 7, 8]
    assert held(again) == held(store)


def test_a_crash_at_any_call_of_a_merge_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The store opens with the old pushes or with the merged one; a new one can be added."""
    before = held(filled(tmp_path / "whole"))
    seen = set()
    for calls in range(1000):
        root = tmp_path / str(calls)
        store = filled(root)
        store.merge([1, 2])
        store.storage = DyingStorage(str(root), calls)
        try:
            store.merge([3, 4, 6])
        except Killed:
            finished = False
        else:
            finished = True
        again = SpillStore.open(str(root))
        assert held(again) == before
        seen.add(tuple(numbers(again)))
        push_both_groups(again, PUSHES)
        again.merge(numbers(again)[-2:])
        assert len(SpillStore.open(str(root)).pushes()) == len(numbers(again))
        shutil.rmtree(root)
        if finished:
            break
    assert calls > 15
    assert seen == {(3, 4, 5, 6), (5, 7)}


def test_pushes_that_were_replaced_may_still_be_there(tmp_path: Path) -> None:
    """Their files cannot always be deleted; not even when what replaced them is replaced again."""

    class Keeping(LocalStorage):
        def remove(self, name: str) -> None:
            raise OSError(errno.EACCES, f"{name} stays")

    store = filled(tmp_path / "s")
    before = held(store)
    store.storage = Keeping(str(tmp_path / "s"))
    store.merge([1, 2])
    shutil.rmtree(tmp_path / "s/pushes/000001")
    store.merge([3, 6])
    shutil.rmtree(tmp_path / "s/pushes/000006")
    store.close_run(RunRecord((0, 0), 0, 0))
    again = SpillStore.open(str(tmp_path / "s"))
    assert numbers(again) == [4, 5, 7]
    assert held(again) == before


def test_a_merge_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    """For want of room, because a file is damaged, or because nobody waits for it."""
    store = filled(tmp_path / "s")
    before = held(store)

    class Full(LocalStorage):
        def scratch(self, name: str) -> str:
            raise OSError(errno.ENOSPC, "No space left on device")

    store.storage = Full(str(tmp_path / "s"))
    with pytest.raises(SpillError, match="No space left"):
        store.merge([1, 2])
    store.storage = LocalStorage(str(tmp_path / "s"))
    with pytest.raises(SpillError, match="given up"):
        store.merge([1, 2], lambda: True)
    path = tmp_path / "s/pushes/000002/input-01.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(SpillError, match=r"000002/input-01\.parquet"):
        store.merge([1, 2])
    path.write_bytes(whole)
    assert numbers(store) == [1, 2, 3, 4, 5]
    assert held(SpillStore.open(str(tmp_path / "s"))) == before
    assert not list(tmp_path.rglob("*.tmp"))
    store.merge([1, 2])
    assert held(SpillStore.open(str(tmp_path / "s"))) == before


def test_a_hot_key_and_an_input_without_rows_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hash through many row groups; a push may hold rows of some inputs only."""
    monkeypatch.setattr("dovetail_proto.spill_format.writer.ROW_GROUP_BYTES", 200)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    store = SpillStore.create(str(tmp_path / "s"), make_plan([schema] * 3, partitions=1))
    for generation in range(4):
        table = pa.table({"k": np.full(100, 7), "v": np.arange(100) + 1000 * generation})
        tables = [table, None, table if generation == 2 else None]
        writer = store.begin_push()
        write_group(writer, 0, generation, tables)
        writer.commit()
    before = held(store)
    store.merge([1, 2, 3, 4])
    assert held(store) == before
    assert [e is None for e in store.pushes()[0].inputs] == [False, True, False]


def test_a_merge_puts_little_in_order_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all that it holds of its files, which would be there three times."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    plan = make_plan([schema] * 2, partitions=1)
    store = SpillStore.create(str(tmp_path / "s"), plan)
    for generation in range(16):
        keys = np.arange(5_000) * 16 + generation
        hashes = canonical_keys([pa.array(keys)], plan.key_types).hashes
        writer = store.begin_push()
        table = pa.table({"k": keys[np.argsort(hashes)], "v": keys})
        write_group(writer, 0, generation, [table, None])
        writer.commit()
    before = held(store)
    sizes: list[int] = []
    write = PushWriter.write_rows

    def write_rows(writer: PushWriter, i: int, columns: list[pa.Array]) -> None:
        sizes.append(sum(c.nbytes for c in columns))
        write(writer, i, columns)

    monkeypatch.setattr("dovetail_proto.spill_format.merging.MERGED_AT_ONCE_BYTES", 200_000)
    monkeypatch.setattr(PushWriter, "write_rows", write_rows)
    store.merge(list(range(1, 17)))
    assert held(store) == before
    assert sum(sizes) == 16 * 5_000 * 24
    assert max(sizes) <= 200_000 + 16 * 24


def test_few_or_large_pushes_are_left_alone() -> None:
    """Merging costs as much as it spares, unless there are many; the oldest go first."""
    small = [(0, 1000)] * MERGED_AT
    assert choose(small[1:], closing=True) == []
    assert choose(small, closing=False) == list(range(MERGED_MAX))
    assert choose([(0, MERGED_BYTES_MAX + 1)] * 100, closing=True) == []
    merged = [(1, 1000), *small[1:]]
    assert choose(merged, closing=False) == []
    assert choose(merged, closing=True) == list(range(1, 1 + MERGED_MAX))


def test_a_store_is_closed_with_few_pushes_whatever_it_had() -> None:
    """Each level keeps a bounded number, and each row is written once per level."""
    for pushes in (1, 63, 64, 200, 1500, 9000):
        kept: list[tuple[int, int]] = []
        written = 0
        for closing in [*([False] * pushes), True]:
            if not closing:
                kept.append((0, 100))
            while chosen := choose(kept, closing=closing):
                size = sum(kept[c][1] for c in chosen)
                level = 1 + kept[chosen[0]][0]
                kept = [k for c, k in enumerate(kept) if c not in chosen]
                kept.append((level, size))
                written += size
            assert len(kept) <= MERGED_AT * 3
        if pushes >= MERGED_AT:
            levels = Counter(level for level, _ in kept)
            assert max(levels.values()) <= LEFT_AT_CLOSE
        assert sum(size for _, size in kept) == 100 * pushes
        assert written <= 3 * 100 * pushes
