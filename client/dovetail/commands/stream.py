"""`dovetail stream …` and `dovetail feed`: declare streams, send files to them, end them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.commands.cluster_options import (
    AsJson,
    StreamName,
    Url,
    open_cluster,
    print_json,
    telling_warnings,
)
from dovetail.quantities import format_count
from dovetail.tables import print_table
from dovetail_proto.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from dovetail_processor.sources import FileSource

stream = typer.Typer(help="Declare, end, drop and list streams.", no_args_is_help=True)

SLICES_PER_S = 10
"""With a rate, rows go out in so many portions per second: smooth, and cheap."""

LINE_S = 5.0
"""A log file wants a line now and then."""

_RATE = re.compile(r"(\d[\d_]*)(?:/s)?")


@stream.command("create")
def create(
    name: StreamName,
    *,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Take the columns from this Parquet, CSV, JSON lines or Arrow file.",
            show_default=False,
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Have the cluster read this file or folder once a query listens; nobody feeds it.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Declare a stream, once; queries that are submitted later may name it.

    Example: dovetail stream create trades --schema trades.parquet
    """
    if schema is None and path is None:
        raise ConfigError(
            f"stream {name!r} has no schema", remedy="give --schema FILE, or --path to read from"
        )
    with open_cluster(url) as cluster:
        status = cluster.create_stream(name, schema, path=path or "").status()
    if as_json:
        print_json(status)
    else:
        print(f"stream {name} at home on {status.home}")


@stream.command("end")
def end(name: StreamName, *, url: Url = None, as_json: AsJson = False) -> None:
    """Say that nothing more will be sent; ending it twice is no error.

    Example: dovetail stream end trades
    """
    with open_cluster(url) as cluster:
        status = cluster.stream(name).end()
    if as_json:
        print_json(status)
    else:
        print(f"stream {name} has ended")


@stream.command("drop")
def drop(name: StreamName, *, url: Url = None, as_json: AsJson = False) -> None:
    """Forget a stream that no query reads, so that its name is free.

    Example: dovetail stream drop trades
    """
    with open_cluster(url) as cluster:
        status = cluster.stream(name).drop()
    if as_json:
        print_json(status)
    else:
        print(f"stream {name} is forgotten")


@stream.command("list")
def list_streams(*, url: Url = None, as_json: AsJson = False) -> None:
    """List all streams.

    Example: dovetail stream list --json
    """
    with open_cluster(url) as cluster:
        streams = cluster.streams()
    if as_json:
        print_json(streams)
        return
    print_table(
        ("stream", "rows", "ended", "home", "read from"),
        [(s.name, s.rows, "yes" if s.ended else "no", s.home, s.path) for s in streams],
        empty="no streams; declare one with `dovetail stream create NAME --schema FILE`",
    )


def feed(
    name: StreamName,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="Parquet, CSV, JSON lines or Arrow file, or a folder."),
    ],
    *,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS/s", help="No faster than this, for example 100000/s.", show_default=False
        ),
    ] = None,
    end_after: Annotated[
        bool, typer.Option("--end", help="End the stream when all is sent.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send a file's rows to a stream; returns when every row is on its way to the queries.

    Each row is taken in once, also when the connection breaks meanwhile. A slow query slows this.

    Example: dovetail feed trades trades.parquet --rate 100000/s
    """
    import pyarrow as pa

    from dovetail_processor.sources import open_source

    rows_per_s = None if rate is None else parse_rate(rate)
    source = open_source(path)
    began_s = time.monotonic()
    with open_cluster(url) as cluster:
        target = cluster.stream(name)
        batches = _batches(source, rows_per_s)
        with _progress(name, source.rows_total, quiet=as_json) as show, telling_warnings():
            reader = pa.RecordBatchReader.from_batches(source.schema, batches)
            with saying_where_it_stopped(show) as tell:
                rows = target.send(reader, tell, rows=source.rows_total)
        if end_after:
            target.end()
    seconds = time.monotonic() - began_s
    if as_json:
        print_json({"stream": name, "rows": rows, "seconds": seconds})
        return
    print(f"{format_count(rows)} rows in {seconds:.1f} s ({format_count(round(rows / seconds))}/s)")


@contextmanager
def saying_where_it_stopped(show: Callable[[int], None]) -> Iterator[Callable[[int], None]]:
    """`show`, told the rows that are taken in so far; Ctrl-C then says how far it was."""
    taken = 0

    def tell(rows: int) -> None:
        nonlocal taken
        taken = rows
        show(rows)

    try:
        yield tell
    except KeyboardInterrupt:
        sys.stderr.write(
            f"\nstopped: at least {format_count(taken)} rows are taken in, and what was on its way "
            "may be; to feed the file again, submit the query again first\n"
        )
        raise


def parse_rate(text: str) -> int:
    """`100000/s` or `100000`; ConfigError for anything else."""
    match = _RATE.fullmatch(text.strip())
    rows = int(match[1].replace("_", "")) if match else 0
    if rows < 1:
        raise ConfigError(f"--rate {text!r} is no rate", remedy="write for example 100000/s")
    return rows


def _batches(source: FileSource, rows_per_s: int | None) -> Iterator[pa.RecordBatch]:
    from dovetail.rows import CUT_BYTES, CUT_ROWS

    portion = CUT_ROWS if rows_per_s is None else max(1, rows_per_s // SLICES_PER_S)
    read = source.batches(
        source.schema.names, batch_rows=min(CUT_ROWS, portion), batch_bytes=CUT_BYTES
    )
    began_s, rows = time.monotonic(), 0
    for batch in read:
        if rows_per_s is not None:
            ahead_s = rows / rows_per_s - (time.monotonic() - began_s)
            if ahead_s > 0:
                time.sleep(ahead_s)
        rows += batch.num_rows
        yield batch


@contextmanager
def _progress(name: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line now and then elsewhere; nothing if `quiet`."""
    if quiet or not sys.stderr.isatty():
        said_s = time.monotonic()

        def line(rows: int) -> None:
            nonlocal said_s
            if not quiet and time.monotonic() - said_s > LINE_S:
                said_s = time.monotonic()
                sys.stderr.write(f"feed {name}: {format_count(rows)} rows\n")

        yield line
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"feed {name}", total=total)
        yield lambda rows: bar.update(task, completed=rows)
