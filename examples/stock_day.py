"""A day of stock trades, quotes and reviews in small: python examples/stock_day.py FOLDER [ROWS].

A folder for each stream, with a Parquet file for the morning and one for the afternoon; the streams
share the column `symbol`. The same call writes the same rows. Some symbols are traded far more
often than others, as in life, so the state of a join is uneven.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SYMBOLS = 50_000
BUSY_SHARE = 0.1
"""So many of all rows are about one symbol in twenty."""
MORNING_SHARE = 1 / 3


def day(rows: int, seed: int = 4) -> dict[str, pa.Table]:
    """Trades, quotes and reviews, `rows` of each."""
    rng = np.random.default_rng(seed)
    names = pa.array([f"{i:05d}.XD" for i in range(SYMBOLS)])
    venues = pa.array(["XNYS", "XNAS", "ARCX", "BATS"])

    def symbols() -> pa.Array:
        any_of = rng.integers(0, SYMBOLS, rows)
        busy = rng.integers(0, SYMBOLS // 20, rows)
        return names.take(pa.array(np.where(rng.random(rows) < BUSY_SHARE, busy, any_of)))

    def prices() -> np.ndarray:
        return np.round(rng.uniform(10, 100, rows), 2)

    return {
        "trades": pa.table({"symbol": symbols(), "trade_id": np.arange(rows), "price": prices()}),
        "quotes": pa.table(
            {
                "symbol": symbols(),
                "bid": prices(),
                "venue": venues.take(pa.array(rng.integers(0, 4, rows))),
            }
        ),
        "reviews": pa.table({"symbol": symbols(), "rating": rng.integers(1, 6, rows)}),
    }


def main() -> None:
    """Write the files."""
    folder, *rest = sys.argv[1:]
    rows = int(rest[0]) if rest else 150_000
    noon = round(rows * MORNING_SHARE)
    for name, table in day(rows).items():
        stream = Path(folder) / name
        stream.mkdir(parents=True, exist_ok=True)
        for part, of_day in {"1-morning": table[:noon], "2-afternoon": table[noon:]}.items():
            pq.write_table(of_day, stream / f"{part}.parquet", row_group_size=20_000)
    print(f"{rows:,} rows each of trades, quotes and reviews in {folder}/")


if __name__ == "__main__":
    main()
