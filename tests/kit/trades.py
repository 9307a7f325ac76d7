"""Three small streams that share a key, for tests of whole commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from dovetail.stream_files import write_stream

SQL = """\
SELECT t.symbol, t.trade_id, t.price, q.bid, q.venue, r.rating, t.price - q.bid AS over_bid
FROM trades t JOIN quotes q ON t.symbol = q.symbol JOIN reviews r ON r.symbol = q.symbol
WHERE r.rating > 1 AND t.price > q.bid
"""


def streams(rows: int = 4_000, symbols: int = 700, seed: int = 1) -> dict[str, pa.Table]:
    """Trades, quotes and reviews; some symbols are null, and some occur in one stream only."""
    rng = np.random.default_rng(seed)

    def symbol(rows: int, first: int) -> pa.Array:
        drawn = rng.integers(first, first + symbols, rows)
        nulls = rng.random(rows) < 0.01
        return pa.array([f"sym-{i}" for i in drawn], mask=nulls)

    return {
        "trades": pa.table(
            {
                "symbol": symbol(rows, 0),
                "trade_id": np.arange(rows),
                "price": np.round(rng.uniform(1, 100, rows), 2),
                "note": pa.array(["unused " * 5] * rows),
            }
        ),
        "quotes": pa.table(
            {
                "symbol": symbol(rows, symbols // 10),
                "bid": np.round(rng.uniform(1, 100, rows), 2),
                "venue": pa.array(["XNYS", None, "ARCX"]).take(pa.array(rng.integers(0, 3, rows))),
            }
        ),
        "reviews": pa.table(
            {"symbol": symbol(rows // 2, 0), "rating": rng.integers(1, 6, rows // 2)}
        ),
    }


def write_all(tables: dict[str, pa.Table], folder: Path, *suffixes: str) -> list[str]:
    """Write each stream in the next of `suffixes`; return the words that declare them."""
    words = []
    for i, (name, table) in enumerate(tables.items()):
        path = folder / f"{name}.{suffixes[i % len(suffixes)]}"
        write_stream(table.to_reader(max_chunksize=1_000), path)
        words += ["--input", f"{name}={path}"]
    return words
