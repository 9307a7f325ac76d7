"""Every error has one body, `{code, message, details, remedy, domain}`, and its kind's status.

`transport.error_from` makes the error again from the body, so that a caller of REST and one of
gRPC see the same.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dovetail_proto.errors import (
    Domain,
    DovetailError,
    Fault,
    Forbidden,
    Refusal,
    Unauthenticated,
)
from dovetail_proto.expectations import plain

log = structlog.get_logger(__name__)

STATUS_OF_REASON = {
    "unknown": 404,
    "exists": 409,
    "state": 409,
    "busy": 409,
    "source": 409,
    "gone": 410,
    "path": 404,
    "method": 405,
    "not-acceptable": 406,
    "too-large": 413,
    "media-type": 415,
    "invalid": 422,
}
"""By `details["reason"]`; see `AdminService` for the first four."""

STATUS_OF_DOMAIN = {
    Domain.MESSAGE: 400,
    Domain.MEMBER: 404,
    Domain.STREAM: 404,
    Domain.QUERY: 404,
    Domain.MOVE: 404,
    Domain.GROUP: 404,
}
"""Of a refusal that gives no reason; the other domains are conflicts with how things stand."""

ERRORS_SHOWN_MAX = 20
"""A body can be wrong in a million places; a screenful helps."""


class Overloaded(DovetailError):  # noqa: N818 - an answer, not a fault
    """More calls at once than there is memory or threads for."""

    code = "overloaded"
    fault = Fault.ENVIRONMENT
    retry = True
    exit_code = 7


def status_of(error: DovetailError) -> int:
    """The HTTP status of an error of ours."""
    reason = error.details.get("reason")
    if isinstance(error, Unauthenticated):
        return 401
    if isinstance(error, Forbidden):
        return 403
    if reason in STATUS_OF_REASON:
        return STATUS_OF_REASON[reason]
    if isinstance(error, Refusal):
        return STATUS_OF_DOMAIN.get(error.domain, 409)
    if error.retry:
        return 503
    return {Fault.USER: 400, Fault.ENVIRONMENT: 503, Fault.DOVETAIL: 500}[error.fault]


def body_of(error: DovetailError) -> bytes:
    """The JSON body; plain ASCII, since a message may quote text that is no UTF-8."""
    fields: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "details": error.details,
        "remedy": error.remedy,
    }
    if isinstance(error, Refusal):
        fields["domain"] = error.domain
    return json.dumps(fields, default=str).encode("ascii")


def answer(error: DovetailError, headers: Mapping[str, str] | None = None) -> Response:
    """The whole answer."""
    status = status_of(error)
    extra = dict(headers or {})
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    if status == 503:
        extra["Retry-After"] = "1"
    return Response(body_of(error), status, extra, media_type="application/json")


def too_large(bytes_max: int) -> Refusal:
    """A body beyond its cap."""
    return Refusal(
        Domain.MESSAGE,
        f"the body is larger than {bytes_max} bytes",
        remedy="send it in smaller pieces",
        reason="too-large",
    )


def invalid(where: str, message: str, *, remedy: str = "") -> Refusal:
    """A field that is not as the OpenAPI document says."""
    return Refusal(Domain.MESSAGE, f"{where}: {message}", remedy=remedy, reason="invalid")


def defect(path: str, error: Exception) -> DovetailError:
    """What is told of an error that is not ours; the log has the rest."""
    log.error("rest.defect", path=path, trace="".join(traceback.format_exception(error)))
    return DovetailError(
        f"internal: {type(error).__name__}",
        remedy="this is a defect of Dovetail; the manager's log has more",
    )


def install(app: FastAPI) -> None:
    """Answer every error of `app` with a body of ours."""
    app.add_exception_handler(DovetailError, _ours)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _http)


def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, DovetailError)
    if error.fault is Fault.DOVETAIL:
        log.error("rest.failed", error=str(error))
    return answer(error)


def _not_valid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places = [
        {"where": ".".join(str(part) for part in e["loc"]), "message": plain(e)}
        for e in error.errors()[:ERRORS_SHOWN_MAX]
    ]
    first = places[0] if places else {"where": "the request", "message": "it is not valid"}
    refusal = Refusal(
        Domain.MESSAGE,
        f"{first['where']}: {first['message']}",
        remedy="see /docs for what is expected",
        reason="invalid",
        errors=places,
    )
    return answer(refusal)


def _http(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: paths, methods, bodies that do not parse."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    made = {
        404: Refusal(
            Domain.MESSAGE, f"there is no path for {what}", remedy="see /docs", reason="path"
        ),
        405: Refusal(
            Domain.MESSAGE,
            f"{what}: the path does not take this method",
            remedy="see /docs",
            reason="method",
        ),
        413: too_large(int(error.detail) if error.detail.isdigit() else 0),
    }.get(error.status_code, Refusal(Domain.MESSAGE, f"{what}: {error.detail}"))
    return answer(made, error.headers)
