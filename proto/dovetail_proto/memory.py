"""How a processor's memory limit is shared out, so that nothing it holds can exceed it.

    limit ─┬─ readers                              pages of files, compressed and decoded
           ├─ batches on their way to the join     2 per input: one read ahead, one waiting
           ├─ scratch of the batch being joined    addresses, order and hashes of its rows
           ├─ output on its way to the sink        pieces being made, waiting and being written
           ├─ a spill chunk                        columns of groups that are being written
           └─ state                                all the rest: pages and nested values

All shares but the last are small fixed bounds, so "held" never exceeds the limit whatever the data
is like; a single row larger than a bound is the only exception and passes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

BATCH_BYTES_MAX = 8 << 20
"""64 K rows of 128 bytes: numbers and a few texts. A batch has its cost, however few rows it has:
on rows of 150 bytes batches of 2 MB took a third more CPU."""

BATCH_BYTES_STEPS = (BATCH_BYTES_MAX, 4 << 20, 2 << 20)
"""Where many processors feed each other, batches are smaller before memory is too small: each may
be on its way to all of them."""

BATCH_BYTES_MIN = 16 << 10

BATCH_ROWS_MIN = 2048
"""Batches and output of wide rows are larger, up to so many rows if the limit allows it: a column
costs about 0.1 ms on a batch's way through (15 s of CPU for 108 batches of 1 000 columns)."""

BATCH_BYTES_WIDE_MAX = 32 << 20
"""Of batches and output of wide rows: half of what a message may hold."""

TEXT_BYTES_GUESS = 16
"""Of a value in a column whose values have no fixed size."""

OUTPUT_BYTES_MAX = 4 << 20
"""A piece of output: the 64 K combinations of a chunk, at 64 bytes each."""

READER_BYTES_MAX = 5 << 20
"""What decoding a file of numbers takes beside its batches, measured: 7 MB at batches of 1 MB, less
at smaller ones. Of larger ones it is the pieces that a batch is joined from."""

READER_WIDE_BATCHES = 4
"""What decoding wide rows takes beside their batches: pages of columns that are read together."""

READERS_SHARE = 6
"""Readers get at most a sixth of the limit: with little memory they use small pages and batches."""

READ_AHEAD_SHARE = 64
READ_AHEAD_BYTES_MIN, READ_AHEAD_BYTES_MAX = 4 << 20, 64 << 20
"""Of what several readers of a file decode before its turn: with less than some batches they would
wait for each other, and a few row groups are enough."""

OUTPUT_BYTES_MIN = 32 << 10
OUTPUT_PIECES = 4
"""One being made, one waiting, one on its way to and one inside the sink."""

SCRATCH_PER_BATCH = 2
"""Scratch takes 36 bytes a row: at most twice the batch, unless rows are narrower than 18 bytes."""

PAGE_BYTES_MIN = 1024


@dataclass(frozen=True, slots=True)
class Shares:
    """The bounds, in bytes, that follow from a limit."""

    limit: int
    batch: int  # one batch
    output: int  # one piece of output
    spill: int  # one chunk of a push
    state: int

    @property
    def queues(self) -> int:
        """Everything but state."""
        return self.limit - self.state


def divided(
    limit: int, inputs: int, row_bytes: int = 0, batch_bytes: int = BATCH_BYTES_MAX
) -> Shares:
    """Share out a limit, whether or not it is enough.

    `row_bytes` is about the size of the query's widest rows; narrow ones do not matter. Batches
    have at most `batch_bytes`, but those of wide rows.
    """
    most = batch_bytes_max(row_bytes, batch_bytes)
    batch = min(max(limit // (32 * inputs), BATCH_BYTES_MIN), most)
    output = min(max(limit // 64, OUTPUT_BYTES_MIN), max(OUTPUT_BYTES_MAX, most))
    reader = max(READER_BYTES_MAX, batch)
    if batch > BATCH_BYTES_MAX:
        reader = READER_WIDE_BATCHES * batch
    readers = min(limit // READERS_SHARE, inputs * reader)
    batches = (2 * inputs + SCRATCH_PER_BATCH) * batch
    queues = readers + batches + (OUTPUT_PIECES + 1) * output
    return Shares(limit=limit, batch=batch, output=output, spill=output, state=limit - queues)


def read_ahead_bytes(limit: int) -> int:
    """What files may hold that is decoded before its turn, together; 0 where memory is small."""
    share = limit // READ_AHEAD_SHARE
    return min(share, READ_AHEAD_BYTES_MAX) if share >= READ_AHEAD_BYTES_MIN else 0


def batch_bytes_max(row_bytes: int, narrow_bytes: int = BATCH_BYTES_MAX) -> int:
    """The most that a batch of rows of about this size may hold, given memory.

    `narrow_bytes` is what one of narrow rows may.
    """
    return min(max(narrow_bytes, BATCH_ROWS_MIN * row_bytes), BATCH_BYTES_WIDE_MAX)


def row_bytes_of(schema: pa.Schema) -> int:
    """About the size of a row; text and nested values are guessed."""
    width = 0
    for t in schema.types:
        try:
            width += max(1, t.bit_width // 8)
        except ValueError:
            width += TEXT_BYTES_GUESS
    return width


def state_needed(inputs: int, partitions: int) -> int:
    """The least that state can do with.

    Room for every group at its smallest (a page of each input, one of index), twice: a push must
    be able to free memory while the next batch fills it.
    """
    return 2 * partitions * (inputs + 1) * PAGE_BYTES_MIN
