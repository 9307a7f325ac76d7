"""Two checkouts by turns: what is stated of the runs, and the data that they get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from dovetail_bench import alternate, text_workload
from dovetail_bench.report import Report


def _run(seconds: float, cpu_seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "results": 7}


def test_ratios_are_of_medians_and_work_is_without_the_start() -> None:
    """Before / after: what became slower is below one."""
    report = Report("alternate", "", full=False)
    before, after = [_run(2, 3), _run(1, 2), _run(9, 9)], [_run(4, 4), _run(1, 3), _run(9, 9)]
    alternate._state(report, "w1 counted", (before, after), [1.0, 2.0])
    [row] = report.rows
    assert (row["seconds_before"], row["seconds_after"], row["seconds_ratio"]) == (2, 4, 0.5)
    assert (row["cpu_ratio"], row["work_ratio"]) == (0.75, 1.0)
    assert [g["met"] for g in report.goals] == [False]


def test_rounds_alternate_and_results_must_agree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each round begins with the other checkout; another number of results is an error."""
    order: list[str] = []

    def measured(python: str, case: str, data: alternate.Data) -> dict[str, Any]:
        order.append(python)
        return {**_run(1, 1), "results": 8 if (case, python) == ("w2 counted", "new") else 7}

    monkeypatch.setattr(alternate, "measure", measured)
    data = alternate.Data(tmp_path, 1.0)
    alternate._alternated(["old", "new"], "w1 counted", data, 3)
    assert order == ["old", "new", "new", "old", "old", "new"]
    with pytest.raises(RuntimeError, match=r"w2 counted.*\[7, 8\]"):
        alternate._alternated(["old", "new"], "w2 counted", data, 1)


def test_the_text_workload_is_what_it_says(tmp_path: Path) -> None:
    """Half of the sales on a hundredth of the keys, texts of 10 to 60 bytes, 2/9 of the items."""
    text_workload.write(tmp_path, 0.01)
    with duckdb.connect() as db:
        for name in ("sales", "items"):
            db.execute(f"CREATE VIEW {name} AS FROM '{tmp_path / name}.parquet'")
        count = (
            "SELECT count(*), count(*) FILTER (k < 60), min(len(note)), max(len(note)) FROM sales"
        )
        rows, hot, shortest, longest = db.execute(count).fetchone() or ()
        assert (rows, shortest, longest) == (90_000, 10, 60)
        assert 0.5 <= hot / rows < 0.52
        items = "SELECT count(*), count(DISTINCT k), count(*) FILTER (class < 2) FROM items"
        total, keys, kept = db.execute(items).fetchone() or ()
        assert total == keys == 6_000
        assert kept / total == pytest.approx(2 / 9, rel=0.1)
        results = len(db.execute((tmp_path / "query.sql").read_text()).fetchall())
        assert results == pytest.approx(rows * 2 / 9, rel=0.2)
