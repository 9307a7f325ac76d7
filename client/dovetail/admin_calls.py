"""The verbs of a cluster over REST, as plain calls: one method per verb, plain types in and out.

Whatever the manager refuses is raised here as what it raised there; a manager that does not answer
is Unreachable. Calls are safe in several threads at once.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import httpx

from dovetail_proto import admin as a
from dovetail_proto import certificate_roles
from dovetail_proto.channels import closed
from dovetail_proto.errors import ConfigError
from dovetail_proto.transport import Security, Unreachable, error_from

CALL_TIMEOUT_S = 60.0
"""A verb answers when it is durable, within the 30 s that the manager gives its store."""

CONNECT_TIMEOUT_S = 5.0

Plain = TypeVar("Plain")


class AdminCalls:
    """One manager's verbs; `url` is where its REST answers."""

    def __init__(self, url: str, security: Security) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"url {url!r} is not http:// or https://", remedy="write http://127.0.0.1:7071"
            )
        headers = {"Authorization": f"Bearer {security.token}"} if security.token else {}
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            verify=_trust(security),
            timeout=httpx.Timeout(CALL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,  # a proxy for the web is none for a cluster
        )

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    # Streams --------------------------------------------------------------------------------------

    def create_stream(self, name: str, schema: bytes, path: str = "") -> a.StreamStatus:
        """Declare a stream by its Arrow IPC schema; Refusal if the name is taken."""
        body = {"name": name, "schema": base64.b64encode(schema).decode(), "path": path}
        return self._ask(a.StreamStatus, "POST", "/v1/streams", body)

    def end_stream(self, name: str) -> a.StreamStatus:
        """Say that nothing more will be sent."""
        return self._ask(a.StreamStatus, "POST", f"/v1/streams/{name}/end")

    def drop_stream(self, name: str) -> a.StreamStatus:
        """Forget a stream that no query reads."""
        return self._ask(a.StreamStatus, "DELETE", f"/v1/streams/{name}")

    def get_stream(self, name: str) -> a.StreamStatus:
        """One stream."""
        return self._ask(a.StreamStatus, "GET", f"/v1/streams/{name}")

    def list_streams(self) -> a.Streams:
        """All streams, by name."""
        return self._ask(a.Streams, "GET", "/v1/streams")

    # Queries --------------------------------------------------------------------------------------

    def submit(self, request: a.Submit) -> a.QueryStatus:
        """Plan a query and start it."""
        return self._ask(a.QueryStatus, "POST", "/v1/queries", dataclasses.asdict(request))

    def get_query(self, name: str, *, fresh: bool = False) -> a.QueryStatus:
        """One query, also when it has ended; `fresh`: every processor reports first."""
        query = "?fresh=true" if fresh else ""
        return self._ask(a.QueryStatus, "GET", f"/v1/queries/{name}{query}")

    def list_queries(self) -> a.Queries:
        """All queries, by name."""
        return self._ask(a.Queries, "GET", "/v1/queries")

    def close_query(self, name: str) -> a.QueryStatus:
        """Take nothing more in; answers at once."""
        return self._ask(a.QueryStatus, "POST", f"/v1/queries/{name}/close")

    def pause_query(self, name: str) -> a.QueryStatus:
        """Take nothing in until it is resumed."""
        return self._ask(a.QueryStatus, "POST", f"/v1/queries/{name}/pause")

    def resume_query(self, name: str) -> a.QueryStatus:
        """Go on after a pause."""
        return self._ask(a.QueryStatus, "POST", f"/v1/queries/{name}/resume")

    def drop_query(self, name: str, keep: bool) -> a.QueryStatus:
        """Forget a query that is closed or failed, with what it wrote or without."""
        query = "?keep=true" if keep else ""
        return self._ask(a.QueryStatus, "DELETE", f"/v1/queries/{name}{query}")

    def set_policy(self, name: str, policy: str) -> a.QueryStatus:
        """Adapt by another policy from now on."""
        body = {"policy": policy}
        return self._ask(a.QueryStatus, "POST", f"/v1/queries/{name}/policy", body)

    # Groups ---------------------------------------------------------------------------------------

    def list_partitions(self, name: str) -> a.Partitions:
        """Who owns which group."""
        return self._ask(a.Partitions, "GET", f"/v1/queries/{name}/partitions")

    def list_moves(self, name: str) -> a.Moves:
        """Moves, newest first."""
        return self._ask(a.Moves, "GET", f"/v1/queries/{name}/moves")

    def list_adaptations(self, name: str) -> a.Adaptations:
        """Decisions, newest first."""
        return self._ask(a.Adaptations, "GET", f"/v1/queries/{name}/adaptations")

    def start_cleanup(
        self, name: str, master: str, output: str, memory_bytes: int
    ) -> a.CleanupStatus:
        """Begin to produce what a closed query owes."""
        body = {"master": master, "output": output, "memory_bytes": memory_bytes}
        return self._ask(a.CleanupStatus, "POST", f"/v1/queries/{name}/cleanup", body)

    def get_cleanup(self, name: str) -> a.CleanupStatus:
        """How far the latest clean-up is."""
        return self._ask(a.CleanupStatus, "GET", f"/v1/queries/{name}/cleanup")

    def cancel_cleanup(self, name: str) -> a.CleanupStatus:
        """Stop a clean-up."""
        return self._ask(a.CleanupStatus, "DELETE", f"/v1/queries/{name}/cleanup")

    def move(self, name: str, groups: Sequence[int], to: str) -> a.MoveStatus:
        """Begin to move groups."""
        body = {"groups": list(groups), "to": to}
        return self._ask(a.MoveStatus, "POST", f"/v1/queries/{name}/move", body)

    def pin(self, name: str, groups: Sequence[int], pinned: bool) -> a.Partitions:
        """Keep groups where they are, or let them go again."""
        body = {"groups": list(groups), "pinned": pinned}
        return self._ask(a.Partitions, "POST", f"/v1/queries/{name}/pin", body)

    def rebalance(self, name: str, dry_run: bool) -> a.Adaptations:
        """Let the policy decide now."""
        body = {"dry_run": dry_run}
        return self._ask(a.Adaptations, "POST", f"/v1/queries/{name}/rebalance", body)

    # The cluster ----------------------------------------------------------------------------------

    def get_cluster(self) -> a.ClusterStatus:
        """The manager and its processors."""
        return self._ask(a.ClusterStatus, "GET", "/v1/cluster")

    def leave(self, processor: str) -> a.ProcessorStatus:
        """Move a processor's groups and streams away and let it go."""
        return self._ask(a.ProcessorStatus, "POST", f"/v1/processors/{processor}/leave")

    def _ask(self, kind: type[Plain], method: str, path: str, body: Any = None) -> Plain:
        if self._http.is_closed:
            raise closed()
        try:
            answer = self._http.request(method, path, json=body)
        except (httpx.TransportError, httpx.InvalidURL) as e:
            raise Unreachable(
                f"no answer from {self.url}: {e}",
                remedy="see whether the cluster runs (`dovetail up` starts one) and the address "
                "is right",
            ) from e
        try:
            fields = answer.json()
            if answer.is_success:
                return read(kind, fields)
            error = error_from({k: v for k, v in fields.items() if v is not None})
            known = "code" in fields and "message" in fields
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise self._stranger(answer) from e
        raise error if known else self._stranger(answer)

    def _stranger(self, answer: httpx.Response) -> Unreachable:
        return Unreachable(
            f"{self.url} answers ({answer.status_code}), but not as a Dovetail manager of this "
            "version does",
            remedy="see whether the address is right; `dovetail doctor` tells the versions",
        )


