"""A clean-up through the cluster: what programs ask, and what they are told; part of `admin`."""

from __future__ import annotations

from dataclasses import dataclass

CLEANUP_BYTES_DEFAULT = 1 << 30
"""As much as a run takes by default."""


@dataclass(frozen=True, slots=True)
class StartCleanup:
    """Produce what a closed query's state on disk owes, or go on with what was stopped.

    `master` is `local` (processes on the manager's machine), a Spark master that the manager
    allows, `spark` for the first of those, or empty for the manager's own choice. Results go below
    `output`; `none` only counts them; empty is the query's own folder of results.
    """

    query: str
    master: str = ""
    output: str = ""
    memory_bytes: int = CLEANUP_BYTES_DEFAULT  # for all its processes on one machine together


@dataclass(frozen=True, slots=True)
class CleanupStatus:
    """A clean-up of a query; `cause` and `remedy` say why it failed, if it did.

    `state` is running, done, failed or cancelled; `stage` of a running one is starting, counting
    or joining. `combinations` of `owed` are made; `owed` is 0 while it is not known.
    """

    query: str
    state: str
    master: str
    output: str  # where the results are; empty: only counted
    stage: str
    bins_done: int
    bins: int  # 0 until they are known
    combinations: int
    owed: int
    results: int  # rows, once it is done
    checksum: int  # of the results, as a query's
    code: str  # of the error that it failed with, as in errors
    cause: str
    remedy: str
    started_s: float
    ended_s: float  # 0 until then
