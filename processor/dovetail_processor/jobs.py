"""What takes long is a job: a shell does it, the worker goes on and hears of its end as an event.

    worker:  lane.run(work, done) ──▶ shell: work() on a thread, or at some virtual time
    worker:  done(outcome)  ◀──────── an event like any other, never inside `run`

Jobs of one lane are done one after another, in order; lanes do not wait for each other. `work`
touches nothing that the worker changes meanwhile; `done` runs where the worker runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of a job: its value, or the error that ended it."""

    value: T | None = None
    error: Exception | None = None

    def result(self) -> T:
        """The value; raises the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value] # without an error it is the job's value


def outcome_of(work: Callable[[], T]) -> Outcome[T]:
    """Do a job now."""
    try:
        return Outcome(work())
    except Exception as e:  # whatever it is, the worker must hear of it
        return Outcome(error=e)


class Lane(Protocol):
    """Jobs in order, one at a time."""

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """Have `work` done behind the jobs before it; then `done` is an event of the worker."""

    def close(self) -> None:
        """No job follows. Those that were given are done."""


class Lanes(Protocol):
    """Where a worker gets its lanes from."""

    def lane(self, name: str) -> Lane:
        """A new lane; the name is for people."""


class FollowedLane:
    """A lane whose jobs' ends are guarded, and then followed up by their owner."""

    def __init__(
        self,
        lane: Lane,
        guard: Callable[[Callable[[], object]], None],
        follow_up: Callable[[], None],
    ) -> None:
        self._lane = lane
        self._guard = guard
        self._follow_up = follow_up

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """See Lane."""

        def followed(outcome: Outcome[T]) -> None:
            self._guard(lambda: done(outcome))
            self._follow_up()

        self._lane.run(work, followed)

    def close(self) -> None:
        """See Lane."""
        self._lane.close()
