"""The clean-up's promises: resumable, bounded, even, and clear when something is wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from dovetail_pipeline.cleanup import (
    OpenFiles,
    Progress,
    bin_from_json,
    open_catalog,
    owed,
    plan_bins,
    result_from_json,
    run_bin,
    run_local,
)
from dovetail_pipeline.cleanup import ledger as ledger_module
from dovetail_pipeline.cleanup.estimating import estimate
from dovetail_pipeline.cleanup.stores import RunCleanup, find_cleanups
from dovetail_proto.errors import Interrupted, MemoryLimitError, OutputError, SpillError
from dovetail_proto.query import OutputColumn
from dovetail_proto.spill_format import RunRecord, SpillStore
from kit.spills import (
    Spilled,
    bag,
    make_plan,
    owed_results,
    owed_rows,
    read_bag,
    spill,
    write_group,
)

MEMORY_BYTES = 64 << 20


def spilled_store(root: Path, *, rows: int = 300, pushes: int = 4, inputs: int = 3) -> Spilled:
    """A closed store with about two rows per key and input."""
    rng = np.random.default_rng(1)
    tables = [
        pa.table(
            {
                "k": rng.integers(0, rows // 2, rows),
                "n": np.arange(rows),
                "s": pa.array([f"{i}-{r}" for r in range(rows)]),
            }
        )
        for i in range(inputs)
    ]
    plan = make_plan([t.schema for t in tables])
    epochs = [np.sort(rng.integers(0, pushes, rows)) for _ in tables]
    return spill(root, plan, tables, epochs, rng=rng)


@pytest.fixture(scope="module")
def spilled(tmp_path_factory: pytest.TempPathFactory) -> Spilled:
    """One store for the tests that only read it; each cleans up into a folder of its own."""
    return spilled_store(tmp_path_factory.mktemp("cleanup") / "spill")


@pytest.fixture(autouse=True)
def small_bins():
    """Several bins for little work."""
    with patch.multiple("dovetail_pipeline.cleanup.bins", BIN_COST_MIN=200, FILE_COST=0):
        yield


def clean(spilled: Spilled, out: Path | None, **more: object) -> object:
    """Clean up in this process."""
    arguments = {"workers": 1, "memory_bytes": MEMORY_BYTES, **more}
    return run_local(SpillStore.open(spilled.store.root), out, **arguments)


class Stop(Exception):  # noqa: N818 - it stands for the end of the process
    """What ends a clean-up in the middle."""


@pytest.mark.parametrize("stop_after", range(5))
def test_a_clean_up_that_was_stopped_goes_on(tmp_path: Path, stop_after: int):
    """Between any two bins and within one: nothing is lost and nothing made twice."""
    spilled = spilled_store(tmp_path / "spill")
    out = tmp_path / "out"
    finish = ledger_module.Ledger.finish
    calls = itertools.count()

    def dying(self: ledger_module.Ledger, *arguments: object) -> None:
        if next(calls) == stop_after:  # the bin's files are there, its marker is not
            raise Stop
        finish(self, *arguments)

    with patch.object(ledger_module.Ledger, "finish", dying):
        if stop_after < 4:
            with pytest.raises(Stop):
                clean(spilled, out)
        else:
            clean(spilled, out)
    result = clean(spilled, out)
    assert result.bins == 4
    assert result.bins_resumed == stop_after
    assert read_bag(out) == owed_results(spilled)
    assert result.rows == len(owed_results(spilled))
    assert sorted(result.files) == sorted(str(p) for p in out.iterdir())
    again = clean(spilled, out)
    assert again.bins_resumed == again.bins
    assert replace(again, bins_resumed=stop_after, seconds=0, bytes_read=0) == replace(
        result, seconds=0, bytes_read=0
    )


def test_a_later_attempt_may_use_other_workers_and_memory(tmp_path: Path):
    """The bins of the first attempt are kept."""
    spilled = spilled_store(tmp_path / "spill")
    out = tmp_path / "out"
    first = clean(spilled, out)
    Path(first.files[1]).unlink()
    (out / f".{Path(first.files[1]).name}.0a0a.tmp").write_bytes(b"left by a crash")
    second = clean(spilled, out, workers=7, memory_bytes=7 * (8 << 20))
    assert second.bins_resumed == first.bins - 1
    assert second.checksum == first.checksum
    assert read_bag(out) == owed_results(spilled)
    assert len(list(out.iterdir())) == len(second.files)


def test_results_that_are_gone_or_short_are_made_again(tmp_path: Path):
    """A marker is not believed without its files."""
    spilled = spilled_store(tmp_path / "spill")
    out = tmp_path / "out"
    first = clean(spilled, out)
    Path(first.files[0]).write_bytes(Path(first.files[0]).read_bytes()[:-1])
    assert clean(spilled, out).bins_resumed == first.bins - 1
    for path in out.iterdir():
        path.unlink()
    out.rmdir()
    assert clean(spilled, out).bins_resumed == 0
    assert read_bag(out) == owed_results(spilled)


def test_each_output_is_a_clean_up_of_its_own(spilled: Spilled, tmp_path: Path):
    """Another folder gets everything again; counting alone writes nothing."""
    for name in ("a", "b"):
        clean(spilled, tmp_path / name)
        assert read_bag(tmp_path / name) == owed_results(spilled)
    counted = clean(spilled, None)
    assert counted.rows == len(owed_results(spilled))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_file_names_and_contents_depend_on_bin_and_attempt(spilled: Spilled, tmp_path: Path):
    """So a task that runs twice leaves one result, and two attempts never meet in a name."""
    catalog = open_catalog(SpillStore.open(spilled.store.root))
    bins = plan_bins(catalog, 1, MEMORY_BYTES)
    assert bins == plan_bins(catalog, 1, MEMORY_BYTES)
    assert [bin_from_json(b.to_json()) for b in bins] == bins
    contents = []
    for name in ("a", "b"):
        place = str(tmp_path / name)
        attempt = ledger_module.Ledger(catalog, place).claim()
        means = {"output": place, "memory_bytes": MEMORY_BYTES}
        with OpenFiles(catalog, MEMORY_BYTES) as files:
            for b in [*bins, bins[0]]:
                done = run_bin(catalog, files, b, plan_id="p", attempt=attempt, **means)
                assert (
                    replace(result_from_json(done.to_json(), "here"), seconds=done.seconds) == done
                )
        names = [f"part-{i:05d}-{attempt}-00000.parquet" for i in range(len(bins))]
        assert sorted(p.name for p in (tmp_path / name).iterdir()) == names
        contents.append([(tmp_path / name / n).read_bytes() for n in names])
    assert contents[0] == contents[1]
    assert read_bag(tmp_path / "a") == owed_results(spilled)


def test_nothing_owed_is_an_empty_result(tmp_path: Path):
    """One generation each: no files, no rows, no error."""
    spilled = spilled_store(tmp_path / "spill", pushes=1)
    result = clean(spilled, tmp_path / "out")
    assert (result.rows, result.owed, result.files, result.bins) == (0, 0, (), 0)


def test_an_output_that_holds_something_is_refused(spilled: Spilled, tmp_path: Path):
    """Nobody's files are mixed with results."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.parquet").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"not empty: it holds 'mine\.parquet'"):
        clean(spilled, tmp_path / "out")
    with pytest.raises(OutputError, match="no file system serves it"):
        clean(spilled, "nowhere://bucket/results")


