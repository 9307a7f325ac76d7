"""The data plane as plain data: splits feed instances, clients feed splits and read results.

`wire.data` carries every type here over protobuf. What moves a group's state is in `messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail_proto.ids import LogName, QueryName, SplitId, StreamName
from dovetail_proto.messages import EndOfMovedPartitions

SEQUENCE_MAX = 1 << 62
"""More rows than any stream brings; the last sequence of a batch that begins there is an int64."""


@dataclass(frozen=True, slots=True)
class TupleBatch:
    """Split → join: rows of one stream as Arrow IPC, in the order of their sequences."""

    split: SplitId
    first: int  # a sequence: the number of a row in its stream, given by the stream's home
    offsets: bytes = field(repr=False)  # of each row's to it, uint32; empty: 0, 1, 2, …
    size_bytes: int  # what it takes of the link's credit
    rows: int
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """In-band, split → instance: the last item of a link. Needs no credit."""

    query: QueryName
    split: SplitId


LinkItem = TupleBatch | EndOfMovedPartitions | EndOfInput


@dataclass(frozen=True, slots=True)
class LinkFrame:
    """Split host → instance: one numbered item of a link; delivered in order, once."""

    split: SplitId
    number: int  # from 1, per link; 0 is a probe that asks for an acknowledgement
    item: LinkItem | None  # None in a probe only


@dataclass(frozen=True, slots=True)
class LinkAck:
    """Instance → split host: all frames up to `number` are taken in; more may be sent.

    Credit is a running total, so that a lost, repeated or late answer can do no harm.
    """

    query: QueryName
    split: SplitId
    number: int
    allowed_bytes: int  # of batches, since the link began; markers need none
    done_number: int = 0  # all frames up to it are joined, their results handed to the sink


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """Client → home of a stream: rows of one source, in order; a repeated one is dropped."""

    stream: StreamName
    source: str  # chosen by the client, one per feed
    sequence: int  # from 1
    payload: bytes = field(repr=False)  # Arrow IPC stream of one batch
    rows_left: int | None = None  # rows of the source that follow; None: it does not say
    over: bool = False  # no batch: all up to `sequence` is acknowledged, and nothing follows


@dataclass(frozen=True, slots=True)
class IngestAck:
    """Home → client: all batches of the source up to `sequence` are routed."""

    sequence: int
    rows: int  # of the stream so far
    readers: int  # queries that have taken the batch in; 0: its rows went nowhere


@dataclass(frozen=True, slots=True)
class QueryAt:
    """Client → home of a stream: answer when all that splits of the query here have is joined."""

    query: QueryName


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to `QueryAt`: so many rows had been taken in when it was asked."""

    rows: int


@dataclass(frozen=True, slots=True)
class ReadResults:
    """Client → processor: the results in one of its logs from an offset on."""

    query: QueryName
    log: LogName
    segment: int
    row: int
    follow: bool  # go on when all that is there was sent
    run: str  # of the query: a log of another run of the same name is another one
    rows: int  # that are in the log once the query is closed; 0: not known
    trimmed: bool = False  # the query does not keep all: the oldest segments may be gone


@dataclass(frozen=True, slots=True)
class ResultBatch:
    """Processor → client: results; the next ones begin at (segment, row + rows) or later."""

    segment: int
    row: int
    payload: bytes = field(repr=False)  # Arrow IPC stream of one batch; empty: nothing yet
    ended: bool  # nothing follows: the query is closed or was stopped


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Processor that leaves → successor: a piece of a file of a result log, to be kept there.

    Pieces of a file come in order, each answered; the first one, again, starts the file anew.
    """

    query: QueryName
    run: str  # of the query: logs of another run of the same name are dropped
    log: LogName
    segment: int
    start: int  # of the payload in the file
    size_bytes: int  # of the file
    checksum: int  # CRC-32 of the file
    payload: bytes = field(repr=False)
