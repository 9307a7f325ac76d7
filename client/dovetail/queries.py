"""A query of a cluster: wait for it, read it, steer it, close it, produce what it still owes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from dovetail import html
from dovetail.admin_calls import AdminCalls
from dovetail.quantities import format_bytes, format_count, parse_bytes
from dovetail.query_results import Results
from dovetail_proto import admin as a
from dovetail_proto.channels import Channels
from dovetail_proto.errors import HIDDEN, ConfigError, Domain, Interrupted, Refusal
from dovetail_proto.log_reader import Offset
from dovetail_proto.result_logs import logs_to_read
from dovetail_proto.transport import Unreachable, error_from

POLL_S = 0.05
"""Between two looks at a query that starts or closes."""

CLEANUP_MEMORY = a.CLEANUP_BYTES_DEFAULT

Tell = Callable[[a.QueryStatus], None]


class Query:
    """One query by its name. Made by `Cluster.submit` or `Cluster.query`.

    Every method asks the cluster anew; nothing here is kept. Safe in several threads at once.
    """

    def __init__(self, name: str, admin: AdminCalls, channels: Channels) -> None:
        self.name = name
        self._admin = admin
        self._channels = channels
        self._open: WeakSet[Results] = WeakSet()  # being read

    def status(self) -> a.QueryStatus:
        """How it stands: state, counts, what each processor holds.

        Counts are what processors last reported, up to a second old until the query is closed;
        after `wait` they count what it waited for.
        """
        return self._admin.get_query(self.name)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return when all that its streams had taken in is joined, and how many rows that was.

        Its results can be read then, and `status` counts them. What is spilled to disk is joined
        among itself only: what it owes is produced by `cleanup`. A paused query does not get on.
        Refusal of domain `busy` if the time does not suffice, of domain `query` if the query has
        failed.
        """
        status = self.status()
        if status.state == "closed":
            return sum(i.rows_in for i in status.inputs)
        _refuse_if_failed(status)
        streams = {s.name: s for s in self._admin.list_streams().streams}
        homes = {}
        for name in {i.stream for i in status.inputs}:
            home = streams[name]
            if not home.address:
                raise Unreachable(
                    f"stream {name!r}: its home, processor {home.home!r}, is away",
                    remedy="start it again",
                )
            homes[home.home] = home.address
        rows = self._channels.joined(homes, self.name, timeout_s)
        self._admin.get_query(self.name, fresh=True)
        return rows

    def results(
        self,
        *,
        follow: bool = False,
        offsets: Mapping[str, Offset] | None = None,
        logs: Iterable[str] | None = None,
    ) -> Results:
        """Its results so far, of all processors, as Arrow batches; with `follow`, until its end.

        After `wait` they hold everything that follows from what was sent before. `offsets` goes on
        where a former reader's `offsets` were; `logs` reads these only, of the ones that `status`
        names. In which order results come is not promised. What `cleanup` produces is not among
        them. Refusal if the query writes its results to files or only counts them, Unreachable if
        a processor that has some is away. What a query that failed has lost is counted, and warned
        of, when everything was read.
        """
        chosen = None if logs is None else set(logs)

        status = self.status()
        read = Results(
            self.name,
            pa.ipc.read_schema(pa.py_buffer(status.schema)),
            logs_to_read(status, chosen),
            self._channels,
            offsets=offsets or {},
            look=(lambda: logs_to_read(self.status(), chosen)) if follow else None,
            whole=self.status if chosen is None and not offsets else None,
        )
        self._open.add(read)
        return read

    def close(self, timeout_s: float | None = None, tell: Tell | None = None) -> a.QueryStatus:
        """Take nothing more in; returns when all that was taken in is joined and written.

        Closing it twice is no error. `tell` hears how far it is. Refusal if the query fails, or if
        the time does not suffice (it goes on closing then).
        """
        status = self._admin.close_query(self.name)
        until_s = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
        while status.state != "closed":
            _refuse_if_failed(status)
            if tell is not None:
                tell(status)
            if time.monotonic() > until_s:
                raise Refusal(
                    Domain.BUSY,
                    f"query {self.name!r} is not closed within the time given",
                    remedy="close it again to wait longer",
                    reason="busy",
                )
            time.sleep(POLL_S)
            status = self.status()
        return status

    def cleanup(
        self,
        output: str | Path | None = "",
        *,
        master: str | None = None,
        memory: int | str = CLEANUP_MEMORY,
        tell: Callable[[a.CleanupStatus], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> a.CleanupStatus:
        """Produce what its state on disk owes, as Parquet files in `output`/phase=cleanup.

        The query has to be closed. Empty for `output` is the query's own folder of results, None
        only counts. The manager does it on `master`: `local` is its own machine, others are the
        Spark masters of its settings, `spark` the first of them; None is its default. `tell` hears
        how far it is; once `stop` is true it is cancelled and Interrupted is raised. It goes on
        where an earlier one was stopped; where nothing is owed, nothing is started. Raises what it
        failed with.
        """
        status = self.start_cleanup(output, master=master, memory=memory)
        while status.state == "running":
            if tell is not None:
                tell(status)
            if stop is not None and stop():
                status = self.cancel_cleanup()
                break
            time.sleep(POLL_S)
            status = self.cleanup_status()
        if status.state == "failed":
            import dovetail_pipeline.spark.session  # noqa: F401 - so that its errors are known

            raise error_from(
                {"code": status.code, "message": status.cause, "remedy": status.remedy}
            )
        if status.state == "cancelled":
            raise Interrupted(
                f"the clean-up of query {self.name!r} was cancelled",
                remedy="clean it up again: that goes on with what is left",
            )
        return status

    def start_cleanup(
        self,
        output: str | Path | None = "",
        *,
        master: str | None = None,
        memory: int | str = CLEANUP_MEMORY,
    ) -> a.CleanupStatus:
        """Begin as `cleanup` does, and return at once; `cleanup_status` tells how far it is."""
        place = "none" if output is None else str(output)
        if place not in ("", "none") and "://" not in place:
            place = str(Path(place).absolute())
        size = memory if isinstance(memory, int) else parse_bytes(memory, what="memory")
        return self._admin.start_cleanup(self.name, master or "", place, size)

    def cleanup_status(self) -> a.CleanupStatus:
        """How far its latest clean-up is, or what became of it; Refusal if there was none."""
        return self._admin.get_cleanup(self.name)

    def cancel_cleanup(self) -> a.CleanupStatus:
        """Stop its clean-up; what is finished is kept. Returns when it has stopped."""
        return self._admin.cancel_cleanup(self.name)

    def spill_place(self) -> str:
        """The folder or URI with its state on disk, one store per processor.

        The query has to be closed. ConfigError if it keeps none.
        """
        status = self.status()
        _refuse_unless_closed(status)
        if not status.spill:
            raise ConfigError(
                f"query {self.name!r} keeps no state on disk",
                remedy="there is nothing to clean up: its results are complete",
            )
        if HIDDEN in status.spill:
            raise ConfigError(
                f"the cluster does not tell the credentials in {status.spill!r}",
                remedy="name the whole URI: `dovetail cleanup URI`; or keep credentials out of "
                "it, in the environment of all processes",
            )
        return status.spill

    def drop(self, *, keep: bool = False) -> a.QueryStatus:
        """Forget it, so that its name is free; it has to be closed or failed. Its last status.

        Its result logs and its state on disk are removed, what it still owes too, unless they are
        to be kept. Files in a folder of results stay.
        """
        return self._admin.drop_query(self.name, keep)

    # Steering -------------------------------------------------------------------------------------

    def pause(self) -> a.QueryStatus:
        """Take nothing in until `resume`: senders to its streams wait."""
        return self._admin.pause_query(self.name)

    def resume(self) -> a.QueryStatus:
        """Go on after `pause`."""
        return self._admin.resume_query(self.name)

    def partitions(self) -> a.Partitions:
        """Which processor owns which group."""
        return self._admin.list_partitions(self.name)

    def moves(self) -> tuple[a.MoveStatus, ...]:
        """Moves under way and ended ones, newest first."""
        return self._admin.list_moves(self.name).moves

    def adaptations(self) -> tuple[a.AdaptationRecord, ...]:
        """What was decided and why nothing was, newest first."""
        return self._admin.list_adaptations(self.name).adaptations

    def move(self, groups: Sequence[int], to: str) -> a.MoveStatus:
        """Begin to move groups, all of one owner, to a processor; `moves` tells what comes of it.

        Refusal if the groups or the processor do not exist, the groups are there already, or
        another adaptation is under way on either side.
        """
        return self._admin.move(self.name, groups, to)

    def pin(self, groups: Sequence[int]) -> a.Partitions:
        """Keep groups where they are: no policy moves them. An operator still may."""
        return self._admin.pin(self.name, groups, pinned=True)

    def unpin(self, groups: Sequence[int]) -> a.Partitions:
        """Let policies move groups again."""
        return self._admin.pin(self.name, groups, pinned=False)

    def rebalance(self, *, dry_run: bool = False) -> tuple[a.AdaptationRecord, ...]:
        """Let the policy decide now, whatever its interval; with `dry_run`, only tell."""
        return self._admin.rebalance(self.name, dry_run).adaptations

    def set_policy(self, policy: str) -> a.QueryStatus:
        """Adapt by another policy from now on."""
        return self._admin.set_policy(self.name, policy)

    # Parts ----------------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """End all reading of results that was begun here."""
        for read in list(self._open):
            read.close()

    def __repr__(self) -> str:
        return f"Query({self.name!r})"

    def _repr_html_(self) -> str:
        s = self.status()
        rows: dict[str, Any] = {
            "state": f"{s.state}: {s.cause}" if s.cause else s.state,
            "policy": f"{s.policy}: {s.warning}" if s.warning else s.policy,
            "rows in": ", ".join(f"{i.alias} {format_count(i.rows_in)}" for i in s.inputs),
            "results": format_count(s.results),
            "on disk": f"{format_bytes(s.spilled_bytes)} in {s.pushes} pushes",
            "sql": s.sql,
        }
        instances = html.grid(
            ("processor", "stage", "groups", "held", "results", "pushes"),
            [
                (
                    i.processor,
                    i.stage,
                    i.groups,
                    format_bytes(i.held_bytes),
                    format_count(i.results),
                    i.pushes,
                )
                for i in s.instances
            ],
        )
        return html.facts(f"query {s.name}", rows) + instances


def _refuse_if_failed(status: a.QueryStatus) -> None:
    if status.state == "failed":
        raise Refusal(
            Domain.QUERY,
            f"query {status.name!r} has failed: {status.cause}",
            remedy="its results so far are kept; drop it and submit it again",
            reason="state",
        )


def _refuse_unless_closed(status: a.QueryStatus) -> None:
    _refuse_if_failed(status)
    if status.state != "closed":
        raise Refusal(
            Domain.QUERY,
            f"query {status.name!r} is {status.state}: what it owes is not known yet",
            remedy="close it first",
            reason="state",
        )