def test_a_plan_for_other_state_is_refused(tmp_path: Path):
    """As when the same folder was spilled to anew and old plans stayed."""
    spilled = spilled_store(tmp_path / "spill")
    clean(spilled, tmp_path / "out")
    other = spilled_store(tmp_path / "other", rows=200)
    (tmp_path / "spill" / "cleanup").rename(tmp_path / "other" / "cleanup")
    with pytest.raises(SpillError, match=r"plan\.json: was made for other spilled state"):
        clean(other, tmp_path / "out")


def test_a_run_that_was_not_closed_is_not_cleaned_up(tmp_path: Path):
    """Rows are missing; the error says what to do."""
    spilled = spilled_store(tmp_path / "spill")
    (tmp_path / "spill" / "closed.json").unlink()
    with pytest.raises(SpillError, match=r"was not closed.*run the query again"):
        clean(spilled, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_ends_the_clean_up_and_its_repair_lets_it_go_on(tmp_path: Path):
    """The file is named; finished bins are kept."""
    spilled = spilled_store(tmp_path / "spill")
    path = tmp_path / "spill" / "pushes" / "000002" / "input-01.parquet"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[4 : len(whole) // 2] = bytes(len(whole) // 2 - 4)
    path.write_bytes(damaged)
    with pytest.raises(SpillError, match=r"000002/input-01\.parquet: the column chunk"):
        clean(spilled, tmp_path / "out")
    path.write_bytes(whole)
    clean(spilled, tmp_path / "out")
    assert read_bag(tmp_path / "out") == owed_results(spilled)


def test_two_clean_ups_at_once_are_refused(tmp_path: Path):
    """The second is told, and the first goes on."""
    spilled = spilled_store(tmp_path / "spill")
    seen = []

    def second(progress: Progress) -> None:
        with pytest.raises(SpillError, match="another process is cleaning up"):
            clean(spilled, tmp_path / "out")
        seen.append(progress)

    clean(spilled, tmp_path / "out", progress=second)
    assert seen
    assert read_bag(tmp_path / "out") == owed_results(spilled)


def test_stores_in_another_order_are_the_same_clean_up(tmp_path: Path):
    """What is finished is found, and the bins cut a hot key's rows where they did before."""
    rows, generations = 40, 4
    table = pa.table({"k": np.full(rows, 5), "n": np.arange(rows)})
    plan = make_plan([table.schema] * 2, partitions=1)
    stores = [SpillStore.create(str(tmp_path / n), plan, run="one") for n in ("p1", "p2")]
    each = rows // generations
    for g in range(generations):
        writer = stores[g % 2].begin_push()
        write_group(writer, 0, g, [table.slice(g * each, each)] * 2)
        writer.commit()
    stores[0].close_run(RunRecord((rows, rows), 0, 0, {0: generations * each * each}))
    stores[1].close_run(RunRecord((0, 0), 0, 0))
    spilled_store(tmp_path / "q")  # of another run, so that each run's results get a folder

    def cleanup(*names: str) -> RunCleanup:
        places = [str(tmp_path / n) for n in (*names, "q")]
        return find_cleanups(places, output=str(tmp_path / "out"))[0]

    def press(progress: Progress) -> None:
        if progress.stage == "joining" and progress.bins_done == 1:
            raise KeyboardInterrupt

    means = {"workers": 1, "memory_bytes": MEMORY_BYTES}
    first, second = cleanup("p1", "p2"), cleanup("p2", "p1")
    with patch("dovetail_pipeline.cleanup.crew.SHOW_S", 0), pytest.raises(Interrupted):
        run_local(first.stores, first.output, progress=press, **means)
    result = run_local(second.stores, second.output, **means)
    assert (result.bins_resumed, result.bins) == (1, 4)
    numbers = np.repeat(np.arange(generations), each)
    expected = owed_results(Spilled(stores[0], (table, table), (numbers, numbers)))
    assert first.output is not None
    assert read_bag(Path(first.output)) == expected


def test_ctrl_c_says_how_to_go_on(tmp_path: Path):
    """And leaves a clean-up that can be resumed."""
    spilled = spilled_store(tmp_path / "spill")

    def press(progress: Progress) -> None:
        if progress.stage == "joining" and progress.bins_done == 1:
            raise KeyboardInterrupt

    with (
        patch("dovetail_pipeline.cleanup.crew.SHOW_S", 0),
        pytest.raises(Interrupted, match="clean up again: that goes on with what is left"),
    ):
        clean(spilled, tmp_path / "out", progress=press)
    assert clean(spilled, tmp_path / "out").bins_resumed == 1
    assert read_bag(tmp_path / "out") == owed_results(spilled)


def test_progress_ends_with_everything_done(spilled: Spilled, tmp_path: Path):
    """And never goes back."""
    seen: list[Progress] = []
    with patch("dovetail_pipeline.cleanup.crew.SHOW_S", 0):
        result = clean(spilled, tmp_path / "out", progress=seen.append)
    joining = [p for p in seen if p.stage == "joining"]
    assert {p.stage for p in seen} == {"counting", "joining"}
    assert joining[-1].bins_done == joining[-1].bins == result.bins
    assert joining[-1].results == result.owed
    assert joining[-1].owed in (None, result.owed)  # None: not every group was counted
    assert joining[-1].bytes_read > 0
    assert joining[-1].bytes > 0
    for before, after in itertools.pairwise(joining):
        assert (before.bins_done, before.results) <= (after.bins_done, after.results)


def test_too_little_memory_is_refused_with_what_is_needed(spilled: Spilled, tmp_path: Path):
    """Before anything is done."""
    with pytest.raises(MemoryLimitError, match="at least 8 MB for each worker"):
        clean(spilled, tmp_path / "out", memory_bytes=1 << 20)
    assert not (tmp_path / "out").exists()


def test_residual_conditions_and_expressions_are_applied(tmp_path: Path):
    """Above the join, as in the run; only the columns that results need are read."""
    spilled = spilled_store(tmp_path / "spill", inputs=2)
    plan = replace(
        spilled.store.plan,
        residual_sql='"0.n" < "1.n"',
        residual_columns=((0, "n"), (1, "n")),
        outputs=(
            OutputColumn("left", pa.int64(), (0, "n"), None),
            OutputColumn("both", pa.string(), None, '"0.s" || \'+\' || "1.s"'),
        ),
        output_columns=((0, "s"), (1, "s")),
    )
    store = spill(
        tmp_path / "again", plan, spilled.tables, [g.copy() for g in spilled.generations]
    ).store
    same = Spilled(store, spilled.tables, spilled.generations)
    result = clean(same, tmp_path / "out")
    rows = owed_rows(Spilled(spilled.store, same.tables, same.generations))
    expected = bag([(r[1], f"{r[2]}+{r[5]}") for r in rows if r[1] < r[4]])
    assert read_bag(tmp_path / "out") == expected
    assert result.rows == len(expected) < result.owed


def test_a_query_of_constants_counts_its_rows(tmp_path: Path):
    """No column is needed, yet there is one result per combination."""
    spilled = spilled_store(tmp_path / "first", inputs=2)
    plan = replace(
        spilled.store.plan,
        outputs=(OutputColumn("one", pa.int32(), None, "1"),),
    )
    epochs = [g.copy() for g in spilled.generations]
    same = spill(tmp_path / "spill", plan, spilled.tables, epochs)
    clean(same, tmp_path / "out")
    assert len(read_bag(tmp_path / "out")) == owed(same.store).owed > 0


def test_the_estimate_is_near_what_is_owed(tmp_path: Path):
    """Where rows came at random; it steers the bins without reading."""
    spilled = spilled_store(tmp_path / "spill", rows=3000)
    expected = estimate(open_catalog(spilled.store))
    assert expected.owed == pytest.approx(owed(spilled.store).owed, rel=0.3)
