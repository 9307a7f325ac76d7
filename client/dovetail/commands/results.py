"""`dovetail results`: the results of a query of the cluster, as they are or as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from dovetail.commands.cluster_options import (
    AsJson,
    QueryName,
    Url,
    open_cluster,
    print_json,
    telling_warnings,
)
from dovetail.quantities import format_count
from dovetail_proto.errors import ConfigError, OutputError

if TYPE_CHECKING:
    import pyarrow as pa

    from dovetail.query_results import Results

Format = Literal["table", "jsonl", "arrow", "parquet"]

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".parquet": "parquet",
}

TABLE_ROWS = 50
"""A screenful; the other formats have everything."""


def results(
    name: QueryName,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until the query is closed.")
    ] = False,
    output: Annotated[
        str,
        typer.Option(metavar="FILE|-", help="A new file; - is standard output."),
    ] = "-",
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="By default what the file's suffix says; a table on a terminal, else jsonl.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="ROWS", help="At most so many rows.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOG",
            help="Only this one of the logs that `dovetail status` names; repeat it for several.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Read what a query has found so far, from all processors.

    With --json and a file: how many rows; with --json alone: one array of rows.

    Example: dovetail results prices --follow --format jsonl | head
    """
    chosen = form or _default_format(output, as_json=as_json)
    if output == "-" and chosen == "parquet":
        raise ConfigError("Parquet needs a file", remedy="name one with --output FILE.parquet")
    if output != "-" and chosen == "table":
        raise ConfigError("a table is for people", remedy="choose --format jsonl, arrow or parquet")
    with (
        telling_warnings(),
        open_cluster(url) as cluster,
        cluster.query(name).results(follow=follow, logs=log or None) as read,
    ):
        batches = _limited(read, limit)
        if output != "-":
            rows = _to_file(Path(output), chosen, read.schema, batches)
            if as_json:
                print_json({"query": name, "rows": rows, "output": output})
            else:
                print(f"{format_count(rows)} rows in {output}")
        elif as_json:
            _print_array(batches)
        elif chosen == "table":
            _print_table(read, batches, capped=limit is None)
        else:
            _write(sys.stdout.buffer, chosen, read.schema, batches)


def _default_format(output: str, *, as_json: bool) -> Format:
    if output == "-":
        return "table" if sys.stdout.isatty() and not as_json else "jsonl"
    suffix = Path(output).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"--output {output!r}: its suffix names no format",
            remedy="add --format jsonl, arrow or parquet",
        )
    return SUFFIXES[suffix]


def _limited(read: Results, limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in read:
        part = batch if left is None else batch.slice(0, left)
        yield part
        if left is not None:
            left -= part.num_rows
            if left == 0:
                return


def _to_file(path: Path, form: Format, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    try:
        with path.open("xb") as file:
            return _write(file, form, schema, batches)
    except FileExistsError as e:
        raise OutputError(f"{str(path)!r} exists already", remedy="name a new file") from e
    except OSError as e:
        raise OutputError(
            f"{str(path)!r} cannot be written: {e.strerror}", remedy="name another file"
        ) from e


def _write(
    file: BinaryIO, form: Format, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> int:
    """All batches; how many rows they were."""
    rows = 0
    with ExitStack() as stack:
        if form == "jsonl":
            from dovetail_manager.admin.rest.rows import json_lines

            for batch in batches:
                rows += batch.num_rows
                for lines in json_lines(batch):
                    file.write(lines)
                file.flush()
            return rows
        writer: Any
        if form == "arrow":
            import pyarrow as pa

            writer = stack.enter_context(pa.ipc.new_stream(file, schema))
        else:
            import pyarrow.parquet as pq

            writer = stack.enter_context(pq.ParquetWriter(file, schema))
        for batch in batches:
            rows += batch.num_rows
            writer.write_batch(batch)
    file.flush()
    return rows


def _print_array(batches: Iterator[pa.RecordBatch]) -> None:
    from dovetail_manager.admin.rest.rows import json_lines

    sys.stdout.write("[")
    between = ""
    for batch in batches:
        for lines in json_lines(batch):
            sys.stdout.write(between + ",".join(lines.decode().splitlines()))
            between = ","
    sys.stdout.write("]\n")


def _print_table(read: Results, batches: Iterator[pa.RecordBatch], *, capped: bool) -> None:
    from dovetail.tables import console, table

    rows: list[list[object]] = []
    more = False
    for batch in batches:
        for row in batch.to_pylist():
            if capped and len(rows) == TABLE_ROWS:
                more = True
                break
            rows.append(["" if value is None else value for value in row.values()])
        if more:
            break
    out = console()
    out.print(table(read.schema.names, rows, out.width) if rows else "no results yet")
    if more:
        out.print("… and more; --limit ROWS shows so many, --format jsonl all")
