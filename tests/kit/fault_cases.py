"""One query under test on a cluster with faults: its feed, its moves, and DuckDB as its oracle.

case = Case(local, "name", home="p3")      # both splits are at p3
case.feed(0.4)                             # so much of both tables is routed
case.move_to_fault("p1", "p1", "p2")       # moves groups of p1 to p2 until p1's fault is met
case.check_closed(folder)                  # run and clean-up together are the join
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail import Query, Stream
from dovetail.local_cluster import MANAGER
from dovetail.query_results import Results
from dovetail_proto.admin import LogStatus, MoveStatus
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.transport import Unreachable
from kit.cluster_faults import WAIT_S, FaultyCluster, until
from kit.clusters import PAIR_SQL, pair

SHORT_MEMORY = {"policy": "disk", "spill_above_ratio": 0.0008}
"""Makes a query push to disk again and again with the few rows of a test."""

GRACE_S = 1.0
"""Between the end of a move, as the manager knows it, and a fault behind its last message."""

FEED_ROWS = 60
"""Rows of one batch: a move begins and ends in the middle of a feed."""


class Case:
    """One query over two streams, its feed and its oracle."""

    def __init__(
        self,
        local: FaultyCluster,
        name: str,
        *,
        home: str,
        weights: tuple[float, ...] = (),
        seed: int = 0,
        rows: int = 1_500,
        **submit: Any,
    ) -> None:
        """Declare streams at home at `home`, submit the query; nothing is fed yet."""
        self.local = local
        self.may_fail = False  # whether a move that ended with its query is no surprise
        self.tables = pair(seed, rows=rows, keys=150)
        running = {
            i.stream for q in local.cluster.queries() if q.state != "failed" for i in q.inputs
        }
        self.streams: list[Stream] = []
        for table in self.tables:
            taken = running | {s.name for s in self.streams}
            self.streams.append(local.stream_at(home, table.schema, taken))
        left, right = (s.name for s in self.streams)
        self.query: Query = local.cluster.submit(
            PAIR_SQL.format(left=left, right=right),
            name=name,
            partitions=24,
            weights=weights,
            **submit,
        )
        self.feeds = [
            Feeding(stream, table) for stream, table in zip(self.streams, self.tables, strict=True)
        ]
        submitted = self.query.status()
        self.schema = pa.ipc.read_schema(pa.py_buffer(submitted.schema))
        self.run = next((log.run for log in submitted.logs), "")  # none if results are files
        self.addresses = {p.name: p.address for p in local.cluster.status().processors}

    # Feeding --------------------------------------------------------------------------------------

    def allow(self, share: float) -> None:
        """Let rows flow up to a share of both tables."""
        for feed in self.feeds:
            feed.allow(share)

    def feed(self, share: float) -> None:
        """As `allow`; returns when the rows are routed."""
        self.allow(share)
        for feed in self.feeds:
            until(feed.routed, "what was sent is routed")

    def end_feeds(self) -> None:
        """No more rows come."""
        for feed in self.feeds:
            feed.end()

    # Moving ---------------------------------------------------------------------------------------

    def groups_of(self, owner: str) -> list[int]:
        """The groups that a processor owns."""
        return [p.group for p in self.query.partitions().partitions if p.owner == owner]

    def move(self, sender: str, receiver: str, *, may_die: bool = False) -> str:
        """Begin to move half of the sender's groups; the id of the move.

        The manager may die of it, if so agreed; empty if it did before it could answer.
        """
        groups = self.groups_of(sender)
        begun: list[str] = []

        def begin() -> bool:
            try:
                begun.append(self.query.move(groups[: max(1, len(groups) // 2)], receiver).id)
            except Refusal as e:
                if e.domain is Domain.MOVE:  # it was rolled back before it began
                    begun.append(e.details["move"])
                elif e.domain is not Domain.BUSY:
                    raise
            except Unreachable:
                if not may_die:
                    raise
                begun.append("")
            return bool(begun)

        until(begin, "a move begins")
        return begun[0]

    def move_to_fault(self, name: str, sender: str, receiver: str) -> str:
        """Move groups until the fault of `name` is met; the move in which it was.

        A receiver that pushes at the moment refuses, and the move ends before it has begun.
        """
        while True:
            move = self.move(sender, receiver, may_die=name == MANAGER)
            until(lambda m=move: self.local.fault_met(name) or self._over(m), "a fault or an end")
            with contextlib.suppress(AssertionError):
                until(lambda: self.local.fault_met(name), "it is met after all", GRACE_S)
                self.local.await_fault(name)
                return move

    def _over(self, move: str) -> bool:
        try:
            return bool(self.outcome(move))
        except Unreachable:
            return False

    def begin_move(self, sender: str, receiver: str) -> None:
        """As `move`, without waiting for an answer: the manager may be stopped before it."""
        groups = self.groups_of(sender)
        args = (groups[: max(1, len(groups) // 2)], receiver)

        def begin() -> None:
            with contextlib.suppress(Refusal, Unreachable):
                self.query.move(*args)

        threading.Thread(target=begin, daemon=True).start()

    def await_moved(self, sender: str, receiver: str) -> None:
        """Move half of the sender's groups, for sure; as often as it takes."""
        until(
            lambda: self._moved(self.move(sender, receiver)) == "completed", "a move is completed"
        )

    def _moved(self, move: str) -> str:
        until(lambda: bool(self.outcome(move)), "a move ends")
        return self.outcome(move)

    def outcome(self, move: str) -> str:
        """How a move ended; empty if it has not."""
        return next((m.outcome for m in self.query.moves() if m.id == move and m.ended_s), "")

    def last_asked(self) -> MoveStatus:
        """The newest move that an operator asked for, whether or not the manager could answer."""
        return next(m for m in self.query.moves() if "operator" in m.reason)

    def await_moves(self) -> set[str]:
        """Until no move is under way; how they ended."""
        until(lambda: all(m.ended_s for m in self.query.moves()), "moves end")
        ended = {m.outcome for m in self.query.moves()}
        cause = self.query.status().cause
        assert "failed" not in ended or self.may_fail, f"{cause}\n{self.local.story()}"
        return ended

    # Comparing ------------------------------------------------------------------------------------

    def await_failure(self) -> str:
        """Until the query has failed; the cause."""
        until(lambda: self.query.status().state == "failed", "the query fails")
        return self.query.status().cause

    def results_on_disk(self) -> pa.Table:
        """What every processor has written down, whoever lives."""
        parts = [self.schema.empty_table()]
        for name in self.local.names:
            folder = self.local.data_dir / name / "results" / self.query.name / name
            parts += [pq.read_table(f) for f in sorted(folder.glob("segment-*.parquet"))]
        return pa.concat_tables(parts)

    def rows_logged(self) -> int:
        """Results that the cluster hands out."""
        return self.query.results().to_arrow().num_rows

    def rows_found(self) -> int:
        """Results in the logs of all processors; asks no manager."""
        logs = [LogStatus(p, p, address, self.run, 0) for p, address in self.addresses.items()]
        read = Results(
            self.query.name,
            self.schema,
            (logs, False),
            self.local.cluster._channels,
            offsets={},
            look=None,
        )
        return read.to_arrow().num_rows

    def check_sub_bag(self) -> int:
        """The results so far are among the results of all rows; their number."""
        found = self.results_on_disk()
        _, extra = self._differences(found, self.tables)
        assert extra == 0, f"{extra} results that nobody asked for"
        return found.num_rows

    def check_so_far(self) -> None:
        """What is joined so far is the join of what was fed, nothing having been spilled."""
        self.query.wait(WAIT_S)
        try:
            found = self.query.results().to_arrow()
        except Unreachable:  # by a connection from before a cut; the next one is new
            found = self.query.results().to_arrow()
        self.check(found)

    def check_closed(self, folder: Path) -> int:
        """Close the query: run and clean-up together are the join. How much the clean-up made."""
        self.query.close(WAIT_S)
        cleaned = self.query.cleanup(folder, master="local")
        files = [pq.read_table(f, partitioning=None) for f in sorted(folder.rglob("*.parquet"))]
        self.check(pa.concat_tables([self.query.results().to_arrow(), *files]))
        return cleaned.results

    def check(self, found: pa.Table) -> None:
        """These are the results of all rows that were routed."""
        left, right = (f.table.slice(0, f.rows_routed) for f in self.feeds)
        assert self._differences(found, (left, right)) == (0, 0), "(missing, too many)"

    def _differences(self, found: pa.Table, tables: tuple[pa.Table, pa.Table]) -> tuple[int, int]:
        sql = PAIR_SQL.format(left="a", right="b")
        with duckdb.connect() as connection:
            for name, table in {"a": tables[0], "b": tables[1], "found": found}.items():
                connection.register(name, table)
            counts = connection.execute(
                f"""SELECT (SELECT count(*) FROM (({sql}) EXCEPT ALL (FROM found))),
                    (SELECT count(*) FROM ((FROM found) EXCEPT ALL ({sql})))"""
            ).fetchone()
        assert counts is not None
        return int(counts[0]), int(counts[1])


class Feeding:
    """One stream's rows, in small batches, as far as they are allowed to flow."""

    def __init__(self, stream: Stream, table: pa.Table) -> None:
        self.table = table
        self.rows_routed = 0
        self._stream = stream
        self._allowed = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def allow(self, share: float) -> None:
        """Let so much of the table flow."""
        with self._changed:
            self._allowed = round(share * self.table.num_rows)
            assert self._allowed <= self.table.num_rows, "there are not so many rows"
            self._changed.notify_all()

    def routed(self) -> bool:
        """Whether all that was allowed has arrived."""
        return self.rows_routed >= self._allowed

    def end(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the feed hangs"

    def _run(self) -> None:
        with contextlib.suppress(DovetailError):  # a home that died
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or not self.routed())
                    if self._ended:
                        return
                    rows = min(FEED_ROWS, self._allowed - self.rows_routed)
                self.rows_routed += self._stream.send(self.table.slice(self.rows_routed, rows))
