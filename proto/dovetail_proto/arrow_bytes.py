"""Batches as bytes between processes: one Arrow IPC stream each, checked in full when read.

Nothing that comes from outside is used before it is checked: a forged offset would let Arrow read
outside its buffers, and a few compressed bytes may swell to any size.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from dovetail_proto.errors import InputError

_COMPRESSION_SLOT = 3
"""Of the table RecordBatch in Arrow's Message.fbs: length, nodes, buffers, compression."""


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """The batch with its schema."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    made: bytes = stream.getvalue().to_pybytes()
    return made


def from_bytes(payload: bytes, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """The one batch of `schema` in `payload`; InputError, naming `what`, if it is anything else."""
    try:
        refuse_swelling(payload, what)
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
    except (pa.ArrowException, StopIteration, OSError, ValueError, struct.error) as e:
        raise InputError(f"{what} is no Arrow batch: {e}", remedy="send an Arrow IPC stream") from e


def refuse_swelling(payload: bytes | memoryview, what: str) -> None:
    """InputError if reading an Arrow stream would take more memory than the stream itself."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(payload)):
        if message.type == "dictionary":
            raise InputError(
                f"{what} has dictionary columns",
                remedy="send their values: cast them to the value type",
            )
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise InputError(f"{what} is compressed Arrow", remedy="write it without compression")


def _is_compressed(metadata: bytes) -> bool:
    """Whether the RecordBatch in a Message (both tables of Flatbuffers) names a compression.

    A table starts with the distance to its vtable; the vtable has two sizes, then a 16-bit place
    per field, 0 if the field is absent. Arrow has verified all of them.
    """

    def place(table: int, slot: int) -> int:
        vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
        size = struct.unpack_from("<H", metadata, vtable)[0]
        at = 4 + 2 * slot
        return int(struct.unpack_from("<H", metadata, vtable + at)[0]) if at < size else 0

    root = int(struct.unpack_from("<I", metadata, 0)[0])
    header = root + place(root, 2)
    header += int(struct.unpack_from("<I", metadata, header)[0])
    return place(header, _COMPRESSION_SLOT) != 0


def _brief(schema: pa.Schema) -> str:
    text = ", ".join(f"{f.name} {f.type}" for f in schema)
    return text if len(text) <= 300 else text[:297] + "..."
