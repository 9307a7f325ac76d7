"""Batches as bytes between processes: one Arrow IPC stream each, checked in full when read."""

from __future__ import annotations

import pyarrow as pa

from dovetail_proto.errors import InputError


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """The batch with its schema."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    made: bytes = stream.getvalue().to_pybytes()
    return made


def from_bytes(payload: bytes, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """The one batch of `schema` in `payload`; InputError, naming `what`, if it is anything else.

    A forged offset would let Arrow read outside its buffers: nothing is used before it is checked.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            found = reader.schema
            if not found.equals(schema):
                raise InputError(
                    f"{what}: its columns are ({_brief(found)}), not ({_brief(schema)})",
                    remedy="send the columns of the declared schema, in order",
                )
            batch = reader.read_next_batch()
            batch.validate(full=True)
            return batch
    except (pa.ArrowException, StopIteration, OSError, ValueError) as e:
        raise InputError(f"{what} is no Arrow batch: {e}", remedy="send an Arrow IPC stream") from e


def _brief(schema: pa.Schema) -> str:
    text = ", ".join(f"{f.name} {f.type}" for f in schema)
    return text if len(text) <= 300 else text[:297] + "..."
