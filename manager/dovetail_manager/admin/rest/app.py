"""The application: paths under `/v1`, guarded, with one shape of errors. See `serve` to run it.

/v1/streams      declare, look, send rows, end            streams.py
/v1/queries      submit, steer, wait, read, close, drop   queries.py
/v1/cluster …    members, events, health, metrics         cluster.py
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import Scope

from dovetail_manager.admin.auth import Tokens
from dovetail_manager.admin.metrics import Metrics
from dovetail_manager.admin.rest import cluster, queries, refusals, streams
from dovetail_manager.admin.rest.context import Context
from dovetail_manager.admin.rest.data_plane import DataPlane
from dovetail_manager.admin.rest.events import EventHub
from dovetail_manager.admin.rest.guards import Guard
from dovetail_manager.admin.service import AdminService
from dovetail_proto.transport import Security


def make_context(service: AdminService, security: Security) -> Context:
    """What the paths share; close its plane and stop its hub at the end."""

    def live() -> set[str]:
        return {p.address for p in service.get_cluster().processors if p.address}

    return Context(service, DataPlane(security, live), EventHub(service), Metrics(service))


def make_app(context: Context, tokens: Tokens, *, mutual: bool) -> FastAPI:
    """The ASGI application; `mutual`: callers have shown a certificate."""
    app = FastAPI(
        title="Dovetail",
        version=version("dovetail"),
        summary="Joins several live streams exactly, even when the state outgrows memory.",
        docs_url=None,  # its page would load scripts from elsewhere; /docs is ours
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # what generated clients call it
    )
    refusals.install(app)
    for routes in (streams.routes, queries.routes, cluster.routes):
        app.include_router(routes(context))

    def observe(scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        known = scope["method"] in ("GET", "HEAD", "POST", "DELETE")
        context.metrics.observe(scope["method"] if known else "other", route, status, seconds)

    app.add_middleware(
        Guard,
        tokens=tokens,
        trusted=bool(tokens.admin) or mutual,
        by_certificate=mutual and not tokens.admin,
        observe=observe,
    )
    return app
