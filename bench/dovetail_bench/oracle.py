"""The exact answer by another engine: DuckDB runs the same SQL, and the two bags are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows counted with their multiplicity, in no order."""

    rows: int  # in DuckDB's answer
    missing: int  # in DuckDB's answer, not in ours
    surplus: int  # in ours, not in DuckDB's

    @property
    def equal(self) -> bool:
        """Whether both bags hold the same rows equally often."""
        return self.missing == 0 and self.surplus == 0


def compare(
    output: Path, sql: str, streams: Mapping[str, pa.Table | str], *, memory: str = "4GB"
) -> Comparison:
    """Compare the Parquet files below `output` with what DuckDB says `sql` is.

    A stream is an Arrow table, or text that DuckDB can read FROM, such as `'trades.parquet'`.
    """
    with duckdb.connect(config={"memory_limit": memory}) as db:
        for name, stream in streams.items():
            if isinstance(stream, str):
                db.execute(f'CREATE VIEW "{name}" AS FROM {stream}')
            else:
                db.register(name, stream)
        query = sql.strip().rstrip(";")
        files = f"'{output}/**/*.parquet', hive_partitioning = false"
        there = any(output.rglob("*.parquet"))
        ours = f"FROM read_parquet({files})" if there else f"FROM ({query}) LIMIT 0"
        # One pass: +1 for a row of DuckDB's, −1 for one of ours; whatever is left over differs.
        found = db.execute(
            f"""
            WITH both_sides AS (
                SELECT *, 1 AS dovetail_sign FROM ({query})
                UNION ALL
                SELECT *, -1 FROM ({ours})
            ), balance AS (
                SELECT sum(dovetail_sign) AS n FROM both_sides
                GROUP BY {_columns(db, query)}
            )
            SELECT coalesce(sum(n) FILTER (n > 0), 0), coalesce(-sum(n) FILTER (n < 0), 0)
            FROM balance
            """
        ).fetchone()
        counted = db.execute(f"SELECT count(*) FROM ({query})").fetchone()
    assert found is not None
    assert counted is not None
    return Comparison(rows=int(counted[0]), missing=int(found[0]), surplus=int(found[1]))


def _columns(db: duckdb.DuckDBPyConnection, query: str) -> str:
    names = [row[0] for row in db.execute(f"DESCRIBE {query}").fetchall()]
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)
