"""What the paths share: the service, the data plane, the events, and the verbs as plain calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from dovetail_manager.admin.metrics import Metrics
from dovetail_manager.admin.rest import answers
from dovetail_manager.admin.rest.data_plane import DataPlane
from dovetail_manager.admin.rest.events import EventHub
from dovetail_manager.admin.service import AdminService
from dovetail_proto.ids import NAME, OWNER

Plain = TypeVar("Plain")

NEEDS_TOKEN = [
    Depends(HTTPBearer(auto_error=False, description="the token, or for looking the reading one"))
]
"""For the OpenAPI document alone: `guards` has looked at the token before any path is."""

PathName = Annotated[str, Path(pattern=f"^{NAME.pattern}$", examples=["prices"])]
ProcessorPathName = Annotated[str, Path(pattern=f"^{OWNER.pattern}$", examples=["p1"])]
"""A name in a path."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a path may need."""

    service: AdminService
    plane: DataPlane
    hub: EventHub
    metrics: Metrics


async def ask(verb: Callable[..., Plain], *arguments: Any) -> Plain:
    """Call a verb of the service, which blocks, without holding up other requests."""
    return await run_in_threadpool(verb, *arguments)


def refusals(*statuses: int, body: bool = False) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI document says of errors: the usual ones and `statuses`, all of one shape.

    `body`: the request has one, which may not parse or be too large.
    """
    usual = {401, 403, 503, *((400, 413, 422) if body else ())}
    return {
        status: {"model": answers.Error, "description": DESCRIPTIONS[status]}
        for status in sorted({*usual, *statuses})
    }


DESCRIPTIONS = {
    400: "it cannot be worked with",
    401: "the token is missing or wrong",
    403: "the role does not allow it",
    404: "no such stream, query, processor or group",
    405: "the path does not take this method",
    406: "results come as an Arrow IPC stream or as JSON lines",
    409: "not now: the name is taken, the state is another, or something else is under way",
    410: "the results at this offset are not kept any more",
    413: "the body is too large",
    415: "rows come as an Arrow IPC stream or as JSON",
    422: "not as described here",
    503: "a processor or the store does not answer, or too much is under way; try again",
}
