"""A crash at any point: a push is whole or absent, and so is the record of a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO

from dovetail_proto.spill_format import LocalStorage, RunRecord, SpillStore
from kit.small_store import PLAN, content, push_both_groups


class Killed(BaseException):
    """The process is gone: nothing after this happens."""


class DyingStorage(LocalStorage):
    """A disk that is lost at the n-th call that changes it, in the middle of a write or before."""

    def __init__(self, root: str, calls: int) -> None:
        super().__init__(root)
        self.left = calls
        self.dead = False

    def _live(self) -> None:
        if self.dead or self.left == 0:
            self.dead = True
            raise Killed
        self.left -= 1

    def create(self, path: str) -> IO[bytes]:
        """Die before, or after half of the bytes."""
        self._live()
        storage = self

        class Half:
            def __enter__(self) -> Half:
                self._file = open(path, "wb")
                return self

            def write(self, data: bytes) -> None:
                self._file.write(data[: len(data) // 2])
                self._file.flush()
                storage._live()
                self._file.write(data[len(data) // 2 :])

            def __exit__(self, *exc: object) -> None:
                self._file.close()

        return Half()  # type: ignore[return-value]

    def scratch(self, name: str) -> str:
        """Die before a large file."""
        self._live()
        return super().scratch(name)

    def sync(self, fd: int) -> None:
        """Die before a sync; what was written may be there all the same."""
        self._live()
        super().sync(fd)

    def rename(self, old: str, new: str) -> None:
        """Die before or after a rename."""
        self._live()
        super().rename(old, new)
        self._live()

    def discard(self, path: str) -> None:
        """A dead process cleans nothing up."""
        self._live()
        super().discard(path)

    def remove(self, name: str) -> None:
        """A dead process cleans nothing up."""
        self._live()
        super().remove(name)


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
    assert calls > 15
    assert seen == {1, 2}


def test_a_crash_while_closing_leaves_the_run_open_or_closed(tmp_path: Path):
    """Never a record that is half there."""
    for calls in range(100):
        root = tmp_path / str(calls)
        store = SpillStore.create(str(root), PLAN)
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
    assert calls > 3
