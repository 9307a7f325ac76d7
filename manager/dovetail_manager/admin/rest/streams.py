"""/v1/streams: declare, look, send rows, end."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Header, Request

from dovetail_manager.admin.rest import answers, bodies
from dovetail_manager.admin.rest.context import NEEDS_TOKEN, Context, PathName, ask, refusals
from dovetail_manager.admin.rest.guards import body_bytes_max
from dovetail_manager.admin.rest.refusals import invalid
from dovetail_manager.admin.rest.rows import (
    ARROW,
    JSON,
    batch_from_arrow,
    batch_from_json,
)
from dovetail_manager.admin.rest.schemas import schema_of
from dovetail_proto import admin as a
from dovetail_proto.arrow_bytes import to_bytes
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import NAME
from dovetail_proto.transport import Unreachable
from dovetail_proto.wire.fields import COUNT_MAX

BATCH_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "Rows of the stream; all are taken in, or none.",
        "content": {
            ARROW: {"schema": {"type": "string", "format": "binary"}},
            JSON: {"schema": {"type": "array", "items": {"type": "object"}}},
        },
    }
}


BODY_BYTES_AT_ONCE = 4 << 10
"""Bodies that are read sooner than a thread begins."""


def routes(context: Context) -> APIRouter:
    """The paths of streams."""
    router = APIRouter(prefix="/v1/streams", tags=["streams"], dependencies=NEEDS_TOKEN)
    service, plane = context.service, context.plane

    @router.get("", response_model=answers.Streams, responses=refusals())
    async def list_streams() -> Any:
        """All streams, by name."""
        return await ask(service.list_streams)

    @router.post(
        "", response_model=answers.Stream, status_code=201, responses=refusals(409, body=True)
    )
    async def create_stream(body: bodies.NewStream) -> Any:
        """Declare a stream, once."""
        schema = schema_of(body.columns).serialize().to_pybytes()
        return await ask(service.create_stream, a.CreateStream(body.name, schema, body.path))

    @router.get("/{name}", response_model=answers.Stream, responses=refusals(404, 422))
    async def get_stream(name: PathName) -> Any:
        """One stream and how far it has come."""
        return await ask(service.get_stream, a.StreamRef(name))

    @router.post("/{name}/end", response_model=answers.Stream, responses=refusals(404, 409, 422))
    async def end_stream(name: PathName) -> Any:
        """Say that nothing more will be sent."""
        return await ask(service.end_stream, a.StreamRef(name))

    @router.delete("/{name}", response_model=answers.Stream, responses=refusals(404, 409, 422))
    async def drop_stream(name: PathName) -> Any:
        """Forget a stream that no query reads."""
        return await ask(service.drop_stream, a.StreamRef(name))

    @router.post(
        "/{name}/batches",
        response_model=answers.Taken,
        openapi_extra=BATCH_BODY,
        responses=refusals(404, 409, 415, body=True),
    )
    async def send_batch(
        request: Request,
        name: PathName,
        source: Annotated[
            str | None,
            Header(
                alias="Dovetail-Source",
                pattern=f"^{NAME.pattern}$",
                description="The sender's name for its feed; with a sequence, a batch that is sent "
                "again is taken in once.",
            ),
        ] = None,
        sequence: Annotated[
            int | None,
            Header(
                alias="Dovetail-Sequence",
                ge=1,
                le=COUNT_MAX,
                description="1, 2, 3 … within the source.",
            ),
        ] = None,
    ) -> Any:
        """Send rows to the stream; answers when they are on their way to every query."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (ARROW, JSON):
            raise Refusal(
                Domain.MESSAGE,
                f"rows cannot come as {kind[:80]!r}",
                remedy=f"send {ARROW} or {JSON}",
                reason="media-type",
            )
        given = _given(source, sequence)
        stream = await ask(service.get_stream, a.StreamRef(name))
        _refuse_if_closed(stream)
        length = request.headers.get("content-length", "")
        # A body of unknown length may grow to its cap.
        size = int(length) if length.isdigit() else body_bytes_max(dict(request.headers))
        with plane.held.take(size):
            body = await request.body()
            if len(body) <= BODY_BYTES_AT_ONCE:
                payload, rows = _payload(kind, body, stream.schema)
            else:
                payload, rows = await ask(_payload, kind, body, stream.schema)
            if not rows:
                return answers.Taken(
                    source=source or "",
                    sequence=sequence or 0,
                    rows=0,
                    stream_rows=stream.rows,
                    readers=0,
                )

            async def home() -> str:
                found: a.StreamStatus = await ask(service.get_stream, a.StreamRef(name))
                _refuse_if_closed(found)
                return found.address

            taken = await plane.feed(stream.address, home, name, payload, given)
        return answers.Taken(
            source=taken[0],
            sequence=taken[1],
            rows=rows,
            stream_rows=taken[2].rows,
            readers=taken[2].readers,
        )

    return router


def _given(source: str | None, sequence: int | None) -> tuple[str, int] | None:
    if source is not None and sequence is not None:
        return source, sequence
    if source is None and sequence is None:
        return None
    raise invalid("headers", "Dovetail-Source and Dovetail-Sequence go together")


def _refuse_if_closed(stream: a.StreamStatus) -> None:
    if stream.ended or stream.path:
        why = f"it is read from {stream.path!r}" if stream.path else "it has ended"
        raise Refusal(
            Domain.MESSAGE,
            f"stream {stream.name!r} takes no rows: {why}",
            remedy="declare another stream",
            reason="state",
        )
    if not stream.address:
        raise Unreachable(
            f"stream {stream.name!r}: its home, processor {stream.home!r}, is away",
            remedy="start it again, then send the batch again",
        )


def _payload(kind: str, body: bytes, schema: bytes) -> tuple[bytes, int]:
    declared = pa.ipc.read_schema(pa.py_buffer(schema))
    read = batch_from_arrow if kind == ARROW else batch_from_json
    batch = read(body, declared)
    return to_bytes(batch), batch.num_rows
