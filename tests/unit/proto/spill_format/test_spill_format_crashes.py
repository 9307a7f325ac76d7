"""A crash at any point: a push is whole or absent, and so is the record of a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dovetail_proto.spill_format import LocalStorage, RunRecord, SpillStore
from kit.dying_storage import DyingStorage, Killed
from kit.small_store import PLAN, content, push_both_groups


def test_a_crash_at_any_call_leaves_a_push_whole_or_absent(tmp_path: Path):
    """After each possible crash the store opens with the pushes that were committed, whole."""
    whole = SpillStore.create(str(tmp_path / "whole"), PLAN)
    push_both_groups(whole, 0)
    push_both_groups(whole, 1)
    expected = content(whole)
    seen = set()
    for calls in range(1000):
        root = tmp_path / str(calls)
        store = SpillStore.create(str(root), PLAN)
        push_both_groups(store, 0)
        store.storage = DyingStorage(str(root), calls)
        try:
            push_both_groups(store, 1)
        except Killed:
            finished = False
        else:
            finished = True
        found = content(SpillStore.open(str(root)))
        assert found == expected[: len(found)]
        assert len(found) == 2 or not finished
        seen.add(len(found))
        if len(found) == 1:  # a new run in the same process goes on with the next free number
            again = SpillStore.open(str(root))
            push_both_groups(again, 1)
            assert content(SpillStore.open(str(root)))[1] == expected[1]
        shutil.rmtree(root)
        if finished:
            break
    assert calls > 8
    assert seen == {1, 2}


def test_a_crash_while_closing_leaves_the_run_open_or_closed(tmp_path: Path):
    """Never a record that is half there."""
    for calls in range(100):
        root = tmp_path / str(calls)
        store = SpillStore.create(str(root), PLAN)
        push_both_groups(store, 0)
        store.storage = DyingStorage(str(root), calls)
        try:
            store.close_run(RunRecord((1, 2), 3, 4))
        except Killed:
            finished = False
        else:
            finished = True
        opened = SpillStore.open(str(root))
        assert opened.closed or not finished
        if opened.closed:
            assert opened.run_record() == RunRecord((1, 2), 3, 4)
        if finished:
            break
    assert calls > 8


def test_whatever_a_closed_run_left_is_on_the_disk(tmp_path: Path):
    """Every file of every push, and every folder's name, is synced before the record of its end."""
    synced: list[str] = []

    class Watched(LocalStorage):
        def sync(self, fd: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{fd}"))
            super().sync(fd)

        def rename(self, old: str, new: str) -> None:
            super().rename(old, new)
            synced[:] = [new if name == old else name for name in synced]

    root = tmp_path / "s"
    store = SpillStore.create_in(Watched(str(root)), PLAN)
    synced.clear()
    for generation in range(3):
        push_both_groups(store, generation)
    store.merge([1, 2])
    assert synced == [], "nobody could use it yet"
    store.close_run(RunRecord((1, 2), 3, 4))
    files = {str(f) for f in root.rglob("*") if f.name not in ("query.json", "closed.json")}
    assert files < set(synced[: synced.index(str(root / "closed.json"))])
    assert synced[-1] == str(root)
