"""Memory that the workers of one process share: each may use what it is granted.

    limit = granted to p1.0 + granted to p1.1 + … + free

Every worker begins with an equal part. One that has used most of it is short, and gets what is
free; its neighbours are woken, and those that use little let go of what they do not need. What its
queries are sure of a worker keeps: whoever has it need not give it back in time.

Invariant: what is granted is never more than the limit. A grant is cut by its worker alone, so what
a worker may use now, it may use until it lets go of it: no two count on the same byte.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dovetail_proto.ids import ProcessorId
from dovetail_proto.memory import read_ahead_bytes

SHORT_SHARE = 0.6
"""A worker that has used so much of its grant is short: before it begins to push, at θ_m."""

RESERVE_PARTS = 8
"""Beside a quarter of its state, a worker keeps or asks for this part of its equal part: some
batches, so that it need not ask again at every step."""


class ProcessMemory:
    """The memory of one process; its workers may be threads."""

    def __init__(self, limit_bytes: int, workers: int) -> None:
        self.limit_bytes = limit_bytes
        self.workers = workers
        self.part_bytes = limit_bytes // workers
        """What each worker begins with, and is the measure of how full it is."""
        self.ahead_bytes = read_ahead_bytes(self.part_bytes) if workers > 1 else 0
        """What a worker's files may hold that is decoded before its turn: nothing where there is
        one worker, since a file is decoded by as many lanes as there are workers."""
        self._free_bytes = limit_bytes - workers * self.part_bytes
        self._granted: dict[ProcessorId, int] = {}
        self._unheard: dict[ProcessorId, set[ProcessorId]] = {}
        """Who is short, and which neighbours have not asked for a grant since."""
        self._wake: dict[ProcessorId, Callable[[], None]] = {}
        self._lock = threading.Lock()

    def join(self, worker: ProcessorId, wake: Callable[[], None]) -> None:
        """A worker of the process; `wake` has it ask for a grant soon, in its own thread."""
        with self._lock:
            self._granted[worker] = self.part_bytes
            self._wake[worker] = wake

    def leave(self, worker: ProcessorId) -> None:
        """A worker has ended, and uses nothing any more."""
        with self._lock:
            self._free_bytes += self._granted.pop(worker, 0)
            self._wake.pop(worker, None)
            self._unheard.pop(worker, None)
            for other, unheard in self._unheard.items():
                unheard.discard(worker)
                self._wake[other]()

    def grant(
        self, worker: ProcessorId, fixed_bytes: int, held_bytes: int, minimum_bytes: int = 0
    ) -> int:
        """How much a worker may use from now on, that has `fixed_bytes` for good and holds more.

        It never lets go of the `minimum_bytes` that it is sure of for what it holds.
        """
        used = fixed_bytes + held_bytes
        need = used + held_bytes // 4 + self.part_bytes // RESERVE_PARTS
        with self._lock:
            granted = self._granted[worker]
            others_short = self._unheard.keys() - {worker}
            short = used > SHORT_SHARE * granted
            if short:
                wanted = max(granted, need)
            elif others_short:
                sure = fixed_bytes + minimum_bytes
                wanted = min(granted, max(need, sure, self.part_bytes // 2))
            else:
                wanted = max(self.part_bytes, min(granted, need))
            change = min(wanted - granted, self._free_bytes)
            self._free_bytes -= change
            self._granted[worker] = granted + change
            self._note(worker, short=short, grew=change > 0)
            for other in others_short:
                self._unheard[other].discard(worker)
                if change < 0 or not self._unheard[other]:
                    self._wake[other]()
            return granted + change

    def may_grow(self, worker: ProcessorId) -> bool:
        """Whether a neighbour has yet to say if it can let go of something for a short worker."""
        with self._lock:
            return bool(self._unheard.get(worker))

    def _note(self, worker: ProcessorId, *, short: bool, grew: bool) -> None:
        if not short:
            self._unheard.pop(worker, None)
        elif grew or worker not in self._unheard:
            neighbours = self._granted.keys() - {worker}
            self._unheard[worker] = set(neighbours)
            for other in neighbours:
                self._wake[other]()
