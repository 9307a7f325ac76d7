"""The thread that writes to the store, while the store is away."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event

import pytest

from dovetail_manager import store_writer
from dovetail_manager.effects import AppendHistory
from dovetail_manager.store.errors import StoreUnavailable
from dovetail_manager.store_writer import StoreWriter
from dovetail_proto.ids import Epoch, MoveId


class Away:
    """A store that does not answer the first two times."""

    def __init__(self) -> None:
        self.refusals = 2
        self.kept: dict[int, str] = {}

    def record(self, _: Epoch, __: str, records: Mapping[int, str], *, keep: int) -> None:
        """Keep them, from the third time on."""
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("the store does not answer", unknown=False)
        self.kept |= records


def test_a_move_whose_record_was_not_written_is_recorded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its entry in the store is deleted when the record is there, so it must get there."""
    monkeypatch.setattr(store_writer, "RETRY_S", 0.0)
    store, recorded, moves = Away(), Event(), list[MoveId]()

    def told(move: MoveId) -> None:
        moves.append(move)
        recorded.set()

    ignore = lambda *_: None  # noqa: E731
    writer = StoreWriter(
        store,  # type: ignore[arg-type]
        Epoch(1),
        confirmed=ignore,
        failed=ignore,
        recorded=told,
        lost=ignore,
    )
    writer.start()
    writer.put(AppendHistory("moves/q", {7: "it moved"}, move=MoveId("1-7")))
    assert recorded.wait(60)
    writer.stop()
    assert (moves, store.kept) == ([MoveId("1-7")], {7: "it moved"})
