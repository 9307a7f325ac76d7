"""What bad input gets: one line with the place, a remedy, the right exit code, nothing half-made.

Every refusal is checked in the same way: `refused` runs the command and then looks that no output
folder, no spill store and no temporary file is left, and that the inputs are as they were.
"""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.cli import run_command
from kit.cli import dovetail
from kit.trades import SQL, streams, write_all

TABLES = streams(rows=2_000, symbols=300)

SMALL = ("--memory", "4MB", "--partitions", "40", "--cleanup", "local")
"""A limit that 60 000 rows a stream exceed; few groups, so that pushes are quick."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder with a query and three good streams in it."""

    folder: Path
    inputs: list[str]
    capfd: pytest.CaptureFixture[str]

    def refused(
        self,
        code: int,
        text: str,
        *,
        sql: str = SQL,
        inputs: list[str] | None = None,
        flags: tuple[str, ...] = (),
    ) -> str:
        """Run; the error must have `code` and match `text`. Returns its line with the remedy."""
        query = self.folder / "query.sql"
        query.write_text(sql)
        words = inputs if inputs is not None else self.inputs
        out = self.folder / "out"
        output = () if any(f.startswith("--output") for f in flags) else ("--output", str(out))
        before = _contents(self.folder)
        found = run_command(["run", str(query), *words, *output, *flags, "--json"])
        told = self.capfd.readouterr()
        first, *rest = told.err.splitlines()
        assert first.startswith("error: "), told.err
        assert found == code, told.err
        assert re.search(text, first), told.err
        assert len(rest) == 1, f"a remedy and nothing more: {told.err}"
        error = json.loads(told.out)["error"]
        assert error["exit_code"] == code
        assert error["remedy"] in rest[0]
        assert _contents(self.folder) == before, "something was left behind"
        return told.err


def _contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


@pytest.fixture
def bench(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Bench:
    """Good streams, to be spoilt one at a time."""
    return Bench(tmp_path, write_all(TABLES, tmp_path, "parquet", "csv", "jsonl"), capfd)


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELEC t.price FROM trades t", r"line 1"),
        ("", r"no SQL"),
        ("SELECT t.cost FROM trades t JOIN quotes q USING (symbol)", r"line 1, column \d+: .*cost"),
        (
            "SELECT t.price\nFROM trades t\nJOIN quotes q ON t.symbol = q.nowhere",
            r"line 3, column \d+: .*nowhere",
        ),
        ("SELECT * FROM trades t JOIN bids b ON b.symbol = t.symbol", r"bids"),
        ("SELECT t.price FROM trades t JOIN quotes q ON t.symbol = q.bid", r"symbol.*bid|compare"),
        (
            "SELECT t.price FROM trades t LEFT JOIN quotes q ON t.symbol = q.symbol",
            r"(?i)left|outer",
        ),
        ("SELECT count(*) FROM trades t JOIN quotes q USING (symbol)", r"(?i)aggregate|count"),
        ("SELECT t.price, q.price FROM trades t, quotes q WHERE t.symbol = q.symbol", r"price"),
    ],
    ids=lambda text: " ".join(text.split())[:48],
)
def test_sql_that_cannot_be_run_is_refused_with_the_place(
    bench: Bench, sql: str, text: str
) -> None:
    """Before anything is made."""
    bench.refused(2, text, sql=sql)


def test_ten_thousand_nested_brackets_are_refused(bench: Bench) -> None:
    """Not answered with a crash of the interpreter."""
    deep = "(" * 10_000 + "t.price" + ")" * 10_000
    bench.refused(
        2, r"(?i)nest|deep", sql=f"SELECT {deep} FROM trades t JOIN quotes q USING (symbol)"
    )


def spoil_missing(path: Path) -> None:
    """Take the file away."""
    path.unlink()


def spoil_empty(path: Path) -> None:
    """Nothing in it."""
    path.write_bytes(b"")


