"""What the distributed experiments feed, judge and write; whole runs are made on demand only."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dovetail.generator import RangeWorkload
from dovetail_bench import experiments
from dovetail_bench.experiments import alternating, s4_cleanup, s4_fig07, s4_fig14, s4_fig16, stored
from dovetail_bench.experiments import cluster_runs as runs
from dovetail_bench.experiments import s4_fig21 as fig21
from dovetail_bench.experiments.experiment import Experiment
from dovetail_bench.experiments.owned_workload import OwnedWorkload
from dovetail_bench.experiments.page import filled
from dovetail_proto.partitioning import canonical_keys, partition_ids


def _classes(streams: OwnedWorkload, stream: int = 0) -> np.ndarray[Any, Any]:
    keys = streams.table(stream)["k"].combine_chunks()
    hashes = canonical_keys([keys], [keys.type]).hashes
    return streams.class_of(partition_ids(hashes, streams.partitions).astype(np.int64))


def test_every_distributed_experiment_is_listed_with_a_title() -> None:
    """`dovetail experiments list` shows them."""
    assert set(experiments.DISTRIBUTED) <= set(experiments.NAMES)
    assert all(experiments.find(name).TITLE for name in experiments.DISTRIBUTED)


def test_partitions_of_each_machine_get_ten_times_more_by_turns() -> None:
    """Five minutes the first, ten the second, and so on, in every stream."""
    streams = alternating.load().workload
    assert isinstance(streams, OwnedWorkload)
    classes = _classes(streams)
    per_minute = 60_000 // alternating.TUPLE_MS
    for i, (a, b) in enumerate(pairwise(alternating.PHASES)):
        counts = Counter(classes[a * per_minute : b * per_minute].tolist())
        assert counts[i % 2] / counts[1 - i % 2] == pytest.approx(10, rel=0.01)


def test_a_class_of_partitions_has_the_join_ratio_of_its_machine() -> None:
    """In one tuple range each of its keys comes as often as the ratio says."""
    streams = OwnedWorkload(
        rows=3_000, tuple_range=3_000, shares=(1, 1, 1), join_ratios=(4, 1, 1), seed=7
    )
    keys = streams.table(1)["k"].to_numpy()
    classes = _classes(streams, 1)
    for c, ratio in enumerate((4, 1, 1)):
        assert set(Counter(keys[classes == c].tolist()).values()) == {ratio}
    assert streams.table(1) == streams.table(1)


def test_a_short_run_on_real_processes_loses_no_result_between_run_and_clean_up() -> None:
    """What moves, pushes and the clean-up of each store leave is the join, counted by its keys."""
    line = replace(s4_cleanup.LINES[0], memory_bytes=4_000_000)
    found = Experiment("short", "", {})
    streams = RangeWorkload(rows=28_000, tuple_range=20_000, seed=3)
    with patch.object(runs, "LENGTH", 0.04):
        load = runs.Load(streams, s4_cleanup.MINUTES, s4_cleanup.TUPLE_MS)
        runs.run_lines(found, load, (line,), finish=s4_cleanup.clean_up_each)
    counts = [Counter(streams.table(i)["k"].to_pylist()) for i in range(3)]
    (total,) = found.totals
    assert total["results_run"] + total["results_left"] == sum(
        n * counts[1][k] * counts[2][k] for k, n in counts[0].items()
    )
    # A fast machine may hold it all; then nothing is left, and nobody has left it.
    assert sum(total.get("left_by_processor", {}).values()) == total["results_left"]
    assert {r["series"] for r in found.rows} == {line.series}


def _points(series: str, results: list[int], **more: Any) -> list[dict[str, Any]]:
    return [
        {"series": series, "paper_minutes": float(i), "results": n, "pushes": 0} | more
        for i, n in enumerate(results)
    ]


def test_moves_are_judged_by_their_numbers_and_by_what_they_cost() -> None:
    """Many more at 90 % than at 50 %, and no line far behind the one without moves."""
    found = Experiment("s4-fig14", "", {"paper_minutes": 4})
    for line, moves in zip(s4_fig14.LINES, (0, 2, 24), strict=True):
        found.rows += _points(line.series, [0, 100, 200, 300, 390 if moves == 24 else 400])
        found.totals.append({"series": line.series, "moves": moves})
    s4_fig14.judge(found)
    assert [c.holds for c in found.claims] == [True, True]
    assert found.claims[0].ours == "24 moves at 90 %, 2 at 50 %"
    assert "90%-Difference -2.5 %" in found.claims[1].ours


def test_a_plan_that_never_stops_for_want_of_memory_is_told_so() -> None:
    """The paper's second machine stops; where ours does not, the statement does not hold."""
    found = Experiment("s4-fig7", "", {"paper_minutes": 4})
    for line in s4_fig07.LINES:
        found.rows += _points(line.series, [0, 100, 200, 300, 400])
        stop = 25.2 if line.series == "M1" else None
        found.totals.append({"series": line.series, "stopped_at_minute": stop})
    s4_fig07.judge(found)
    assert [c.holds for c in found.claims] == [True, False, True]
    assert found.claims[1].ours == "runs to the end"


