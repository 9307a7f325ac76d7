"""`dovetail run`, as a user types it: the exact join in every format, and a report to rely on."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_bench.oracle import compare
from dovetail_proto.cluster_memory import cluster_shares, smallest_limit
from dovetail_proto.partitioning import canonical_keys, partition_ids
from kit.cli import dovetail
from kit.trades import SQL, streams, write_all

TABLES = streams()
LARGE = streams(rows=60_000, symbols=9_000)

SMALL = ("--memory", "4MB", "--partitions", "40", "--cleanup", "local")
"""A limit that LARGE exceeds three times; few groups, so that pushes are quick."""

INTERLEAVED = ("--read", "interleaved")
"""All files at once: more is held than where one is read after the other."""

REPORTED = {
    "rows_in": dict,
    "results_run": int,
    "results_cleanup": int,
    "checksum": int,
    "pushes": int,
    "moves": int,
    "spilled_bytes": int,
    "spilled_groups": int,
    "peak_state_bytes": list,
    "peak_rss_bytes": list,
    "memory_limit_bytes": list,
    "seconds_run": float,
    "seconds_cleanup": float,
    "seconds_spark_start": float,
    "output": str,
}
"""What scripts rely on: names and types of the report."""


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """The query in a file."""
    path = tmp_path / "prices.sql"
    path.write_text(SQL)
    return path


@pytest.mark.parametrize(
    "formats",
    [("parquet",), ("csv",), ("jsonl",), ("arrow",), ("parquet", "csv", "jsonl")],
    ids="+".join,
)
def test_every_format_gives_the_exact_join(
    formats: tuple[str, ...], query: Path, tmp_path: Path
) -> None:
    """Compared with DuckDB on the tables that the files were written from."""
    out = tmp_path / "out"
    inputs = write_all(TABLES, tmp_path, *formats)
    done = dovetail("run", query, *inputs, "--output", out, "--memory", "64MB", "--json")
    assert done.code == 0, done.err
    report = done.json
    compared = compare(out, SQL, TABLES)
    assert compared.equal
    assert report["results_run"] + report["results_cleanup"] == compared.rows > 1000


def test_state_beyond_memory_gives_the_exact_join(query: Path, tmp_path: Path) -> None:
    """Pushes happen, the clean-up finds what they held back, and nothing temporary is left."""
    out = tmp_path / "out"
    inputs = write_all(LARGE, tmp_path, "parquet")
    before = set(tmp_path.iterdir())
    done = dovetail("run", query, *inputs, "--output", out, *SMALL, "--json")
    assert done.code == 0, done.err
    report = done.json
    assert report["pushes"] > 1
    assert report["results_cleanup"] > 0
    assert report["spilled_bytes"] > 0
    assert 0 < report["spilled_groups"] <= 40
    assert max(report["peak_state_bytes"]) <= 4_000_000
    assert compare(out, SQL, LARGE).equal
    assert pq.read_table(out / "phase=cleanup").num_rows == report["results_cleanup"]
    assert pq.read_table(out / "phase=run").num_rows == report["results_run"]
    assert set(tmp_path.iterdir()) == before | {out}


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_memory_and_give_the_exact_join(
    threads: int, query: Path, tmp_path: Path
) -> None:
    """Each has files of results and a spill store; the clean-up takes all stores together."""
    out = tmp_path / "out"
    inputs = write_all(LARGE, tmp_path, "parquet")
    flags = [*SMALL[2:], "--memory", f"{4 * threads}MB", "--threads", str(threads), *INTERLEAVED]
    done = dovetail("run", query, *inputs, "--output", out, *flags, "--json")
    assert done.code == 0, done.err
    assert done.json["pushes"] > 1
    assert done.json["peak_state_bytes"][0] <= 4_000_000 * threads
    assert compare(out, SQL, LARGE).equal
    writers = {f.stem.rpartition("-")[0] for f in (out / "phase=run").iterdir()}
    assert writers == {f"prices-{n}" for n in range(threads)}


def test_a_thread_uses_the_memory_that_its_neighbour_does_not_need(tmp_path: Path) -> None:
    """All keys are of one of two groups: half of the memory would be too little for them."""
    keys = canonical_keys([pa.array(range(1_300_000))], (pa.int64(),)).hashes
    chosen = pa.array(np.flatnonzero(partition_ids(keys, 2) == 0))
    tables = {"l": pa.table({"k": chosen}), "r": pa.table({"k": chosen})}
    inputs = write_all(tables, tmp_path, "parquet")
    flags = ["--memory", "64MB", "--threads", "2", "--partitions", "2", "--policy", "none"]
    sql = "SELECT l.k FROM l JOIN r ON l.k = r.k"
    done = dovetail("run", sql, *inputs, "--output", "none", *flags, "--json")
    assert done.code == 0, done.err
    assert done.json["results_run"] == len(chosen)
    each = cluster_shares(32_000_000, inputs=2, partitions=2, hosted=1, peers=2)
    assert done.json["peak_state_bytes"][0] > each.shares.state


def test_a_thread_whose_rows_come_late_still_has_its_minimum(tmp_path: Path) -> None:
    """Rows of the first thread's groups come first; it fills what the other does not need yet."""
    partitions, rng = 1500, np.random.default_rng(5)
    tables = {}
    for name in ("l", "r"):
        keys = rng.integers(0, 200_000, 300_000)
        hashes = canonical_keys([pa.array(keys)], (pa.int64(),)).hashes
        late = partition_ids(hashes, partitions) % 2
        tables[name] = pa.table({"k": keys[np.argsort(late, kind="stable")]})
    inputs = write_all(tables, tmp_path, "parquet")
    flags = ["--threads", "2", "--partitions", str(partitions), "--cleanup", "local", *INTERLEAVED]
    sql = "SELECT l.k FROM l JOIN r ON l.k = r.k"
    out = tmp_path / "out"
    done = dovetail("run", sql, *inputs, "--output", out, "--memory", "30MB", *flags, "--json")
    assert done.code == 0, done.err
    assert done.json["pushes"] > 0
    assert compare(out, sql, tables).equal


