"""The calls of our gRPC services: their paths, read from the protos.

There are no generated stubs: they would parse a message before our readers see it. A caller hands
one of these paths to a channel (`transport.open_channel`), a server gives each service its handlers
by method name (`transport.start_server`).
"""

from __future__ import annotations

from dovetail_proto.v1 import admin_pb2, control_pb2, data_pb2

_SERVICES = {
    service.full_name: service
    for made in (admin_pb2, control_pb2, data_pb2)
    for service in made.DESCRIPTOR.services_by_name.values()
}
ADMIN, CONTROL, DATA_PLANE = _SERVICES


def path(service: str, method: str) -> str:
    """Where a call goes; KeyError if the protos have no such method."""
    return f"/{service}/{_SERVICES[service].methods_by_name[method].name}"


ATTACH = path(CONTROL, "Attach")

FEED = path(DATA_PLANE, "Feed")
RECEIVE_PARTITIONS = path(DATA_PLANE, "ReceivePartitions")
KEEP_RESULTS = path(DATA_PLANE, "KeepResults")
INGEST = path(DATA_PLANE, "Ingest")
AWAIT_JOINED = path(DATA_PLANE, "AwaitJoined")
READ_RESULTS = path(DATA_PLANE, "ReadResults")

LINK_CALLS = frozenset({FEED, RECEIVE_PARTITIONS, KEEP_RESULTS})
"""What processors ask of each other; clients ask for the rest of DATA_PLANE."""
