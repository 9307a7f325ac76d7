"""`dovetail run --processors N`: the same exact join, on processes that speak gRPC."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail_bench.oracle import compare
from kit.cli import dovetail
from kit.trades import SQL, streams, write_all

TABLES = streams(rows=60_000, symbols=9_000)


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """The query in a file."""
    path = tmp_path / "prices.sql"
    path.write_text(SQL)
    return path


def test_two_processors_give_the_exact_join(query: Path, tmp_path: Path) -> None:
    """Every processor writes its files into one dataset; the report counts them together."""
    out = tmp_path / "out"
    inputs = write_all(TABLES, tmp_path, "parquet", "csv")
    done = dovetail(
        "run", query, *inputs, "--output", out, "--processors", "2", "--memory", "64MB", "--json"
    )
    assert done.code == 0, done.err
    report = done.json
    compared = compare(out, SQL, TABLES)
    assert compared.equal
    assert report["results_run"] == compared.rows
    assert report["rows_in"] == {n: t.num_rows for n, t in TABLES.items()}
    assert report["memory_limit_bytes"] == [64_000_000] * 2
    assert len(report["peak_rss_bytes"]) == len(report["peak_state_bytes"]) == 2
    assert {p.name for p in (out / "phase=run").glob("[!.]*")} == {
        "prices-p1-00000.parquet",
        "prices-p2-00000.parquet",
    }


def test_three_processors_with_too_little_memory_give_the_exact_join(
    query: Path, tmp_path: Path
) -> None:
    """Every processor pushes to a store of its own; the clean-up takes them together."""
    out, spill = tmp_path / "out", tmp_path / "spill"
    inputs = write_all(TABLES, tmp_path, "parquet")
    done = dovetail(
        *("run", query, *inputs, "--output", out, "--spill-dir", spill, "--processors", "3"),
        *("--memory", "2500kB", "--partitions", "40", "--cleanup", "local", "--json"),
    )
    assert done.code == 0, done.err
    report = done.json
    assert report["pushes"] >= 3
    assert report["results_cleanup"] > 0
    assert {p.name for p in spill.iterdir()} == {"p1", "p2", "p3"}
    assert compare(out, SQL, TABLES).equal
    again = dovetail("owed", spill, "--json")
    assert again.json["owed"] >= report["results_cleanup"]


def test_a_clean_up_without_all_stores_of_a_run_names_the_missing_one(
    query: Path, tmp_path: Path
) -> None:
    """One of two stores given, or a folder that was not shared: results would be missing."""
    out, spill = tmp_path / "out", tmp_path / "spill"
    inputs = write_all(TABLES, tmp_path, "parquet")
    done = dovetail(
        *("run", query, *inputs, "--output", out, "--spill-dir", spill, "--processors", "2"),
        *("--memory", "3MB", "--partitions", "40", "--cleanup", "none", "--json"),
    )
    assert done.code == 0, done.err
    for command in (("cleanup", "--on", "local"), ("owed",)):
        alone = dovetail(*command, spill / "p1")
        assert alone.code == 6, alone.err
        assert "the spill store of processor 'p2' is missing" in alone.err
        assert "bring its store beside the others" in alone.err
    (spill / "p2").rename(tmp_path / "elsewhere")
    left = dovetail("cleanup", spill, "--on", "local")
    assert (left.code, "'p2' is missing" in left.err) == (6, True), left.err
    assert not (out / "phase=cleanup").exists()
    both = dovetail("cleanup", tmp_path / "elsewhere", spill / "p1", "--on", "local", "--json")
    assert both.code == 0, both.err
    assert compare(out, SQL, TABLES).equal


def test_a_query_that_fails_on_a_processor_says_why_and_leaves_nothing(
    query: Path, tmp_path: Path
) -> None:
    """The processor's own error, its name before it, and no output folder."""
    inputs = write_all(TABLES, tmp_path, "parquet")
    before = set(tmp_path.iterdir())
    done = dovetail(
        *("run", query, *inputs, "--output", tmp_path / "out", "--processors", "2"),
        *("--memory", "3MB", "--partitions", "40", "--policy", "distributed", "--json"),
    )
    assert done.code != 0
    assert "processor p" in done.err
    assert "raise --memory" in done.err
    assert set(tmp_path.iterdir()) == before


def test_a_policy_that_moves_needs_several_processors(query: Path, tmp_path: Path) -> None:
    """Refused before anything is written."""
    inputs = write_all(streams(rows=10, symbols=3), tmp_path, "parquet")
    done = dovetail("run", query, *inputs, "--output", "none", "--policy", "lazy-disk")
    assert done.code == 2
    assert "policy 'lazy-disk' needs several processors" in done.err
    assert "give --processors 2, or --policy disk" in done.err
