"""Clean-ups from the front door: on Spark or on this machine, watched and stoppable.

Most runs owe nothing: what a clean-up needs is imported when there is one.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dovetail.progress import Watcher
from dovetail_pipeline.spark.session import MASTER_DEFAULT, SparkSettings, why_unavailable
from dovetail_proto.errors import Interrupted

if TYPE_CHECKING:
    from dovetail_pipeline.cleanup import CleanupResult, Progress
    from dovetail_pipeline.cleanup.stores import RunCleanup

On = Literal["spark", "local"]


@dataclass(frozen=True, slots=True)
class CleanupMeans:
    """What a clean-up may use."""

    on: On
    memory_bytes: int  # for all processes of one machine together
    master: str = MASTER_DEFAULT  # for Spark


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What clean-ups produced, in their order."""

    results: list[CleanupResult]
    seconds_spark_start: float  # a part of the first result's seconds; 0 where Spark did not start


def clean_up(
    cleanups: Sequence[RunCleanup],
    means: CleanupMeans,
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] | None = None,
) -> Cleaned:
    """Produce what closed spill stores owe; Spark starts only if one of them owes something.

    Goes on where an earlier call was stopped; after the end it does nothing and returns the same.
    Once `stop` is true, Interrupted is raised. Other errors keep what is finished.
    """
    from dovetail_pipeline.cleanup import conduct, run_here
    from dovetail_pipeline.spark.hands import SparkHands
    from dovetail_proto.spill_format import place_above

    watcher = watcher or Watcher()
    progress = _watched(watcher, stop)
    with ExitStack() as stack:
        hands = None
        if means.on == "spark":
            settings = SparkSettings(means.master)
            hands = stack.enter_context(
                SparkHands(settings, memory_bytes=means.memory_bytes, tell=watcher.noted)
            )
        results = []
        for c in cleanups:
            try:
                results.append(
                    conduct(c.stores, c.output, hands, progress)
                    if hands is not None
                    else run_here(c.stores, c.output, means.memory_bytes, progress)
                )
            except Interrupted as e:
                output = "none" if c.output is None else place_above(c.output)[0]
                again = f"`{cleanup_command(c.place, output)}` goes on with what is left"
                raise Interrupted(e.message, remedy=again) from None
        return Cleaned(results, hands.start_seconds if hands is not None else 0.0)


def chosen_or_default(chosen: On | None) -> On:
    """Where to clean up: as chosen, else on Spark where that is possible.

    ConfigError if Spark was chosen and cannot be used; if it was not, a line on standard error
    says why the work is done on this machine instead.
    """
    if chosen == "local":
        return "local"
    problem = why_unavailable()
    if problem is None:
        return "spark"
    if chosen == "spark":
        raise problem
    sys.stderr.write(f"note: cleaning up without Spark: {problem.message}\n")
    return "local"


def cleanup_command(spill_dir: str | None, output: str) -> str:
    """What to type to produce the results that a spill store owes."""
    return shlex.join(["dovetail", "cleanup", str(spill_dir), "--output", output])


def _watched(watcher: Watcher, stop: Callable[[], bool] | None) -> Callable[[Progress], None]:
    """Tell the watcher; end the clean-up as Ctrl-C does once `stop` is true."""

    def tell(progress: Progress) -> None:
        watcher.cleaning(progress)
        if stop is not None and stop():
            raise KeyboardInterrupt

    return tell
