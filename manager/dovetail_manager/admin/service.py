"""The verbs of the cluster, once: what REST, gRPC and programs in this process call.

Plain types in, plain types out (`dovetail_proto.admin`); every call may come from any thread,
blocks until its effect is durable, and raises errors of `dovetail_proto.errors` only. In a
refusal, `details["reason"]` is `unknown` (no such thing), `exists` (the name is taken), `state`
(not in this state) or `busy` (try again later).
"""

from __future__ import annotations

from dovetail_proto import admin as a


class AdminService:
    """The verbs of one manager."""

    # Streams --------------------------------------------------------------------------------------

    def create_stream(self, request: a.CreateStream) -> a.StreamStatus:
        """Declare a stream; Refusal if the name is taken, ConfigError if the schema is none."""
        raise NotImplementedError

    def end_stream(self, ref: a.StreamRef) -> a.StreamStatus:
        """Say that nothing more will be sent; ending it twice is no error."""
        raise NotImplementedError

    def get_stream(self, ref: a.StreamRef) -> a.StreamStatus:
        """One stream."""
        raise NotImplementedError

    def list_streams(self) -> a.Streams:
        """All streams, by name."""
        raise NotImplementedError

    # Queries --------------------------------------------------------------------------------------

    def submit(self, request: a.Submit) -> a.QueryStatus:
        """Plan a query over the declared streams and start it on all processors."""
        raise NotImplementedError

    def close_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """Take nothing more in and close it; returns at once, `get_query` tells when it is done."""
        raise NotImplementedError

    def pause_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """Take nothing in until `resume_query`; nothing adapts meanwhile."""
        raise NotImplementedError

    def resume_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """Go on after `pause_query`."""
        raise NotImplementedError

    def get_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """One query, also when it has ended."""
        raise NotImplementedError

    def list_queries(self) -> a.Queries:
        """All queries, by name, also those that have ended."""
        raise NotImplementedError

    def drop_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """Forget a query that is closed or failed, so that its name is free; its last status."""
        raise NotImplementedError

    def set_policy(self, request: a.SetPolicy) -> a.QueryStatus:
        """Adapt by another policy from now on."""
        raise NotImplementedError

    # Groups and moves -----------------------------------------------------------------------------

    def list_partitions(self, ref: a.QueryRef) -> a.Partitions:
        """Who owns which group."""
        raise NotImplementedError

    def list_moves(self, ref: a.QueryRef) -> a.Moves:
        """Moves under way and ended ones, newest first."""
        raise NotImplementedError

    def list_adaptations(self, ref: a.QueryRef) -> a.Adaptations:
        """Decisions and why nothing was done, newest first."""
        raise NotImplementedError

    def move(self, request: a.MoveGroups) -> a.MoveStatus:
        """Begin to move one processor's groups; returns when the move is written down."""
        raise NotImplementedError

    def pin(self, request: a.Pin) -> a.Partitions:
        """Keep groups where they are, or let them go again."""
        raise NotImplementedError

    def rebalance(self, request: a.Rebalance) -> a.Adaptations:
        """Let the policy decide now, whatever the interval; with `dry_run` only tell."""
        raise NotImplementedError

    # The cluster ----------------------------------------------------------------------------------

    def get_cluster(self) -> a.ClusterStatus:
        """The manager and its processors."""
        raise NotImplementedError

    def leave(self, ref: a.ProcessorRef) -> a.ProcessorStatus:
        """Move a processor's groups away and let it go; returns when that has begun."""
        raise NotImplementedError

    def events(self, since: int, wait_s: float = 0.0) -> a.Events:
        """Events after number `since`; waits up to `wait_s` for the first one."""
        raise NotImplementedError
