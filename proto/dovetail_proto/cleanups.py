"""A clean-up through the cluster: what programs ask, and what they are told; part of `admin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dovetail_proto.wire.fields import Checksum, Name, Positive

CLEANUP_BYTES_DEFAULT = 1 << 30
"""As much as a run takes by default."""


@dataclass(frozen=True, slots=True)
class StartCleanup:
    """Produce what a closed query's state on disk owes, or go on with what was stopped.

    `master` is `local` (processes on the manager's machine), a Spark master that the manager
    allows, `spark` for the first of those, or empty for the manager's own choice. Results go below
    `output`; `none` only counts them; empty is the query's own folder of results.
    """

    query: Name
    master: str = ""
    output: str = ""
    memory_bytes: Positive = CLEANUP_BYTES_DEFAULT  # for all its processes on one machine together


@dataclass(frozen=True, slots=True)
class CleanupStatus:
    """A clean-up of a query; `cause` and `remedy` say why it failed, if it did."""

    query: Name
    state: Annotated[str, "running, done, failed or cancelled"]
    master: str
    output: Annotated[str, "where the results are; empty: only counted"]
    stage: Annotated[str, "of a running one: starting, counting or joining"]
    bins_done: int
    bins: Annotated[int, "0 until they are known"]
    combinations: Annotated[int, "of `owed`, made so far, before conditions that span inputs"]
    owed: Annotated[int, "0 while it is not known"]
    results: Annotated[int, "rows, once it is done"]
    checksum: Annotated[Checksum, "of the results, as a query's"]
    code: Annotated[str, "of the error that it failed with, as in errors"]
    cause: str
    remedy: str
    started_s: float
    ended_s: Annotated[float, "0 until then"]
