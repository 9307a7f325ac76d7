"""When to push, and what: the disk adaptation of S4 4.3, and its absence.

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
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.memory import Shares


class NoRelief:
    """Policy `none`: nothing is pushed; when state alone reaches the limit the query stops."""

    def __init__(self, bounds: Shares) -> None:
        self._bounds = bounds

    def before_batch(self) -> None:
        """Nothing to do."""

    def now(self) -> None:
        """See Relief: there is no way to go on."""
        raise MemoryLimitError(
            f"the join's state has reached {self._bounds.state:,} bytes, all that a memory limit "
            f"of {self._bounds.limit:,} bytes leaves for it",
            remedy="raise --memory or let state go to disk with --policy disk",
        )


class DiskRelief:
    """Policy `disk`: push a share of the state when it exceeds a threshold.

    The threshold is a part of what the limit leaves for state. Queues have their shares in full,
    so what they hold says nothing: measured against the whole limit, a push would begin only when
    state is at its end, and the join would wait for it.
    """

    def __init__(
        self,
        state: JoinState,
        pusher: Pusher,
        bounds: Shares,
        *,
        spill_above_ratio: float,
        push_fraction: float,
        victims: VictimOrder,
        inactive_after_s: float,
        output: RecentOutput,
        clock: Callable[[], float],
        seed: int,
        moving: Callable[[], bool] = lambda: False,  # nodiskAdaptation: a move is under way here
    ) -> None:
        self._state = state
        self._pusher = pusher
        self._bounds = bounds
        self._spill_above_ratio = spill_above_ratio
        self._push_fraction = push_fraction
        self._victims = victims
        self._inactive_after_s = inactive_after_s
        self._output = output
        self._clock = clock
        self._rng = np.random.default_rng(seed)
        self._moving = moving

    def before_batch(self) -> None:
        """Free what is written; start a push if memory is above the threshold."""
        self._output.look(self._clock())
        self._pusher.collect_finished()
        want = bytes_to_push(
            used_bytes=self._state.held_bytes,
            limit_bytes=self._state.limit_bytes,
            held_bytes=self._state.held_bytes,
            spill_above_ratio=self._spill_above_ratio,
            push_fraction=self._push_fraction,
            no_disk_adaptation=self._moving(),
            in_disk_adaptation=self._pusher.busy,
        )
        if want:
            self.push(want)

    def now(self) -> None:
        """See that a push is under way, whose end makes room.

        Also beside a move: its own groups are locked, and without room for what waits before the
        markers it would never end.
        """
        if not self._pusher.busy and self._state.group_rows().any():
            self.push(max(1, int(self._push_fraction * self._state.held_bytes)))
        if not self._pusher.busy:
            raise MemoryLimitError(
                f"a row does not fit into the {self._state.limit_bytes:,} bytes that the memory "
                "limit leaves for state",
                remedy="raise --memory",
            )

    def push(self, want_bytes: int) -> int:
        """Start a push of about so much; the bytes it takes from memory, 0 if no group can go."""
        held = np.where(self._state.locked, 0, self._state.group_bytes())
        produced = self._output.counted(self._clock())
        stats = GroupStats(held, produced, self._state.last_insert_s)
        ids = choose_victims(
            stats,
            want_bytes,
            order=self._victims,
            now_s=self._clock(),
            inactive_after_s=self._inactive_after_s,
            rng=self._rng,
        )
        taken = int(held[ids].sum())
        if taken:
            self._pusher.start(self._state.detach(np.sort(ids)), taken)
        return taken
