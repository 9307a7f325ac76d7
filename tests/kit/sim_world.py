"""Virtual time, an unreliable network and the list of faults: the simulator's ground.

One thread, one heap of events. A node hears only by `deliver`; a crashed node hears nothing, a
paused one hears everything late. All chance comes from one generator per seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

EVENTS_MAX = 200_000
"""Ten times what a long run takes: beyond it the protocol talks to itself for ever."""


def name_of(address: str) -> str:
    """Who is at an address, whichever process of it."""
    return address.rpartition(".")[0] or address


class Violation(AssertionError):  # noqa: N818 - a finding, not a fault of the kit
    """An invariant or the comparison with the oracle failed."""


class Node(Protocol):
    """Whatever has an address."""

    address: str
    crashed: bool
    paused_until_s: float

    def receive(self, source: str, message: Any) -> None:
        """Take a message."""

    def check(self) -> None:
        """Assert the node's invariants."""


@dataclass(slots=True)
class Faults:
    """What may go wrong in this run; all off is a quiet network and an endless disk."""

    far: str = ""  # a processor that hears what a manager says up to `far_s` later
    far_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.005
    slow: float = 0.0  # share of messages delayed by up to `slow_s`
    slow_s: float = 0.0
    cuts: list[tuple[float, float, str, str]] = field(default_factory=list)  # one-way: from, until
    store_loss: float = 0.0  # share of store calls whose request or answer is lost
    store_outages: list[tuple[float, float]] = field(default_factory=list)  # from, until
    cut_at_commit_s: float = 0.0  # a manager that commits is cut off for so long
    crash_at_commit: bool = False  # or crashes
    step_s: float = 0.0004  # a step of a worker takes up to twice this
    job_s: float = 0.02  # what takes long takes up to twice this
    blocked_sinks: list[tuple[float, float, str]] = field(default_factory=list)  # from, till, whose
    full_disks: list[tuple[float, float, str]] = field(default_factory=list)  # from, until, whose
    bad_disks: list[tuple[float, float, str]] = field(default_factory=list)  # writes fail for good


class World:
    """The clock, the network and everything that happened."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_s = 0.0
        self.faults = Faults()
        self.nodes: dict[str, Node] = {}
        self.story: list[tuple[float, str, Any]] = []
        self.happened: set[str] = set()  # kinds of faults that came about
        self._heap: list[tuple[float, int, Node | None, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.events = 0
        self.blamed = ""  # a violation found where it could not be raised
        self.step_hook: Callable[[Any, str, bool], None] = lambda node, step, before: None

    def at(self, delay_s: float, node: Node | None, call: Callable[..., None], *args: Any) -> None:
        """Call later; never, if `node` has crashed by then; later still, if it is paused."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._count, node, call, args))

    def send(self, source: str, to: str, message: Any) -> None:
        """Post a message; faults decide whether, when and how often it arrives."""
        faults, random = self.faults, self.random
        ends = (name_of(source), name_of(to))
        for since, until, *cut in faults.cuts:
            if tuple(cut) == ends and since <= self.now_s < until:
                return
        if faults.loss and random.random() < faults.loss:
            return
        copies = 2 if faults.duplicate and random.random() < faults.duplicate else 1
        for _ in range(copies):
            delay_s = faults.delay_s * (0.2 + random.random())
            if faults.slow and random.random() < faults.slow:
                delay_s += random.random() * faults.slow_s
            if faults.far == ends[1] and source.startswith("m"):
                delay_s += random.random() * faults.far_s
            self.at(delay_s, None, self._deliver, source, to, message)

    def tell(self, who: str, what: Any) -> None:
        """Add a line to the story."""
        self.story.append((self.now_s, who, what))

    def run(self, until_s: float, done: Callable[[], bool] | None = None) -> bool:
        """Let events happen until the time is over or `done` holds; whether it held."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            at_s, _, node, call, args = heapq.heappop(heap)
            self.now_s = at_s
            if node is not None:
                if node.crashed:
                    continue
                if node.paused_until_s > at_s:
                    self.at(node.paused_until_s - at_s, node, call, *args)
                    continue
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violation(f"more than {EVENTS_MAX} events: no end in sight")
            call(*args)
            if node is not None and not node.crashed:
                node.check()
            if self.blamed:
                raise Violation(self.blamed)
            if done is not None and done():
                return True
        self.now_s = max(self.now_s, until_s)
        return False

    def _deliver(self, source: str, to: str, message: Any) -> None:
        node = self.nodes.get(to)
        if node is None or node.crashed:
            return
        if node.paused_until_s > self.now_s:
            wait_s = node.paused_until_s - self.now_s
            self.at(wait_s, None, self._deliver, source, to, message)
            return
        node.receive(source, message)
        if not node.crashed:
            node.check()


def tell_story(world: World, lines: int = 400) -> str:
    """The run in words, newest last."""
    told = [f"{at_s:9.4f}  {who:<8} {what}" for at_s, who, what in world.story[-lines:]]
    skipped = len(world.story) - len(told)
    head = [f"... {skipped} lines before"] if skipped > 0 else []
    return "\n".join([*head, *told])
