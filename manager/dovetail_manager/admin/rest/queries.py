"""/v1/queries: submit, look, steer, wait, read results, close."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse

from dovetail_manager.admin.rest import answers, bodies
from dovetail_manager.admin.rest.context import NEEDS_TOKEN, Context, PathName, ask, refusals
from dovetail_manager.admin.rest.result_bodies import as_arrow, as_json, limited
from dovetail_manager.admin.rest.rows import ARROW, JSON_LINES
from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import LOG_NAME
from dovetail_proto.log_reader import Offset, Piece
from dovetail_proto.result_logs import Logs, logs_to_read
from dovetail_proto.transport import Unreachable
from dovetail_proto.wire.fields import COUNT_MAX

JSON_KINDS = (JSON_LINES, "application/jsonl", "application/json", "text/plain", "text/*")
"""What a caller may accept to get JSON lines."""

READABLE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The results, as they are; each batch's metadata tells its offset.",
        "content": {
            ARROW: {"schema": {"type": "string", "format": "binary"}},
            JSON_LINES: {"schema": {"type": "string"}},
        },
    }
}


def routes(context: Context) -> APIRouter:
    """The paths of queries."""
    router = APIRouter(prefix="/v1/queries", tags=["queries"], dependencies=NEEDS_TOKEN)
    _add_life(router, context)
    _add_groups(router, context)
    _add_cleanup(router, context)
    _add_data(router, context)
    return router


def _add_life(router: APIRouter, context: Context) -> None:
    service = context.service

    @router.get("", response_model=answers.Queries, responses=refusals())
    async def list_queries() -> Any:
        """All queries, by name, also those that have ended."""
        return await ask(service.list_queries)

    @router.post(
        "",
        response_model=answers.Query,
        status_code=201,
        responses=refusals(404, 409, body=True),
    )
    async def submit(body: bodies.NewQuery) -> Any:
        """Plan a query over the declared streams and start it on all processors."""
        return await ask(service.submit, body.plain())

    @router.get("/{name}", response_model=answers.Query, responses=refusals(404, 422))
    async def get_query(
        name: PathName,
        *,
        fresh: Annotated[
            bool, Query(description="have every processor report first; counts may be old without")
        ] = False,
    ) -> Any:
        """One query, also when it has ended."""
        return await ask(lambda ref: service.get_query(ref, fresh=fresh), a.QueryRef(name))

    @router.delete("/{name}", response_model=answers.Query, responses=refusals(404, 409, 422))
    async def drop_query(
        name: PathName,
        *,
        keep: Annotated[
            bool, Query(description="leave result logs and spill where they are")
        ] = False,
    ) -> Any:
        """Forget a query that is closed or failed, and what it wrote; answers its last status."""
        return await ask(service.drop_query, a.DropQuery(name, keep))

    @router.post("/{name}/close", response_model=answers.Query, responses=refusals(404, 409, 422))
    async def close_query(name: PathName) -> Any:
        """Take nothing more in and close; answers at once."""
        return await ask(service.close_query, a.QueryRef(name))

    @router.post("/{name}/pause", response_model=answers.Query, responses=refusals(404, 409, 422))
    async def pause_query(name: PathName) -> Any:
        """Take nothing in until it is resumed."""
        return await ask(service.pause_query, a.QueryRef(name))

    @router.post("/{name}/resume", response_model=answers.Query, responses=refusals(404, 409, 422))
    async def resume_query(name: PathName) -> Any:
        """Go on after a pause."""
        return await ask(service.resume_query, a.QueryRef(name))

    @router.post(
        "/{name}/policy", response_model=answers.Query, responses=refusals(404, 409, body=True)
    )
    async def set_policy(name: PathName, body: bodies.PolicyBody) -> Any:
        """Adapt by another policy from now on."""
        return await ask(service.set_policy, a.SetPolicy(name, body.policy))


def _add_groups(router: APIRouter, context: Context) -> None:
    service = context.service

    @router.get(
        "/{name}/partitions", response_model=answers.Partitions, responses=refusals(404, 422)
    )
    async def list_partitions(name: PathName) -> Any:
        """Who owns which group."""
        return await ask(service.list_partitions, a.QueryRef(name))

    @router.get("/{name}/moves", response_model=answers.Moves, responses=refusals(404, 422))
    async def list_moves(name: PathName) -> Any:
        """Moves under way and ended ones, newest first."""
        return await ask(service.list_moves, a.QueryRef(name))

    @router.get(
        "/{name}/adaptations", response_model=answers.Adaptations, responses=refusals(404, 422)
    )
    async def list_adaptations(name: PathName) -> Any:
        """Decisions and why nothing was done, newest first."""
        return await ask(service.list_adaptations, a.QueryRef(name))

    @router.post(
        "/{name}/move",
        response_model=answers.Move,
        status_code=202,
        responses=refusals(404, 409, body=True),
    )
    async def move(name: PathName, body: bodies.MoveBody) -> Any:
        """Begin to move groups to a processor; answers when the move is written down."""
        groups = tuple(sorted(set(body.groups)))
        return await ask(service.move, a.MoveGroups(name, groups, body.to))

    @router.post(
        "/{name}/pin", response_model=answers.Partitions, responses=refusals(404, 409, body=True)
    )
    async def pin(name: PathName, body: bodies.PinBody) -> Any:
        """Keep groups where they are, or let them go again."""
        groups = tuple(sorted(set(body.groups)))
        return await ask(service.pin, a.Pin(name, groups, body.pinned))

    @router.post(
        "/{name}/rebalance",
        response_model=answers.Adaptations,
        responses=refusals(404, 409, body=True),
    )
    async def rebalance(name: PathName, body: bodies.RebalanceBody | None = None) -> Any:
        """Let the policy decide now; with `dry_run`, only tell what would be done."""
        dry_run = body is not None and body.dry_run
        return await ask(service.rebalance, a.Rebalance(name, dry_run))


def _add_cleanup(router: APIRouter, context: Context) -> None:
    service = context.service

    @router.post(
        "/{name}/cleanup",
        response_model=answers.Cleanup,
        status_code=202,
        responses=refusals(404, 409, body=True),
    )
    async def start_cleanup(name: PathName, body: bodies.CleanupBody | None = None) -> Any:
        """Begin to produce what a closed query owes, or go on where it was stopped."""
        fields = {} if body is None else body.model_dump()
        return await ask(service.start_cleanup, a.StartCleanup(name, **fields))

    @router.get("/{name}/cleanup", response_model=answers.Cleanup, responses=refusals(404, 422))
    async def get_cleanup(name: PathName) -> Any:
        """How far the latest clean-up is."""
        return await ask(service.get_cleanup, a.QueryRef(name))

    @router.delete(
        "/{name}/cleanup", response_model=answers.Cleanup, responses=refusals(404, 409, 422)
    )
    async def cancel_cleanup(name: PathName) -> Any:
        """Stop it; what is finished is kept, and the next one goes on from there."""
        return await ask(service.cancel_cleanup, a.QueryRef(name))


def _add_data(router: APIRouter, context: Context) -> None:
    service, plane = context.service, context.plane

    @router.post(
        "/{name}/wait", response_model=answers.Waited, responses=refusals(404, 409, body=True)
    )
    async def wait(name: PathName, body: bodies.WaitBody | None = None) -> Any:
        """Answer when all that the query's streams have taken in so far is joined.

        Its status then counts it.
        """
        query = await ask(service.get_query, a.QueryRef(name))
        if query.state == "failed":
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} has failed: {query.cause}",
                remedy="drop it and submit it again",
                reason="state",
            )
        if query.state == "closed":
            return answers.Waited(rows=sum(i.rows_in for i in query.inputs))
        streams = {s.name: s for s in (await ask(service.list_streams)).streams}
        homes = {streams[i.stream] for i in query.inputs if i.stream in streams}
        for stream in homes:
            if not stream.address:
                raise Unreachable(
                    f"stream {stream.name!r}: its home, processor {stream.home!r}, is away",
                    remedy="start it again",
                )
        timeout_s = (body or bodies.WaitBody()).timeout_s
        addresses = {stream.home: stream.address for stream in homes}
        rows = await plane.joined(addresses, name, timeout_s)
        await ask(lambda ref: service.get_query(ref, fresh=True), a.QueryRef(name))
        return answers.Waited(rows=rows)

    @router.get(
        "/{name}/results",
        response_class=StreamingResponse,
        responses={**READABLE, **refusals(404, 406, 409, 410, 422)},
    )
    async def read_results(
        request: Request,
        name: PathName,
        *,
        follow: Annotated[bool, Query(description="go on with what comes")] = False,
        limit: Annotated[int | None, Query(ge=1, le=COUNT_MAX, description="rows")] = None,
        log: Annotated[
            str | None, Query(pattern=f"^{LOG_NAME.pattern}$", description="this one's only")
        ] = None,
        segment: Annotated[int, Query(ge=0, le=COUNT_MAX, description="from here on")] = 0,
        row: Annotated[int, Query(ge=0, le=COUNT_MAX)] = 0,
    ) -> StreamingResponse:
        """The results so far, of all logs, as they come; Arrow, or JSON lines by `Accept`.

        An offset (`segment`, `row`) counts within one log: name that too. Of a query that has
        failed, headers tell why (`Dovetail-Failed`) and how many results it had found
        (`Dovetail-Found`): those beyond what is sent died with a processor.
        """

        def look() -> Logs:
            return logs_to_read(service.get_query(a.QueryRef(name)), chosen)

        chosen = None if log is None else {log}
        kind = _result_kind(request.headers.get("accept", ""))
        query = await ask(service.get_query, a.QueryRef(name))
        schema = pa.ipc.read_schema(pa.py_buffer(query.schema))
        logs, start = logs_to_read(query, chosen), Offset(segment, row)
        found = plane.results(name, schema, logs, start, look if follow else None)
        ready = limited(await _opened(found), limit)
        headers = {}
        if query.state == "failed":
            cause = " ".join(query.cause.encode("ascii", "backslashreplace").decode().split())
            headers = {"Dovetail-Failed": cause, "Dovetail-Found": str(query.results)}
        body = as_json(ready) if kind == JSON_LINES else as_arrow(ready, schema)
        return StreamingResponse(body, media_type=kind, headers=headers)


async def _opened(found: AsyncGenerator[Piece | None]) -> AsyncGenerator[Piece]:
    """The pieces, once every log is open: an error until then still gets its status."""
    await anext(found)

    async def pieces() -> AsyncGenerator[Piece]:
        async with aclosing(found):
            async for piece in found:
                assert piece is not None
                yield piece

    return pieces()


def _result_kind(accept: str) -> str:
    """What results are sent as; Refusal if the caller takes neither of the two kinds there are."""
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if accept.strip() in ("", "*/*") or ARROW in wanted:
        return ARROW
    if any(kind in JSON_KINDS for kind in wanted):
        return JSON_LINES
    if any(kind in ("*/*", "application/*") for kind in wanted):
        return ARROW
    raise Refusal(
        Domain.MESSAGE,
        f"results cannot be had as {accept[:80]!r}",
        remedy=f"accept {ARROW} or {JSON_LINES}",
        reason="not-acceptable",
    )