def spoil_truncated(path: Path) -> None:
    """Half of it."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoil_noise(path: Path) -> None:
    """Something else altogether."""
    path.write_bytes(b"\x00\x01\x02 no such format \xff" * 100)


@pytest.mark.parametrize("spoil", [spoil_missing, spoil_empty, spoil_truncated, spoil_noise])
def test_a_spoilt_parquet_file_is_refused_by_name(
    bench: Bench, spoil: Callable[[Path], None]
) -> None:
    """Whatever is wrong with it."""
    spoil(bench.folder / "trades.parquet")
    bench.refused(3, r"trades\.parquet")


@pytest.mark.parametrize("name", ["quotes.csv", "reviews.jsonl"])
def test_an_empty_text_file_is_refused_by_name(bench: Bench, name: str) -> None:
    """It has no columns to join on."""
    spoil_empty(bench.folder / name)
    bench.refused(3, re.escape(name))


def test_a_malformed_csv_row_is_named(bench: Bench) -> None:
    """Far from the start, where the schema is long known."""
    path = bench.folder / "quotes.csv"
    lines = path.read_text().splitlines()
    lines[1500] = "sym-1,1.5,XNYS,one field too many"
    path.write_text("\n".join(lines) + "\n")
    bench.refused(3, r"quotes\.csv.*1501")


def test_a_csv_value_of_another_type_is_named(bench: Bench) -> None:
    """The column was a number in all rows before."""
    path = bench.folder / "quotes.csv"
    lines = path.read_text().splitlines()
    lines[1700] = "sym-1,not a number,XNYS"
    path.write_text("\n".join(lines) + "\n")
    bench.refused(3, r"quotes\.csv.*(1701|not a number|bid)")


def test_a_malformed_json_line_is_named(bench: Bench) -> None:
    """By its number."""
    path = bench.folder / "reviews.jsonl"
    lines = path.read_text().splitlines()
    lines[700] = '{"symbol": "sym-1", "rating": '
    path.write_text("\n".join(lines) + "\n")
    bench.refused(3, r"reviews\.jsonl.*701")


def test_a_folder_whose_files_differ_in_schema_is_refused(bench: Bench) -> None:
    """The file that differs is named."""
    folder = bench.folder / "many"
    folder.mkdir()
    pq.write_table(TABLES["trades"], folder / "0.parquet")
    pq.write_table(TABLES["trades"].drop_columns(["price"]), folder / "1.parquet")
    inputs = ["--input", f"trades={folder}", *bench.inputs[2:]]
    bench.refused(3, r"1\.parquet", inputs=inputs)


def test_a_file_of_another_schema_is_refused_by_its_missing_column(bench: Bench) -> None:
    """The query cannot be planned against it."""
    pq.write_table(pa.table({"ticker": ["x"], "cost": [1.0]}), bench.folder / "trades.parquet")
    bench.refused(2, r"symbol|trade_id|price")


def test_a_json_stream_that_changes_type_half_way_is_refused(bench: Bench) -> None:
    """A number becomes an object."""
    path = bench.folder / "reviews.jsonl"
    lines = path.read_text().splitlines()
    lines[900] = '{"symbol": "sym-1", "rating": {"stars": 5}}'
    path.write_text("\n".join(lines) + "\n")
    bench.refused(3, r"reviews\.jsonl")


def test_a_memory_limit_too_small_to_work_with_states_the_smallest(bench: Bench) -> None:
    """Which then works."""
    told = bench.refused(5, r"(?i)memory", flags=("--memory", "10kB"))
    stated = re.search(r"(\d+(?:\.\d+)?\s?[kMG]i?B|\d{6,})", told)
    assert stated, told
    done = dovetail(
        "run", bench.folder / "query.sql", *bench.inputs, "--output", "none",
        "--memory", stated[1].replace(" ", ""),
    )  # fmt: skip
    assert done.code == 0, done.err


def test_an_output_folder_that_is_not_empty_is_left_alone(bench: Bench) -> None:
    """Every file in it is as before."""
    (bench.folder / "out").mkdir()
    (bench.folder / "out" / "precious.parquet").write_bytes(b"years of work")
    bench.refused(4, r"out' is not empty")


def test_a_spill_folder_that_is_not_empty_is_left_alone(bench: Bench) -> None:
    """And the output folder is not made."""
    spill = bench.folder / "spill"
    spill.mkdir()
    (spill / "precious").write_bytes(b"years of work")
    bench.refused(6, r"spill.* not empty", flags=("--spill-dir", str(spill)))


def test_an_output_place_that_cannot_be_made_is_refused(bench: Bench) -> None:
    """A folder below a file."""
    place = str(bench.folder / "trades.parquet" / "out")
    bench.refused(4, r"trades\.parquet/out", flags=(f"--output={place}",))


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--memory", "lots"), r"--memory: 'lots' is not a size"),
        (("--push-fraction", "200%"), r"--push-fraction"),
        (("--productivity-half-life-s", "-1"), r"--productivity-half-life-s"),
        (("--victims", "unlucky"), r"--victims"),
        (("--policy", "hope"), r"--policy"),
        (("--cleanup", "never"), r"--cleanup"),
        (("--partitions", "0"), r"--partitions"),
        (("--input", "trades"), r"'trades' is not NAME=PATH"),
        (("--input", "TRADES=x"), r"TRADES is given twice"),
        (("--input", "bad name=x"), r"'bad name' is not allowed"),
        (("--frobnicate",), r"frobnicate"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_flags_that_cannot_be_understood_are_named(
    bench: Bench, flags: tuple[str, ...], text: str
) -> None:
    """With what would be."""
    bench.refused(2, text, flags=flags)


def test_a_query_file_that_is_missing_is_named(bench: Bench) -> None:
    """It is an input too."""
    code = run_command(["run", str(bench.folder / "nowhere.sql"), *bench.inputs, "--output=none"])
    assert code == 3
    assert "nowhere.sql' does not exist" in bench.capfd.readouterr().err


def test_an_error_half_way_takes_back_results_and_spill(tmp_path: Path) -> None:
    """A run with pushes and written results meets a bad row: the output is as before, gone."""
    tables = streams(rows=60_000, symbols=9_000)
    inputs = write_all(tables, tmp_path, "csv")
    path = tmp_path / "trades.csv"
    lines = path.read_text().splitlines()
    lines[-2] = lines[-2] + ",one field too many"
    path.write_text("\n".join(lines) + "\n")
    query = tmp_path / "query.sql"
    query.write_text(SQL)
    before = set(tmp_path.iterdir())
    spill = tmp_path / "spill"
    done = dovetail(
        "run", query, *inputs, "--output", tmp_path / "out", *SMALL,
        "--spill-dir", spill, "--json",
    )  # fmt: skip
    assert done.code == 3
    assert "trades.csv" in done.json["error"]["message"]
    assert set(tmp_path.iterdir()) == before


def test_a_disk_that_fills_up_while_spilling_is_a_clear_error(tmp_path: Path) -> None:
    """No file may grow beyond 64 KiB here, which is how a full disk looks to a writer."""
    tables = streams(rows=60_000, symbols=9_000)
    inputs = write_all(tables, tmp_path, "parquet")
    query = tmp_path / "query.sql"
    query.write_text(SQL)
    before = set(tmp_path.iterdir())

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    done = dovetail(
        "run", query, *inputs, "--output", "none", *SMALL,
        "--spill-dir", tmp_path / "spill", "--json", before=small_files,
    )  # fmt: skip
    assert done.code == 6, done.err
    assert done.json["error"]["code"] == "spill"
    assert "Traceback" not in done.err
    assert set(tmp_path.iterdir()) == before


def test_a_tuple_that_fans_out_to_a_million_rows_is_no_error(tmp_path: Path) -> None:
    """1 000 × 1 000 rows of one key meet one tuple, within 8 MB."""
    one = pa.table({"k": [7], "a": ["x"]})
    many = pa.table({"k": [7] * 1000, "b": [f"value {i}" for i in range(1000)]})
    inputs = write_all({"p": many, "q": many, "r": one}, tmp_path, "parquet")
    sql = "SELECT p.b, q.b AS c, r.a FROM p JOIN q USING (k) JOIN r USING (k)"
    done = dovetail(
        "run", "-", *inputs, "--output=none", "--memory=8MB", "--cleanup=local", "--json", stdin=sql
    )
    assert done.code == 0, done.err
    assert done.json["results_run"] + done.json["results_cleanup"] == 1_000_000
    assert max(done.json["peak_state_bytes"]) <= 8_000_000
