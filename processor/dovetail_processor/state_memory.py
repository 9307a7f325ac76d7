"""What a query does when its join is short of memory: push, or wait for what others give back.

before a batch ─▶ above θ_m: a push begins, the join goes on
no page left   ─▶ a push is under way, or begins: the join waits for its end
               └▶ the policy uses no disk, or less than the minimum is left because of others:
                  the join waits for memory, which `memory_pool` finds, or ends the query
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.join.state import JoinState
from dovetail_processor.spill.pusher import Pusher
from dovetail_processor.spill.relief import DiskRelief
from dovetail_proto.assignment import DiskSettings


class StateMemory:
    """The memory of one query's join; see `operators.join.Relief`."""

    def __init__(
        self,
        state: JoinState,
        output: RecentOutput,
        minimum_bytes: int,
        moving: Callable[[], bool],
    ) -> None:
        self._state = state
        self._output = output
        self._minimum_bytes = minimum_bytes
        self._moving = moving
        self._pusher: Pusher | None = None
        self._relief: DiskRelief | None = None  # None: the policy pushes nothing
        self._for_push = False  # the join waits for the push under way
        self.short: int | None = None
        """Bytes free when the join began to wait for other queries' memory; None: it does not."""

    def use(self, pusher: Pusher | None, settings: DiskSettings) -> None:
        """Push there from now on, like this; not at all if the settings do not allow it.

        A query without a place for its state on disk has no pusher.
        """
        self._pusher = pusher
        self._relief = None
        if pusher is not None and settings.allowed:
            self._relief = DiskRelief(
                self._state,
                pusher,
                settings,
                self._output,
                moving=self._moving,
                pushed=self.pushed,
            )
            self.short = None  # it may push now

    @property
    def spills(self) -> bool:
        """Whether state may go to disk."""
        return self._relief is not None

    @property
    def pushing(self) -> bool:
        """Whether a push is under way (indiskAdaptation)."""
        return self._pusher is not None and self._pusher.busy

    @property
    def reservable_bytes(self) -> int:
        """What groups that come may have: they leave it the minimum, else it could not go on."""
        kept = max(self._state.held_bytes, self._minimum_bytes)
        return max(0, self._state.limit_bytes - kept)

    @property
    def waits(self) -> bool:
        """See Relief."""
        return self._for_push or self.short is not None

    @property
    def spare_bytes(self) -> int:
        """See Relief: beyond the minimum, and not so much that a push would begin for it."""
        held = float(self._state.held_bytes)
        if self._relief is not None:
            held /= self._relief.settings.spill_above_ratio
        return max(0, int(self._state.limit_bytes - max(held, self._minimum_bytes)))

    def before_batch(self, now_s: float) -> None:
        """See Relief."""
        self._output.look(now_s)
        if self._relief is not None:
            self._relief.before_batch(now_s)

    def now(self, now_s: float) -> None:
        """See Relief."""
        if self.pushing:  # its end makes room, also if the policy has changed since it began
            self._for_push = True
        elif self._relief is None or self._state.limit_bytes < self._minimum_bytes:
            self.short = self._state.limit_bytes - self._state.held_bytes
        elif self._relief.now(now_s):
            self._for_push = True
        else:  # all that it holds is on its way elsewhere: the end of the move makes room
            self.short = self._state.limit_bytes - self._state.held_bytes

    def pushed(self) -> None:
        """A push has ended."""
        self._for_push = False

    def unlocked(self) -> None:
        """Groups that were on their way stay, and can be pushed again, or are gone."""
        self.short = None

    def push(self, want_bytes: int, now_s: float) -> int:
        """Begin to push so much; the bytes it takes from memory, 0 if nothing can be pushed."""
        return 0 if self._relief is None else self._relief.push(want_bytes, now_s)

    def set_limit(self, limit_bytes: int) -> None:
        """The state may hold so much from now on."""
        self._state.limit_bytes = limit_bytes
        if self.short is not None and limit_bytes - self._state.held_bytes > self.short:
            self.short = None
