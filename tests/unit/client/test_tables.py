"""Tables of the command line: at any width, what matters can be read to its end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from dovetail.cli import run_command
from dovetail.tables import table

COLUMNS = ("move", "from and to", "groups", "size", "began", "took", "state", "reason")
ROW = (
    "1-prices-12",
    "b99d5d6f85b8 → 24754293b288",
    1_250,
    "204.6 MB",
    "12:00:01",
    "0.25 s",
    "rolled back",
    "M_least / M_most = 0.31 is below 0.8: b99d5d6f85b8 has no room for 204.6 MB",
)
SPARE = ("began", "took", "size")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 10_000])
def test_no_cell_is_cut_and_only_spare_columns_go(width: int) -> None:
    """Every word of every column that cannot be spared is there, and no line is too long."""
    out = io.StringIO()
    Console(file=out, width=width).print(table(COLUMNS, [ROW], width, spare=SPARE))
    text = out.getvalue()
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    words = [str(cell) for t, cell in zip(COLUMNS, ROW, strict=True) if t not in SPARE]
    missing = {w for cell in words for w in cell.replace("1250", "1,250").split()} - set(
        text.split()
    )
    assert missing == set()
    if width >= 160:
        assert all(title in text for title in COLUMNS)


def test_what_is_piped_has_a_line_for_each_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long it is; COLUMNS asks for another width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("DOVETAIL_STORE", "sqlite:/" + "a-long-folder/" * 20)
    for columns, lines in ((None, 1), ("80", 6)):
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        assert run_command(["config", "show"]) == 0
        text = capsys.readouterr().out
        assert text.count("a-long-folder/") == 20 or columns
        assert len([line for line in text.splitlines() if "a-long" in line]) <= lines


@pytest.mark.parametrize(
    "words", [("doctor",), ("simulate", "--processors", "9", "--groups", "90")]
)
@pytest.mark.parametrize("columns", [None, "80"])
def test_commands_with_facts_of_their_own_cut_nothing(
    words: tuple[str, ...],
    columns: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Piped, a fact is a line; at 80 columns a row may become a block, with every title."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    run_command(words)
    text = capsys.readouterr().out
    assert "…" not in text
    if words[0] == "doctor":
        packages = next(line for line in text.splitlines() if line.startswith("packages"))
        assert "pyarrow" in packages
        assert "sqlglot" in packages
    else:
        assert {"policy", "spread", "moves", "moved", "pushed", "output"} <= set(text.split())
        assert "active-disk" in text.split()
