"""Result logs of a processor that leaves: it hands them to a successor, which keeps them.

    leaver ── pieces of a segment's file, in order ─▶ successor: part file ─ checked ─▶ segment

The successor has the same files under the same names then, so offsets in a log hold whoever keeps
it; logs that the leaver kept for others go along. Nothing is deleted here: a leaver that is taken
for dead, before the cluster knows of its successor, still has what it found.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from dovetail_processor.shell.files import (
    claim,
    is_of_run,
    logs_folder,
    segment_file,
)
from dovetail_processor.sinks.parquet import number_of, sync_folder
from dovetail_proto.assignment import Leaving
from dovetail_proto.errors import Domain, OutputError, Refusal
from dovetail_proto.feeds import LogPiece
from dovetail_proto.ids import LogName, ProcessorId, QueryName
from dovetail_proto.wire.data import PART_BYTES

Send = Callable[[ProcessorId, LogPiece], None]


class LogSender:
    """What a leaver hands over, and how far that is done."""

    def __init__(self, data_dir: Path, send: Send) -> None:
        """`send` returns when a piece is kept, and raises DovetailError if it is not."""
        self._data_dir = data_dir
        self._send = send
        self._sent: set[tuple[ProcessorId, Path]] = set()
        self.done: Leaving | None = None  # what was handed over in full

    def hand_over(self, leaving: Leaving) -> None:
        """Send whatever the successor lacks; no query writes to its log any more."""
        for query, run in leaving.runs.items():
            folder = logs_folder(self._data_dir, query)
            if leaving.successor is None or not is_of_run(folder, run):
                continue
            for path in sorted(folder.glob("*/segment-*.parquet")):
                if (leaving.successor, path) not in self._sent:
                    for piece in pieces(path, query, run):
                        self._send(leaving.successor, piece)
                    self._sent.add((leaving.successor, path))
        self.done = leaving


def pieces(path: Path, query: QueryName, run: str) -> Iterator[LogPiece]:
    """A segment of a log, in messages of a size that gRPC takes."""
    log, segment = LogName(path.parent.name), number_of(path)
    try:
        with path.open("rb") as file:
            checksum = 0
            while data := file.read(PART_BYTES):
                checksum = zlib.crc32(data, checksum)
            size_bytes = file.tell()
            for start in range(0, size_bytes, PART_BYTES):
                file.seek(start)
                payload = file.read(PART_BYTES)
                yield LogPiece(query, run, log, segment, start, size_bytes, checksum, payload)
    except OSError as e:
        raise OutputError(f"{str(path)!r} cannot be read: {e.strerror}") from e


class Keeper:
    """Takes in what leavers hand over. Its method may be called from any thread."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = threading.Lock()

    def take(self, piece: LogPiece) -> None:
        """Keep a piece; with the last one, checked and synced, the segment is there.

        Refusal if it does not follow on the piece before it, or if the file is not what was sent.
        """
        with self._lock:
            try:
                folder = claim(self._data_dir, piece.query, piece.run) / piece.log
                path = segment_file(folder, piece.segment)
                if not path.exists():
                    self._write(path, piece)
            except OSError as e:
                raise OutputError(
                    f"segment {piece.segment} of log {piece.log!r} of query {piece.query!r} "
                    f"cannot be kept: {e.strerror}",
                    remedy="free some space on this processor's disk",
                ) from e

    def _write(self, path: Path, piece: LogPiece) -> None:
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("r+b" if piece.start and part.exists() else "w+b") as file:
            here = file.seek(0, os.SEEK_END)
            if here != piece.start:
                raise _refused(piece, f"its piece at {piece.start} does not follow on {here}")
            file.write(piece.payload)
            end = piece.start + len(piece.payload)
            if end < piece.size_bytes:
                return
            checksum, _ = 0, file.seek(0)
            while data := file.read(PART_BYTES):
                checksum = zlib.crc32(data, checksum)
            if (end, checksum) != (piece.size_bytes, piece.checksum):
                raise _refused(piece, "it is not what was sent")
            os.fsync(file.fileno())
        part.rename(path)
        sync_folder(path.parent)


def _refused(piece: LogPiece, why: str) -> Refusal:
    return Refusal(
        Domain.MESSAGE, f"segment {piece.segment} of log {piece.log!r} is refused: {why}"
    )
