"""What the command line says of rows that were taken in, and of results that are lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dovetail.commands.results import tell_losses
from dovetail.commands.stream import saying_where_it_stopped


def test_a_feed_that_is_stopped_says_how_many_rows_are_taken_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever feeds again has to know that they cannot be taken back."""
    shown: list[int] = []

    def feed() -> None:
        with saying_where_it_stopped(shown.append) as tell:
            tell(104_000)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feed()
    assert shown == [104_000]
    assert "at least 104,000 rows are taken in" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "rows", "told"), [("failed", 5, True), ("failed", 9, False)])
def test_results_that_died_with_a_processor_are_missed_aloud(
    state: str, rows: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found and not written yet is counted."""
    status = SimpleNamespace(name="q", state=state, results=9, cause="processor p2 died")
    tell_losses(status, rows)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert ("4 of the 9 results" in said) == told
