"""Handing a result log over: piece by piece, checked, again and again if need be."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail_processor.shell.files import claim, segment_file
from dovetail_processor.shell.log_transfer import Keeper, LogSender, pieces
from dovetail_proto.assignment import Leaving
from dovetail_proto.errors import DovetailError, OutputError, Refusal
from dovetail_proto.feeds import LogPiece
from dovetail_proto.ids import ProcessorId, QueryName
from dovetail_proto.wire.data import PART_BYTES

Q, RUN, SUCCESSOR = QueryName("q"), "q-17", ProcessorId("p1")


def log_with(data_dir: Path, *sizes: int, run: str = RUN, log: str = "p2") -> list[Path]:
    """A log with segments of these sizes."""
    folder = claim(data_dir, Q, run) / log
    folder.mkdir()
    rng = np.random.default_rng(len(sizes))
    paths = [segment_file(folder, n) for n in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(rng.bytes(size))
    return paths


def kept(data_dir: Path) -> dict[str, bytes]:
    """All files of all logs, by log and name."""
    found = (data_dir / "results" / Q).glob("*/*")
    return {f"{p.parent.name}/{p.name}": p.read_bytes() for p in sorted(found)}


def test_a_successor_has_the_same_files_under_the_same_names(tmp_path: Path) -> None:
    """Of any size; the logs that the leaver kept for others go along, other runs' do not."""
    log_with(tmp_path / "p2", 1, PART_BYTES, 2 * PART_BYTES + 1)
    log_with(tmp_path / "p2", 100, log="p9.2")
    keeper = Keeper(tmp_path / "p1")
    sender = LogSender(tmp_path / "p2", lambda _, piece: keeper.take(piece))
    leaving = Leaving(SUCCESSOR, {Q: RUN, QueryName("elsewhere"): "elsewhere-1"})
    sender.hand_over(Leaving(SUCCESSOR, {Q: "q-16"}))
    assert kept(tmp_path / "p1") == {}
    sender.hand_over(leaving)
    assert sender.done == leaving
    assert kept(tmp_path / "p1") == kept(tmp_path / "p2")
    assert len(kept(tmp_path / "p1")) == 4


def test_a_broken_transfer_is_begun_anew_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    """At every piece, with a new successor at the end."""
    log_with(tmp_path / "p2", PART_BYTES + 5, 10, 3 * PART_BYTES)
    keepers = {name: Keeper(tmp_path / name) for name in ("p1", "p3")}
    sent: list[int] = []

    def send(to: ProcessorId, piece: LogPiece) -> None:
        if len(sent) == attempt:
            raise OutputError("lost")
        sent.append(piece.segment)
        keepers[to].take(piece)

    sender = LogSender(tmp_path / "p2", send)
    for attempt in range(5):
        sent.clear()
        with pytest.raises(OutputError, match="lost") if attempt < 4 else nullcontext():
            sender.hand_over(Leaving(SUCCESSOR, {Q: RUN}))
    assert sent == [2, 2, 2], "what arrived is not sent again"
    assert kept(tmp_path / "p1") == kept(tmp_path / "p2")
    attempt = 99
    sender.hand_over(Leaving(SUCCESSOR, {Q: RUN}))
    assert len(sent) == 3
    sender.hand_over(Leaving(ProcessorId("p3"), {Q: RUN}))
    assert kept(tmp_path / "p3") == kept(tmp_path / "p2")


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (lambda p: replace(p, start=7), "at 7 does not follow on"),
        (lambda p: replace(p, payload=p.payload[:-1] + b"!"), "not what was sent"),
        (lambda p: replace(p, payload=p.payload + b"!"), "not what was sent"),
        (lambda p: replace(p, checksum=1), "not what was sent"),
    ],
    ids=["gap", "changed", "longer", "checksum"],
)
def test_what_is_not_the_segment_is_refused(forge, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """And the right one is taken afterwards."""
    [path] = log_with(tmp_path / "p2", PART_BYTES + 9)
    first, last = pieces(path, Q, RUN)
    keeper = Keeper(tmp_path / "p1")
    keeper.take(first)
    with pytest.raises(Refusal, match=message):
        keeper.take(forge(last))
    for piece in (first, last, first):
        keeper.take(piece)
    assert kept(tmp_path / "p1") == kept(tmp_path / "p2")


def test_a_successor_whose_disk_is_full_says_so(tmp_path: Path) -> None:
    """With a remedy; a file in the way of the folder stands for it."""
    [path] = log_with(tmp_path / "p2", 9)
    claim(tmp_path / "p1", Q, RUN).joinpath("p2").write_text("in the way")
    with pytest.raises(DovetailError, match="segment 0 of log 'p2' of query 'q' cannot be kept"):
        Keeper(tmp_path / "p1").take(next(pieces(path, Q, RUN)))


def test_logs_of_another_run_make_room(tmp_path: Path) -> None:
    """Of a query of the same name that was dropped."""
    log_with(tmp_path / "p1", 5, run="q-3", log="p1")
    [path] = log_with(tmp_path / "p2", 9)
    Keeper(tmp_path / "p1").take(next(pieces(path, Q, RUN)))
    assert list(kept(tmp_path / "p1")) == ["p2/segment-00000.parquet"]