def test_memory_is_balanced_if_the_smaller_machine_has_most_of_the_larger() -> None:
    """And alternates without moves if the lead changes."""
    found = Experiment("s4-fig16", "", {})
    memory = {
        s4_fig16.WITHOUT: ([10, 10, 20, 20], [5, 15, 15, 30]),
        s4_fig16.WITH: ([9, 12, 17, 25], [9, 13, 18, 25]),
    }
    for series, machines in memory.items():
        for machine, sizes in enumerate(machines, start=1):
            found.rows += [{"series": f"{series}-M{machine}", "memory_bytes": n} for n in sizes]
    s4_fig16.judge(found)
    assert [c.holds for c in found.claims] == [True, True]


def test_active_disk_has_to_fall_behind_and_to_overtake() -> None:
    """Both halves of the statement are judged by themselves."""
    found = Experiment("s4-fig21", "", {})
    found.rows += _points(fig21.LAZY, [0, 100, 200, 300])
    found.rows += _points(fig21.ACTIVE, [0, 100, 150, 400], pushes=1)
    found.totals += [
        {"series": fig21.ACTIVE, "results_run": 400},
        {"series": fig21.LAZY, "results_run": 300},
    ]
    fig21.judge(found)
    assert [c.holds for c in found.claims] == [True, True]
    assert "-25.0 %" in found.claims[0].ours


def _clean_up(ms: tuple[float, float]) -> Experiment:
    """One run of the clean-up's figure in which it took so long after each line."""
    found = Experiment("s4-cleanup", "", {})
    for line, took in zip(s4_cleanup.LINES, ms, strict=True):
        found.totals.append(
            {
                "series": line.series,
                "results_run": 1000,
                "stopped_at_minute": None,
                "moves": 2,
                "moved_bytes": 3_000_000,
                "pushes": 3,
                "pushes_by_processor": {"p1": 1, "p2": 2},
                "results_left": 5_000,
                "left_by_processor": {"p1": 4_000, "p2": 1_000},
                "cleanup_ms": took,
                "cleanup_ms_by_processor": {"p1": took, "p2": 10.0},
                "cleanup_together_ms": 99.0,
            }
        )
    s4_cleanup.judge(found)
    return found


def test_the_page_is_written_anew_between_its_marks_alone(tmp_path: Path) -> None:
    """Words and places without figures stay; statements and totals tell the ranges of all runs."""
    for ms in ((400.0, 1600.0), (400.0, 1200.0), (500.0, 2000.0)):
        stored.add(_clean_up(ms), 1.0, tmp_path)
    marks = "\n".join(
        f"words about {name}\n<!-- {name} -->\nbefore\n<!-- /{name} -->"
        for name in ("statements-cluster", "s4-fig6", "s4-cleanup")
    )
    page = filled(marks, tmp_path)
    assert page.count("before") == 1
    assert "words about statements-cluster\n" in page
    assert "1,200 … 2,000 ms for 5,000 results against 400 … 500 ms for 5,000" in page
    assert "(3.0 … 4.0 : 1) | over 1.5 : 1 | 3 | *holds* |" in page
    assert "| Lazy-Disk | 1,000 | – | 2 | 3.0 MB | p1 1, p2 2 | 5,000: p1 4,000, p2 1,000 |" in page
    assert "p1 400 … 500 ms, p2 10 ms; together 99 ms |" in page
    assert filled(page, tmp_path) == page


