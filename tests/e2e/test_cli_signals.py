"""Ctrl-C and SIGTERM: the state is closed, and what it owes can be produced later."""

from __future__ import annotations

import signal
from pathlib import Path

import duckdb
import pytest

from dovetail.generator import UniformWorkload
from kit.cli import dovetail, dovetail_signalled
from kit.trades import write_all

WORKLOAD = UniformWorkload(rows=600_000, distinct=150_000)
"""Some seconds of work, so that a signal after the first push always comes in the middle."""

SMALL = ("--memory=8MB", "--partitions=40", "--cleanup=local")
"""Exceeded after a fraction of the rows."""


@pytest.fixture(scope="module")
def stream_words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Streams that take a while."""
    folder = tmp_path_factory.mktemp("streams")
    tables = {name: WORKLOAD.table(i) for i, name in enumerate(WORKLOAD.names)}
    (folder / "query.sql").write_text(WORKLOAD.sql)
    return [str(folder / "query.sql"), *write_all(tables, folder, "parquet")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_stopped_run_is_closed_and_can_be_cleaned_up(
    number: signal.Signals, stream_words: list[str], tmp_path: Path
) -> None:
    """What the run wrote and what the clean-up adds are the join of the rows that were read."""
    spill = tmp_path / "spill"
    done = dovetail_signalled(
        "run", *stream_words, "--output=none", *SMALL, "--spill-dir", spill, "--json",
        when=(spill / "pushes" / "000001" / "manifest.json").exists,
        numbers=(number,),
    )  # fmt: skip
    assert done.code == 130, done.err
    assert "stopping" in done.err
    assert "Traceback" not in done.err
    assert f"dovetail cleanup {spill}" in done.err
    details = done.json["error"]["details"]
    read = details["rows_in"]
    assert 0 < sum(read.values()) < 3 * WORKLOAD.rows

    owed = dovetail("owed", spill, "--json")
    assert owed.code == 0, owed.err
    cleaned = dovetail("cleanup", spill, "--on=local", "--output=none", "--json")
    assert cleaned.code == 0, cleaned.err
    assert cleaned.json["results_cleanup"] == owed.json["owed"]
    assert details["results_run"] + owed.json["owed"] == results_of_first_rows(read)


def test_a_stopped_clean_up_names_one_command_that_goes_on(
    stream_words: list[str], tmp_path: Path
) -> None:
    """With the folder and the output that it had."""
    spill, output = tmp_path / "spill", tmp_path / "out"
    done = dovetail_signalled(
        "run", *stream_words, "--output", output, *SMALL, "--spill-dir", spill,
        when=(spill / "closed.json").exists,
        numbers=(signal.SIGINT,),
    )  # fmt: skip
    assert done.code == 130, done.err
    again = f"dovetail cleanup {spill} --output {output}"
    assert done.err.count("dovetail cleanup") == done.err.count(again) == 1
    stopped = dovetail(*again.split()[1:], "--on=local", "--json")
    assert stopped.code == 0, stopped.err


def results_of_first_rows(read: dict[str, int]) -> int:
    """How many results the first rows of each stream have, by DuckDB."""
    with duckdb.connect() as db:
        for i, name in enumerate(WORKLOAD.names):
            db.register(name, WORKLOAD.table(i).slice(0, read[name]))
        found = db.execute(f"SELECT count(*) FROM ({WORKLOAD.sql})").fetchone()
    assert found is not None
    return int(found[0])


def test_a_second_signal_quits_at_once(stream_words: list[str], tmp_path: Path) -> None:
    """The store is then not closed, and the clean-up refuses it instead of guessing."""
    spill = tmp_path / "spill"
    done = dovetail_signalled(
        "run", *stream_words, "--output=none", *SMALL, "--spill-dir", spill,
        when=(spill / "pushes" / "000001" / "manifest.json").exists,
        numbers=(signal.SIGINT, signal.SIGTERM),
    )  # fmt: skip
    assert done.code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert not (spill / "closed.json").exists()
    refused = dovetail("cleanup", spill, "--on=local", "--output=none")
    assert refused.code == 6
    assert "Traceback" not in refused.err
