"""The admin service over gRPC: bytes to plain types, a verb, plain types to bytes.

Every verb of `AdminService` is a row of the table below. Errors of ours cross as a status with
their details (`transport.abort`). The standard health service is beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from dovetail_manager.admin.service import AdminService
from dovetail_proto import admin as a
from dovetail_proto.errors import ConfigError, Domain, DovetailError, QueryError, Refusal
from dovetail_proto.transport import Unreachable, abort
from dovetail_proto.wire import admin as wire
from dovetail_proto.wire.methods import ADMIN, CONTROL

HEALTH_SERVICE = "grpc.health.v1.Health"

WATCH_S = 1.0
"""How often a watcher that hears nothing is looked after: whether it is still there."""

REASONS = {
    "unknown": grpc.StatusCode.NOT_FOUND,
    "exists": grpc.StatusCode.ALREADY_EXISTS,
    "busy": grpc.StatusCode.UNAVAILABLE,
}


class AdminFace:
    """Handlers of the Admin service."""

    def __init__(self, service: AdminService) -> None:
        self._service = service

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """For `transport.start_server`, under `ADMIN`."""
        s = self._service
        verbs: dict[str, tuple[type, Callable[[Any], Any]]] = {
            "CreateStream": (a.CreateStream, s.create_stream),
            "EndStream": (a.StreamRef, s.end_stream),
            "DropStream": (a.StreamRef, s.drop_stream),
            "GetStream": (a.StreamRef, s.get_stream),
            "ListStreams": (a.Everything, lambda _: s.list_streams()),
            "Submit": (a.Submit, s.submit),
            "CloseQuery": (a.QueryRef, s.close_query),
            "PauseQuery": (a.QueryRef, s.pause_query),
            "ResumeQuery": (a.QueryRef, s.resume_query),
            "GetQuery": (a.QueryRef, s.get_query),
            "ListQueries": (a.Everything, lambda _: s.list_queries()),
            "DropQuery": (a.DropQuery, s.drop_query),
            "StartCleanup": (a.StartCleanup, s.start_cleanup),
            "GetCleanup": (a.QueryRef, s.get_cleanup),
            "CancelCleanup": (a.QueryRef, s.cancel_cleanup),
            "SetPolicy": (a.SetPolicy, s.set_policy),
            "ListPartitions": (a.QueryRef, s.list_partitions),
            "ListMoves": (a.QueryRef, s.list_moves),
            "ListAdaptations": (a.QueryRef, s.list_adaptations),
            "Move": (a.MoveGroups, s.move),
            "Pin": (a.Pin, s.pin),
            "Rebalance": (a.Rebalance, s.rebalance),
            "GetCluster": (a.Everything, lambda _: s.get_cluster()),
            "Leave": (a.ProcessorRef, s.leave),
        }
        made = {
            name: grpc.unary_unary_rpc_method_handler(_answering(kind, verb))
            for name, (kind, verb) in verbs.items()
        }
        return {**made, "Watch": grpc.unary_stream_rpc_method_handler(self._watch)}

    def _watch(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Events as they come, from the number that was asked for."""
        try:
            since = wire.decode(a.EventsSince, data).since
            while context.is_active():
                seen = self._service.events(since, WATCH_S)
                if seen.events or seen.missed:
                    yield wire.encode(seen)
                since = seen.last
        except DovetailError as e:
            abort(context, e, status_of(e))


def status_of(error: DovetailError) -> grpc.StatusCode:
    """The gRPC status that tells programs of other makers most."""
    if reason := REASONS.get(str(error.details.get("reason", ""))):
        return reason
    if isinstance(error, ConfigError | QueryError):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, Refusal) and error.domain is Domain.MESSAGE:
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, Unreachable) or error.retry:
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.FAILED_PRECONDITION


def _answering(
    kind: type, verb: Callable[[Any], Any]
) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def answer(data: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return wire.encode(verb(wire.decode(kind, data)))
        except DovetailError as e:
            abort(context, e, status_of(e))
            raise  # `abort` never returns

    return answer


def health_handlers() -> tuple[health.HealthServicer, dict[str, grpc.RpcMethodHandler]]:
    """The standard health service, serving, and its handlers under `HEALTH_SERVICE`."""
    servicer = health.HealthServicer()
    for name in ("", ADMIN, CONTROL):
        servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    request = health_pb2.HealthCheckRequest.FromString
    response = health_pb2.HealthCheckResponse.SerializeToString
    return servicer, {
        "Check": grpc.unary_unary_rpc_method_handler(servicer.Check, request, response),
        "Watch": grpc.unary_stream_rpc_method_handler(servicer.Watch, request, response),
    }
