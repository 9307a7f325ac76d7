"""What the command line says of rows that were taken in."""

from __future__ import annotations

import pytest

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
