"""A cluster from a program: streams to send to, queries to submit, members to look at.

    with dovetail.local(processors=2, memory="256MB") as cluster:  # or connect(url, token)
        trades = cluster.stream("trades", schema)
        prices = cluster.submit("SELECT …", name="prices")
        trades.send(table)
        prices.wait()
        for batch in prices.results(): …

Verbs go to the manager over REST, rows and results between here and the processors over gRPC.
Whatever is refused is raised as the error that the other side raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

import pyarrow as pa

from dovetail import html
from dovetail.admin_calls import AdminCalls
from dovetail.quantities import format_bytes, format_count, parse_bytes
from dovetail.queries import Query
from dovetail.streams import Stream
from dovetail_proto import admin as a
from dovetail_proto.channels import Channels
from dovetail_proto.errors import ConfigError, Domain, Refusal
from dovetail_proto.query import PARTITIONS_DEFAULT
from dovetail_proto.transport import Security


class Cluster:
    """One cluster. Close it, or use it as a context, to let its connections go.

    Made by `dovetail.connect` and `dovetail.local`. Safe in several threads at once; streams are
    for one thread each.
    """

    def __init__(
        self,
        url: str,
        security: Security,
        *,
        policy: str | None = None,
    ) -> None:
        """`policy` is for queries that name none; None: disk with one processor, else lazy-disk."""
        self.admin = AdminCalls(url, security)
        self._channels = Channels(security)
        self._policy = policy
        self._on_close: Callable[[], None] | None = None
        self._queries: list[Query] = []
        self._streams: WeakSet[Stream] = WeakSet()

    @property
    def url(self) -> str:
        """Where its manager's REST answers."""
        return self.admin.url

    def close(self) -> None:
        """Let the connections go; a cluster of `dovetail.local` ends. Twice is no error."""
        for stream in list(self._streams):
            stream.stop_sending()
        for query in self._queries:
            query.stop_reading()
        self._queries.clear()
        self._channels.close()
        self.admin.close()
        ending, self._on_close = self._on_close, None
        if ending is not None:
            ending()

    def ends_with(self, ending: Callable[[], None]) -> None:
        """Have `close` call `ending` too."""
        self._on_close = ending

    def status(self) -> a.ClusterStatus:
        """The manager and everyone who ever joined."""
        return self.admin.get_cluster()

    def leave(self, processor: str) -> a.ProcessorStatus:
        """Move a processor's groups and streams away and let it go; returns when that has begun."""
        return self.admin.leave(processor)

    # Streams --------------------------------------------------------------------------------------

    def stream(self, name: str, schema: pa.Schema | str | Path | None = None) -> Stream:
        """The stream of this name; declared now if it does not exist and a schema is given.

        `schema` is an Arrow schema, or a file or folder to take it from. Refusal if the stream
        exists with another one, or does not exist and none is given.
        """
        known = {s.name: s for s in self.admin.list_streams().streams}
        if name not in known:
            if schema is None:
                return self._stream(self.admin.get_stream(name))  # which refuses
            return self.create_stream(name, schema)
        found = self._stream(known[name])
        if schema is not None and _schema(schema) != found.schema:
            raise Refusal(
                Domain.STREAM,
                f"stream {name!r} exists already, with other columns: "
                + ", ".join(f"{f.name} {f.type}" for f in found.schema),
                remedy="use another name, or leave the schema out",
                reason="exists",
            )
        return found

    def create_stream(
        self, name: str, schema: pa.Schema | str | Path | None = None, *, path: str | Path = ""
    ) -> Stream:
        """Declare a stream; Refusal if the name is taken.

        With `path`, its home reads that file or folder once a query listens, and nobody sends.
        """
        if schema is None and not path:
            raise ConfigError(f"stream {name!r} has no schema", remedy="give one, or a path")
        where = str(Path(path).absolute()) if path and "://" not in str(path) else str(path)
        data = _schema(schema if schema is not None else where).serialize().to_pybytes()
        return self._stream(self.admin.create_stream(name, data, where))

    def streams(self) -> tuple[a.StreamStatus, ...]:
        """All streams, by name."""
        return self.admin.list_streams().streams

    # Queries --------------------------------------------------------------------------------------

    def submit(
        self,
        sql: str,
        *,
        name: str,
        partitions: int = PARTITIONS_DEFAULT,
        policy: str | None = None,
        weights: Sequence[float] = (),
        expected_state: int | str = 0,
        results: str | Path = "",
        counting: bool = False,
        spill: str | Path = "",
        victims: str = "least-productive",
        push_fraction: float | None = None,
        spill_above_ratio: float | None = None,
        inactive_after_s: float | None = None,
        productivity_half_life_s: float | None = None,
        keep_results_s: float | None = None,
        keep_results_bytes: int | str | None = None,
    ) -> Query:
        """Start a query over declared streams; returns when every processor runs it.

        It sees what is sent from then on. `weights` share its groups out, one per processor; by
        default the memory limits do. Results go to the logs that `Query.results` reads, or as
        Parquet files to the folder `results`, or are only counted. `spill` is for state on
        disk, by default where the cluster keeps it. `expected_state` (bytes, or text such as
        "4GB") tells `active-disk` how much may come. The rest says when and what is
        pushed to disk, where None is the cluster's setting; see docs/adaptation.md.

        `keep_results_s` and `keep_results_bytes` say for how long, and how much of each, logs keep
        results; with both, whichever is reached first. 0 keeps everything, None is the cluster's
        setting, which keeps everything unless it was set. While the query runs, whole segments go
        that are older, or that the rest is enough without.

        QueryError if the SQL cannot be planned, Refusal if the name is taken or the query fails at
        once; of domain `busy` if it is submitted and a processor, which the error names, has not
        heard of it.
        """
        size = expected_state
        request = a.Submit(
            name=name,
            sql=sql,
            partitions=partitions,
            weights=tuple(weights),
            policy=policy or self._policy or self._usual_policy(),
            expected_state_bytes=size
            if isinstance(size, int)
            else parse_bytes(size, what="expected_state"),
            results=_place(results),
            counting=counting,
            spill=_place(spill),
            victims=victims,
            push_fraction=push_fraction,
            spill_above_ratio=spill_above_ratio,
            inactive_after_s=inactive_after_s,
            productivity_half_life_s=productivity_half_life_s,
            keep_results_s=keep_results_s,
            keep_results_bytes=parse_bytes(keep_results_bytes, what="keep_results_bytes")
            if isinstance(keep_results_bytes, str)
            else keep_results_bytes,
        )
        self.admin.submit(request)
        return self._query(name)

    def query(self, name: str) -> Query:
        """A query that was submitted before; Refusal if there is none."""
        self.admin.get_query(name)
        return self._query(name)

    def queries(self) -> tuple[a.QueryStatus, ...]:
        """All queries, by name, also those that have ended."""
        return self.admin.list_queries().queries

    # Parts ----------------------------------------------------------------------------------------

    def _query(self, name: str) -> Query:
        made = Query(name, self.admin, self._channels)
        self._queries.append(made)
        return made

    def _stream(self, status: a.StreamStatus) -> Stream:
        made = Stream(status, self.admin, self._channels)
        self._streams.add(made)
        return made

    def _usual_policy(self) -> str:
        alive = [p for p in self.status().processors if p.state == "alive"]
        return "disk" if len(alive) <= 1 else "lazy-disk"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Cluster({self.url!r})"

    def _repr_html_(self) -> str:
        s = self.status()
        processors = html.grid(
            ("processor", "state", "memory", "of", "groups", "per second"),
            [
                (
                    p.name,
                    p.state,
                    format_bytes(p.used_bytes),
                    format_bytes(p.memory_limit_bytes),
                    p.groups,
                    format_count(round(p.rate)),
                )
                for p in s.processors
            ],
        )
        queries = html.grid(
            ("query", "state", "results"),
            [(q.name, q.state, format_count(q.results)) for q in self.queries()],
        )
        return html.facts(f"cluster at {self.url}", {"epoch": s.epoch}) + processors + queries


def _schema(given: pa.Schema | str | Path) -> pa.Schema:
    """As streams have it: no encodings, no metadata."""
    from dovetail_processor.sources import open_source
    from dovetail_processor.sources.plain import plain_schema

    return plain_schema(given) if isinstance(given, pa.Schema) else open_source(given).schema


def _place(given: str | Path) -> str:
    """A folder as every process sees it; URIs as they are."""
    text = str(given)
    return text if not text or "://" in text else str(Path(text).absolute())
