"""/v1/cluster, /v1/processors, /v1/events, and what watches a manager: health and metrics."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from starlette.responses import HTMLResponse, StreamingResponse

from dovetail_manager.admin.metrics import CONTENT_TYPE
from dovetail_manager.admin.rest import answers
from dovetail_manager.admin.rest.context import (
    NEEDS_TOKEN,
    Context,
    ProcessorPathName,
    ask,
    refusals,
)
from dovetail_proto import admin as a

EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-Sent Events; `Last-Event-ID` goes on after one.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
METRICS_TEXT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "In the text format of Prometheus.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


def routes(context: Context) -> APIRouter:
    """The paths of the cluster as a whole."""
    router = APIRouter()
    service = context.service

    @router.get(
        "/v1/cluster",
        response_model=answers.Cluster,
        responses=refusals(),
        tags=["cluster"],
        dependencies=NEEDS_TOKEN,
    )
    async def get_cluster() -> Any:
        """The manager and its processors."""
        return await ask(service.get_cluster)

    @router.post(
        "/v1/processors/{name}/leave",
        response_model=answers.Processor,
        status_code=202,
        responses=refusals(404, 409, 422),
        tags=["cluster"],
        dependencies=NEEDS_TOKEN,
    )
    async def leave(name: ProcessorPathName) -> Any:
        """Move a processor's groups and streams away and let it go; answers when that has begun."""
        return await ask(service.leave, a.ProcessorRef(name))

    @router.get(
        "/v1/events",
        response_class=StreamingResponse,
        responses={**EVENT_STREAM, **refusals()},
        tags=["cluster"],
        dependencies=NEEDS_TOKEN,
    )
    async def events(
        last_id: Annotated[str, Header(alias="Last-Event-ID", max_length=64)] = "",
    ) -> StreamingResponse:
        """What happens, as it happens."""
        return StreamingResponse(
            context.hub.listen(last_id),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    @router.get("/healthz", response_model=answers.Health, tags=["health"])
    async def healthz() -> Any:
        """The process lives and answers."""
        return answers.Health(status="ok")

    @router.get("/readyz", response_model=answers.Health, responses=refusals(), tags=["health"])
    async def readyz() -> Any:
        """The manager leads and its store answers."""
        await ask(service.get_cluster)
        return answers.Health(status="ready")

    @router.get(
        "/metrics",
        response_class=Response,
        responses={**METRICS_TEXT, **refusals()},
        tags=["health"],
        dependencies=NEEDS_TOKEN,
    )
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(await ask(context.metrics.text), media_type=CONTENT_TYPE)

    @router.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        from dovetail_manager.admin.rest.page import PAGE

        return HTMLResponse(PAGE)

    return router
