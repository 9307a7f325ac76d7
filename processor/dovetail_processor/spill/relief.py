"""When to push, and what: the disk adaptation of S4 4.3.

The decision is `adaptation.disk` and `adaptation.victims`, pure; here it meets the state.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dovetail_processor.adaptation.disk import bytes_to_push
from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.adaptation.victims import GroupStats, VictimOrder, choose_victims
from dovetail_processor.join.state import JoinState
from dovetail_processor.spill.pusher import Pusher
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.errors import MemoryLimitError


class DiskRelief:
    """Pushes a share of the state when it exceeds a threshold.

    The threshold is a part of what the limit leaves for state. Queues have their shares in full,
    so what they hold says nothing: measured against the whole limit, a push would begin only when
    state is at its end, and the join would wait for it.
    """

    def __init__(
        self,
        state: JoinState,
        pusher: Pusher,
        settings: DiskSettings,
        output: RecentOutput,
        *,
        moving: Callable[[], bool],  # nodiskAdaptation: a move is under way here
        pushed: Callable[[], None],  # a push has ended
    ) -> None:
        self._state = state
        self._pusher = pusher
        self.settings = settings
        self._output = output
        self._rng = np.random.default_rng(0)
        self._moving = moving
        self._pushed = pushed

    def before_batch(self, now_s: float) -> None:
        """Start a push if memory is above the threshold."""
        want = bytes_to_push(
            used_bytes=self._state.held_bytes,
            limit_bytes=self._state.limit_bytes,
            held_bytes=self._state.held_bytes,
            spill_above_ratio=self.settings.spill_above_ratio,
            push_fraction=self.settings.push_fraction,
            no_disk_adaptation=self._moving(),
            in_disk_adaptation=self._pusher.busy,
        )
        if want:
            self.push(want, now_s)

    def now(self, now_s: float) -> bool:
        """See that a push is under way, whose end makes room; False if none can be now.

        Also beside a move: its own groups are locked, and without room for what waits before the
        markers it would never end. MemoryLimitError if there is nothing to push and no move, nor
        a job that still reads what did not move in the end.
        """
        if not self._pusher.busy and self._state.group_rows().any():
            self.push(max(1, int(self.settings.push_fraction * self._state.held_bytes)), now_s)
        if not self._pusher.busy and not self._moving() and not self._state.locked.any():
            raise MemoryLimitError(
                f"a row does not fit into the {self._state.limit_bytes:,} bytes that the memory "
                "limit leaves for state",
                remedy="raise --memory",
            )
        return self._pusher.busy

    def push(self, want_bytes: int, now_s: float) -> int:
        """Start a push of about so much; the bytes it takes from memory, 0 if no group can go."""
        held = np.where(self._state.locked, 0, self._state.group_bytes())
        stats = GroupStats(held, self._output.counted(now_s), self._state.last_insert_s)
        ids = choose_victims(
            stats,
            want_bytes,
            order=VictimOrder(self.settings.victims),
            now_s=now_s,
            inactive_after_s=self.settings.inactive_after_s,
            rng=self._rng,
        )
        taken = int(held[ids].sum())
        if taken:
            self._pusher.start(self._state.detach(np.sort(ids)), taken, now_s, self._pushed)
        return taken