def test_runs_with_other_settings_are_not_told_together(tmp_path: Path) -> None:
    """They are of another experiment; how busy the machine was is no setting."""
    for settings in ({"rows": 1, stored.LOAD: 0.1}, {"rows": 1, stored.LOAD: 2.0}):
        stored.add(Experiment("one", "", settings), 1.0, tmp_path)
    assert len(stored.add(Experiment("one", "", {"rows": 2}), 1.0, tmp_path)["runs"]) == 1
    found = stored.load("one", tmp_path)
    assert found is not None
    assert found["settings"] == {"rows": 2}


@pytest.mark.parametrize(
    ("holds", "differences", "set_by", "said"),
    [
        ([True], [None], "", "*holds* (in one run)"),
        ([True, True, True], [None] * 3, "", "*holds*"),
        ([True, True, True], [-0.06, -0.07, -0.08], "M_query", "*set* (by M_query)"),
        ([True, False, True], [-0.06, -0.04, -0.06], "", "*does not hold* (only in 2 of 3 runs)"),
        ([False, False, False], [None] * 3, "a limit", "*does not hold*"),
        ([True, True, False], [-0.007, -0.002, 0.004], "", "*does not hold* (noise)"),
        ([True, True, True], [-0.001, -0.002, -0.009], "", "*does not hold* (noise)"),
    ],
)
def test_a_statement_is_judged_by_all_runs(
    holds: list[bool], differences: list[float | None], set_by: str, said: str
) -> None:
    """One run beyond the bar is enough against it; runs that differ by more tell nothing."""
    claims = [
        {"holds": h, "difference": d, "set_by": set_by}
        for h, d in zip(holds, differences, strict=True)
    ]
    assert stored.verdict(claims) == said


def test_numbers_of_several_runs_become_ranges() -> None:
    """Only where they differ; texts that differ otherwise stand beside each other."""
    texts = ["M2 -1.4 %, 10,000 of 5", "M2 +0.2 %, 9,000 of 5", "M2 -3.0 %, 9,500 of 5"]
    assert stored.ranged(texts) == "M2 -3.0 … +0.2 %, 9,000 … 10,000 of 5"
    assert stored.ranged(["after 24.4 minutes", "runs to the end"]) == (
        "after 24.4 minutes / runs to the end"
    )


def test_the_page_says_what_is_stored() -> None:
    """Every figure has stored data, and the page is what is generated from it."""
    root = Path(__file__).resolve().parents[4]
    page = (root / "docs/experiments.md").read_text(encoding="utf-8")
    folder = root / "docs/experiments"
    assert {p.stem for p in folder.glob("*.json")} == set(experiments.NAMES)
    assert filled(page, folder) == page, "run `python -m dovetail_bench.experiments --page`"


def test_lines_with_the_same_settings_are_run_once_a_round() -> None:
    """Whatever they are called in the two figures."""
    ran = list[str]()

    def run_line(_: Any, line: runs.Line, *__: Any) -> tuple[list[Any], dict[str, Any]]:
        ran.append(line.series)
        return [{"series": line.series}], {"series": line.series}

    load = runs.Load(RangeWorkload(rows=10, tuple_range=10), 1, 30)
    found = Experiment("s4-fig16", "", {})
    with (
        patch.object(runs, "_run_line", run_line),
        patch.object(runs, "sharing", True),
        patch.object(runs, "shared", {}),
    ):
        runs.run_lines(Experiment("s4-fig14", "", {}), load, (s4_fig14.LINES[0],))
        other = replace(s4_fig14.LINES[0], series="other")
        runs.run_lines(found, load, (other, replace(other, move_every_s=7)))
    assert ran == [s4_fig14.LINES[0].series, "other"]
    assert [t["series"] for t in found.totals] == ["other", "other"]