def test_by_default_there_are_as_few_threads_as_so_many_partitions_need(tmp_path: Path) -> None:
    """What is enough for one thread is not refused because the machine has more cores."""
    inputs = write_all(TABLES, tmp_path, "parquet")
    flags = ["--output", "none", "--partitions", "12000", "--json"]
    alone = smallest_limit(inputs=len(TABLES), partitions=12000, hosted=len(TABLES), peers=1)
    done = dovetail("run", SQL, *inputs, *flags, "--memory", str(alone))
    assert done.code == 0, done.err


def test_threads_that_memory_does_not_suffice_for_are_refused(query: Path, tmp_path: Path) -> None:
    """The error names both, and what would do; by default there are fewer."""
    inputs = write_all(TABLES, tmp_path, "parquet")
    flags = ["--output", "none", "--memory", "8MB", "--json"]
    done = dovetail("run", query, *inputs, *flags, "--threads", "64")
    assert done.code != 0
    error = done.json["error"]
    assert "8,000,000 bytes is too small for 64 threads" in error["message"]
    fewer = error["remedy"].split()[-2]
    assert dovetail("run", query, *inputs, *flags, "--threads", fewer).code == 0
    assert dovetail("run", query, *inputs, *flags).code == 0


@pytest.mark.parametrize("limit", [("--memory", "256MB"), SMALL], ids=["much", "little"])
def test_the_largest_file_is_read_last_and_not_kept(limit: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever the order, the join is exact; by default no row of the largest is held."""
    large = pa.concat_tables([LARGE["trades"]] * 4)
    tables = {"large": large, "small": LARGE["reviews"].slice(0, 15_000)}
    sql = "SELECT l.symbol, l.price, s.rating FROM large l JOIN small s ON l.symbol = s.symbol"
    inputs = write_all(tables, tmp_path, "parquet")
    held = {}
    for read in ("smallest-first", "interleaved"):
        out = tmp_path / read
        flags = () if read == "smallest-first" else ("--read", read)
        done = dovetail("run", sql, *inputs, "--output", out, *limit, *flags, "--json")
        assert done.code == 0, done.err
        assert compare(out, sql, tables).equal
        held[read] = max(done.json["peak_state_bytes"])
    assert held["smallest-first"] < 16 * large.num_rows


def test_the_file_whose_rows_take_the_most_memory_is_read_last(tmp_path: Path) -> None:
    """Not the one of the most rows: a few wide ones may take more than many narrow ones."""
    keys = np.arange(20_000)
    wide = pa.table({"k": keys[:10_000]} | {f"c{i}": keys[:10_000] * i for i in range(60)})
    tables = {"wide": wide, "narrow": pa.table({"k": keys})}
    inputs = write_all(tables, tmp_path, "parquet")
    sql = "SELECT w.*, n.k AS n FROM wide w JOIN narrow n ON w.k = n.k"
    out = tmp_path / "out"
    done = dovetail("run", sql, *inputs, "--output", out, "--memory", "64MB", "--json")
    assert done.code == 0, done.err
    assert compare(out, sql, tables).equal
    assert max(done.json["peak_state_bytes"]) < wide.nbytes // 2


def test_decimal_prices_join_equal_doubles_also_through_the_spill_store(tmp_path: Path) -> None:
    """Every n/100 is found, in the run and in the clean-up, as DuckDB finds it."""
    cents = [n % 20_000 for n in range(60_000)]
    tables = {
        "a": pa.table({"k": pa.array([Decimal(n).scaleb(-2) for n in cents], pa.decimal128(9, 2))}),
        "b": pa.table({"k": pa.array([n / 100 for n in cents]), "n": range(len(cents))}),
    }
    sql = "SELECT a.k, b.n FROM a JOIN b ON a.k = b.k"
    (tmp_path / "q.sql").write_text(sql)
    inputs = write_all(tables, tmp_path, "parquet")
    out = tmp_path / "out"
    done = dovetail("run", tmp_path / "q.sql", *inputs, "--output", out, *SMALL, "--json")
    assert done.code == 0, done.err
    assert done.json["pushes"] > 0
    compared = compare(out, sql, tables)
    assert compared.equal
    assert compared.rows == 3 * len(cents)


def test_the_report_has_every_field_that_scripts_rely_on(query: Path, tmp_path: Path) -> None:
    """One JSON object on standard output and nothing else there."""
    inputs = write_all(TABLES, tmp_path, "parquet")
    done = dovetail("run", query, *inputs, "--output", "none", "--memory", "64MiB", "--json")
    assert done.code == 0, done.err
    report = done.json
    for name, kind in REPORTED.items():
        assert isinstance(report[name], kind), name
    assert report["rows_in"] == {name: t.num_rows for name, t in TABLES.items()}
    assert report["memory_limit_bytes"] == [64 << 20]
    assert len(report["peak_rss_bytes"]) == len(report["peak_state_bytes"]) == 1
    assert report["moves"] == 0
    assert report["output"] == "none"
    assert report["spill_dir"] is None


def test_counting_only_gives_the_same_checksum_whatever_the_limit(
    query: Path, tmp_path: Path
) -> None:
    """`--output none` writes nothing; the checksum does not depend on order or phase."""
    inputs = write_all(LARGE, tmp_path, "parquet")
    reports = []
    for flags in (("--memory", "256MB"), SMALL):
        done = dovetail("run", query, *inputs, "--output", "none", *flags, "--json")
        assert done.code == 0, done.err
        reports.append(done.json)
    large, small = reports
    assert large["pushes"] == 0 < small["pushes"]
    assert large["checksum"] == small["checksum"]
    total = large["results_run"]
    assert small["results_run"] + small["results_cleanup"] == total
    written = tmp_path / "out"
    done = dovetail("run", query, *inputs, "--output", written, *SMALL, "--json")
    assert done.json["checksum"] == large["checksum"]


@pytest.mark.parametrize(
    "choice",
    [
        ("--victims", "most-productive"),
        ("--victims", "least-recent"),
        ("--victims", "random"),
        ("--productivity-half-life-s", "0.05"),
    ],
    ids=" ".join,
)
def test_every_choice_of_victims_gives_the_exact_join(
    choice: tuple[str, str], query: Path, tmp_path: Path
) -> None:
    """They differ in speed only."""
    inputs = write_all(LARGE, tmp_path, "parquet")
    out = tmp_path / "out"
    flags = [*choice, "--push-fraction", "50%", *SMALL]
    done = dovetail("run", query, *inputs, "--output", out, *flags, "--json")
    assert done.code == 0, done.err
    assert done.json["pushes"] > 0
    assert compare(out, SQL, LARGE).equal


def test_a_folder_of_files_is_one_stream(query: Path, tmp_path: Path) -> None:
    """Files of one format and schema, in the order of their names."""
    folder = tmp_path / "trades"
    folder.mkdir()
    trades = TABLES["trades"]
    for i in range(4):
        pq.write_table(trades.slice(i * 1_000, 1_000), folder / f"{i}.parquet")
    inputs = write_all({k: v for k, v in TABLES.items() if k != "trades"}, tmp_path, "csv")
    out = tmp_path / "out"
    done = dovetail("run", query, "--input", f"trades={folder}", *inputs, "--output", out)
    assert done.code == 0, done.err
    assert compare(out, SQL, TABLES).equal


def test_a_stream_joined_with_itself_is_read_under_both_aliases(tmp_path: Path) -> None:
    """And counted under both in `rows_in`; the query may come from standard input."""
    sql = "SELECT a.trade_id, b.trade_id AS other FROM trades a JOIN trades b USING (symbol)"
    inputs = write_all({"trades": TABLES["trades"]}, tmp_path, "parquet")
    out = tmp_path / "out"
    done = dovetail("run", "-", *inputs, "--output", out, "--json", stdin=sql)
    assert done.code == 0, done.err
    rows = TABLES["trades"].num_rows
    assert done.json["rows_in"] == {"a": rows, "b": rows}
    assert compare(out, sql, TABLES).equal


def test_a_query_without_results_has_an_output_that_can_be_read(tmp_path: Path) -> None:
    """With the query's columns and no rows."""
    sql = "SELECT a.k, b.v FROM a JOIN b ON a.k = b.k"
    tables = {"a": pa.table({"k": [1, 2]}), "b": pa.table({"k": [3, 4], "v": ["x", "y"]})}
    inputs = write_all(tables, tmp_path, "parquet")
    out = tmp_path / "out"
    done = dovetail("run", "-", *inputs, "--output", out, stdin=sql)
    assert done.code == 0, done.err
    with duckdb.connect() as db:
        found = db.sql(f"FROM read_parquet('{out}/**/*.parquet', hive_partitioning = false)")
        assert found.columns == ["k", "v"]
        assert found.fetchall() == []


def test_the_summary_for_people_goes_to_standard_output(query: Path, tmp_path: Path) -> None:
    """Progress does not."""
    inputs = write_all(TABLES, tmp_path, "parquet")
    done = dovetail("run", query, *inputs, "--output", "none")
    assert done.code == 0
    assert "rows in" in done.out
    assert "trades 4,000, quotes 4,000, reviews 2,000" in done.out
    assert "checksum" in done.out


def test_explain_shows_the_plan_and_runs_nothing(query: Path, tmp_path: Path) -> None:
    """Streams, filters, key, kept columns and groups; no output is needed."""
    inputs = write_all(TABLES, tmp_path, "parquet")
    done = dovetail("run", query, *inputs, "--explain")
    assert done.code == 0, done.err
    for word in ("trades", "quotes", "reviews", "symbol", "rating", "300"):
        assert word in done.out
    assert "note" not in done.out, "a column that is not needed is not kept"
    told = dovetail("run", query, *inputs, "--explain", "--json", "--partitions", "77")
    assert told.code == 0
    assert isinstance(told.json, dict)
    assert "77" in told.out


def test_with_policy_none_a_run_that_fits_needs_no_disk(query: Path, tmp_path: Path) -> None:
    """And one that does not fit stops with the limit named, and leaves nothing."""
    inputs = write_all(TABLES, tmp_path, "parquet")
    out = tmp_path / "out"
    done = dovetail(
        "run", query, *inputs, "--output", out, "--policy", "none", "--memory", "64MB", "--json"
    )
    assert done.code == 0, done.err
    assert done.json["pushes"] == 0
    assert compare(out, SQL, TABLES).equal

    inputs = write_all(LARGE, tmp_path, "parquet")
    failed = tmp_path / "failed"
    done = dovetail("run", query, *inputs, "--output", failed, "--policy", "none", *SMALL, "--json")
    assert done.code == 5
    assert done.json["error"]["code"] == "memory-limit"
    assert not failed.exists()


def test_cleanup_none_keeps_the_store_and_says_how_to_go_on(query: Path, tmp_path: Path) -> None:
    """`dovetail owed` counts what is missing and `dovetail cleanup` adds exactly that, once."""
    inputs = write_all(LARGE, tmp_path, "parquet")
    out, spill = tmp_path / "out", tmp_path / "spill"
    flags = [*SMALL, "--cleanup", "none", "--spill-dir", spill]
    done = dovetail("run", query, *inputs, "--output", out, *flags)
    assert done.code == 0, done.err
    assert f"dovetail cleanup {spill} --output {out}" in done.out

    owed = dovetail("owed", spill, "--json")
    assert owed.code == 0, owed.err
    assert owed.json["owed"] > 0
    assert "owed in all" in dovetail("owed", spill).out

    for place in (["--output", out], []):
        cleaned = dovetail("cleanup", spill, "--on=local", *place, "--json")
        assert cleaned.code == 0, cleaned.err
        assert cleaned.json["results_cleanup"] > 0
        assert cleaned.json["stores"][0]["output"] == f"{out}/phase=cleanup"
        assert compare(out, SQL, LARGE).equal