def read(kind: type[Plain], fields: Mapping[str, Any]) -> Plain:
    """A plain type from an answer's JSON; KeyError, TypeError or ValueError if it is none."""
    values = {
        name: _value(name, hint, fields["arrow_schema" if name == "schema" else name])
        for name, hint in _hints(kind.__name__).items()
    }
    return kind(**values)


def _value(name: str, hint: Any, raw: Any) -> Any:
    if hint is bytes:
        return base64.b64decode(raw)
    if name == "checksum":
        return int(raw, 16)
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        return tuple(read(kind, each) for each in raw)
    if name == "numbers":
        return {k: math.inf if v is None else float(v) for k, v in raw.items()}
    if not isinstance(raw, hint if hint is not float else (int, float)):
        raise TypeError(f"{name} is {raw!r}")
    return raw


@cache
def _hints(name: str) -> dict[str, Any]:
    return get_type_hints(getattr(a, name))


def _trust(security: Security) -> ssl.SSLContext | bool:
    """Whom to believe: the cluster's own authority where there is one."""
    if security.authority is None:
        return True
    try:
        context = ssl.create_default_context(cafile=str(security.authority))
        if security.certificate is not None and security.key is not None:
            context.load_cert_chain(str(security.certificate), str(security.key))
        if security.shows_role:
            context.sslsocket_class = _ToManager
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(
            f"TLS cannot be set up with {str(security.authority)!r}: {e}",
            remedy="see `dovetail certs init`",
        ) from e
    return context


class _ToManager(ssl.SSLSocket):
    """Talks to a manager's certificate alone, beside its being good for the host."""

    def do_handshake(self, block: bool = False) -> None:
        """Before anything of ours is sent."""
        super().do_handshake(block)
        shown: Mapping[str, Any] = self.getpeercert() or {}
        names = [v for part in shown.get("subject", ()) for k, v in part if k == "commonName"]
        if names != [certificate_roles.MANAGER]:
            wanted = certificate_roles.MANAGER
            raise ssl.SSLCertVerificationError(
                f"a certificate of {' '.join(names)!r} answers, not one of {wanted!r}"
            )
