"""`dovetail generate`: streams whose join behaves as an experiment wants it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from dovetail_proto.errors import ConfigError, OutputError

Kind = Literal["ranges", "uniform", "hot-key"]
Format = Literal["parquet", "csv", "jsonl", "arrow"]


def generate(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="New or empty folder for streams and query.")
    ],
    *,
    kind: Annotated[Kind, typer.Option(help="How keys are chosen.")] = "ranges",
    streams: Annotated[int, typer.Option(min=2, max=64, help="Number of streams.")] = 3,
    rows: Annotated[int, typer.Option(min=1, help="Rows per stream.")] = 300_000,
    tuple_range: Annotated[
        int, typer.Option(min=1, help="ranges: rows after which the same keys come again.")
    ] = 30_000,
    join_ratio: Annotated[
        str,
        typer.Option(
            metavar="R[,R…]",
            help="ranges: how often a key comes per range, per class of partitions.",
        ),
    ] = "1",
    distinct: Annotated[
        int, typer.Option(min=2, help="uniform, hot-key: number of distinct keys.")
    ] = 300_000,
    partitions: Annotated[
        int, typer.Option(min=1, help="ranges: partitions that classes are made of.")
    ] = 300,
    pad_bytes: Annotated[int, typer.Option(min=0, help="Bytes of random text in each row.")] = 0,
    file_format: Annotated[Format, typer.Option("--format", help="What to write.")] = "parquet",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same rows.")] = 0,
) -> None:
    """Write streams s0, s1, … and their query; the same flags give the same rows.

    `ranges` is the generator of the D-CAPE paper: with a tuple range of 30 000 and join ratio
    4,2,1, a third of the partitions gets each of its keys four times within every 30 000 rows, a
    third twice, a third once. `hot-key` gives half of the first stream to one key.
    """
    from dovetail.generator import HotKeyWorkload, RangeWorkload, UniformWorkload, Workload
    from dovetail.stream_files import write_stream

    workload: Workload
    if kind == "ranges":
        workload = RangeWorkload(
            streams, rows, pad_bytes, seed, tuple_range, parse_ratios(join_ratio), partitions
        )
    elif kind == "uniform":
        workload = UniformWorkload(streams, rows, pad_bytes, seed, distinct)
    else:
        workload = HotKeyWorkload(streams, rows, pad_bytes, seed, distinct)
    _make_empty_folder(directory)
    for i, name in enumerate(workload.names):
        write_stream(workload.reader(i), directory / f"{name}.{file_format}")
    query = directory / "query.sql"
    query.write_text(workload.sql, encoding="utf-8")
    inputs = " ".join(
        f"--input {name}={directory / f'{name}.{file_format}'}" for name in workload.names
    )
    print(f"wrote {streams} streams of {rows:,} rows to {directory}; join them with:")
    print(f"dovetail run {query} {inputs} --output none --memory 64MB")


def parse_ratios(text: str) -> tuple[int, ...]:
    """`4,2,1` as numbers."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ConfigError(
            f"--join-ratio {text!r} is not a list of whole numbers",
            remedy="write for example 4,2,1",
        )
    return tuple(int(word) for word in text.split(","))


def _make_empty_folder(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        filled = any(directory.iterdir())
    except OSError as e:
        raise OutputError(
            f"cannot make folder {str(directory)!r}: {e.strerror}", remedy="name another place"
        ) from e
    if filled:
        raise OutputError(
            f"folder {str(directory)!r} is not empty", remedy="name a new or empty folder"
        )
