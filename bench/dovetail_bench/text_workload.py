"""W3: rows with text, and keys of which few are hot. Written by DuckDB, as Parquet.

9 M rows of (`k`, two numbers, three texts of 10 to 60 bytes) and 0.6 M of (`k` unique, three
numbers, three texts). Half of the larger's rows are on a hundredth of the keys; a filter keeps 2/9
of the smaller: about 2 M results.
"""

from __future__ import annotations

from pathlib import Path

SALES = 9_000_000
ITEMS = 600_000
HOT_SHARE = 0.01

SQL = """\
SELECT s.k, s.amount, s.price, s.note, s.place, s.buyer, i.name, i.maker, i.weight
FROM sales s JOIN items i ON s.k = i.k
WHERE i.class < 2
"""

_TEXT = "left(repeat(md5(({n} * 3 + {salt})::VARCHAR), 2), 10 + (hash({n} + {salt}) % 51)::INT)"


def write(folder: Path, scale: float = 1.0) -> None:
    """Both streams and `query.sql` below `folder`."""
    import duckdb

    items, sales = int(ITEMS * scale), int(SALES * scale)
    hot = int(items * HOT_SHARE)
    texts = {i: _TEXT.format(n="n", salt=i) for i in range(6)}
    key = f"CASE WHEN n % 2 = 0 THEN hash(n) % {hot} ELSE hash(n) % {items} END"
    with duckdb.connect(config={"threads": 2}) as db:
        for name, columns, rows in (
            (
                "sales",
                f"({key})::BIGINT AS k, n AS amount, n * 0.25::DOUBLE AS price, "
                f"{texts[0]} AS note, {texts[1]} AS place, {texts[2]} AS buyer",
                sales,
            ),
            (
                "items",
                "n AS k, (hash(n + 1) % 9)::BIGINT AS class, n * 0.5::DOUBLE AS weight, "
                f"n * 7 AS stock, {texts[3]} AS name, {texts[4]} AS maker, {texts[5]} AS origin",
                items,
            ),
        ):
            db.execute(
                f"COPY (SELECT {columns} FROM range({rows}) r(n)) "
                f"TO '{folder / f'{name}.parquet'}' (FORMAT parquet)"
            )
    (folder / "query.sql").write_text(SQL, encoding="utf-8")
