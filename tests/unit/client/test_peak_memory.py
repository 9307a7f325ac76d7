"""The peak of a process's memory is seen even if it lasted for a moment only."""

from __future__ import annotations

import numpy as np

from dovetail.memory import PeakMemory


def test_the_peak_counts_memory_that_is_freed_again() -> None:
    """96 MB more than before, though they are gone at the end."""
    with PeakMemory() as before:
        pass
    with PeakMemory() as memory:
        block = np.ones(12_000_000)
        assert block[-1] == 1
        del block
    assert memory.peak_bytes >= before.peak_bytes + 90_000_000


def test_an_earlier_peak_does_not_count() -> None:
    """Each context starts from what is held at its start."""
    with PeakMemory() as large:
        block = np.ones(12_000_000)
        assert block[-1] == 1
        del block
    with PeakMemory() as small:
        pass
    assert small.peak_bytes < large.peak_bytes - 50_000_000
