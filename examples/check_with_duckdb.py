"""Compare results with DuckDB: python examples/check_with_duckdb.py QUERY.sql INPUTS RESULTS…

INPUTS is a folder with a folder of Parquet files for each stream; RESULTS are folders of Parquet
files that are the join together. Ends with 1 if a result is missing or there once too often.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb


def main() -> int:
    """Compare, and say how it went; the exit code."""
    query, inputs, *results = sys.argv[1:]
    sql = Path(query).read_text(encoding="utf-8")
    with duckdb.connect() as connection:
        for stream in sorted(p for p in Path(inputs).iterdir() if p.is_dir()):
            connection.read_parquet(f"{stream}/*.parquet").create_view(stream.name)
        files = [str(p) for folder in results for p in sorted(Path(folder).rglob("*.parquet"))]
        connection.read_parquet(files, hive_partitioning=False).create_view("found")
        wanted, missing, surplus = connection.sql(
            f"""SELECT (SELECT count(*) FROM ({sql})),
                (SELECT count(*) FROM (({sql}) EXCEPT ALL (FROM found))),
                (SELECT count(*) FROM ((FROM found) EXCEPT ALL ({sql})))"""
        ).fetchall()[0]
    print(f"DuckDB: {wanted:,} results; missing here: {missing:,}; surplus here: {surplus:,}")
    return 0 if wanted and not missing and not surplus else 1


if __name__ == "__main__":
    sys.exit(main())
