"""The split's half of a simulated processor: sources, held tuples and the links to instances."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from dovetail_processor.moves.link import Outbox
from dovetail_processor.moves.participant import Participant
from dovetail_proto.ids import GroupId, SplitId
from dovetail_proto.messages import EndOfMovedPartitions
from kit.sim_join import Tuple
from kit.sim_world import World

if TYPE_CHECKING:
    from kit.sim_run import Scenario

BACKLOG_MAX = 24
"""Tuples that a split keeps before it stops its source."""

Item = Tuple | EndOfMovedPartitions


class SimSplits:
    """What a processor does as the host of splits."""

    world: World
    scenario: Scenario
    participant: Participant
    address: str
    crashed: bool
    paused_until_s: float
    stopped: str

    def start_splits(self, splits: tuple[SplitId, ...]) -> None:
        """Begin with nothing sent."""
        self.outboxes: dict[tuple[str, str], Outbox[Item]] = {}
        self.held: dict[tuple[str, int], deque[Tuple]] = {}
        self.sources: dict[str, list[Tuple]] = {s: self.scenario.streams[s] for s in splits}
        self.sent: dict[str, int] = dict.fromkeys(splits, 0)  # taken in so far
        for split in splits:
            self.world.at(0.05, self, self._source, split)

    def check(self) -> None:
        """The processor's invariants."""

    def receive(self, source: str, message: Any) -> None:
        """The processor's messages."""

    def _source(self, split: str) -> None:
        """The source offers its next tuples, and now and then repeats some that it sent before."""
        rows, taken = self.sources[split], self.sent[split]
        if self.stopped or taken >= len(rows):
            return
        random = self.world.random
        backlog = sum(len(b.pending) for b in self.outboxes.values())
        backlog += sum(len(h) for h in self.held.values())
        if backlog < BACKLOG_MAX:
            upto = min(len(rows), taken + random.randint(1, 3))
            begin = taken
            if self.scenario.replays and random.random() < 0.1:
                begin = max(0, taken - random.randint(1, 4))
            self.sent[split] = upto
            for row in rows[begin:upto]:
                self._route(split, row)
            self._flush(split)
        self.world.at(self.scenario.gap_s * (0.5 + random.random()), self, self._source, split)

    def _route(self, split: str, row: Tuple) -> None:
        group = GroupId(row[2] % self.scenario.partitions)
        if group in self.participant.split_host.held:
            self.held.setdefault((split, group), deque()).append(row)
        else:
            self._outbox(split, self.participant.map.owner(group)).offer(row, row[3])

    def _hold(self, groups: set[GroupId]) -> None:
        partitions = self.scenario.partitions
        for (split, _), box in self.outboxes.items():
            for row, _ in box.withdraw(
                lambda r: isinstance(r, tuple) and r[2] % partitions in groups
            ):
                key = (split, row[2] % partitions)  # type: ignore[index]
                self.held.setdefault(key, deque()).append(row)  # type: ignore[arg-type]

    def _release(self, groups: tuple[GroupId, ...], owner: str) -> None:
        for split in self.sources:
            for g in groups:
                for row in self.held.pop((split, g), ()):
                    self._outbox(split, owner).offer(row, row[3])
            self._flush(split)

    def _outbox(self, split: str, to: str) -> Outbox[Item]:
        key = (split, to)
        if key not in self.outboxes:
            self.outboxes[key] = Outbox(resend_s=0.6)
        return self.outboxes[key]

    def _flush(self, split: str) -> None:
        for (s, to), box in self.outboxes.items():
            if s == split and box.pending:
                frames = box.flush(self.world.now_s)
                # Nothing granted yet: ask for the first credit.
                self._post(s, to, frames or ([(0, None)] if box.allowed_bytes == 0 else []))

    def _post(self, split: str, to: str, frames: list[Any]) -> None:
        if frames:
            self.world.send(self.address, to, [split, *frames])

    def _acknowledged(self, source: str, split: str, number: int, allowed: int) -> None:
        box = self.outboxes.get((split, source))
        if box is not None and not self.stopped:
            box.acknowledged(number, allowed, self.world.now_s)
            self._post(split, source, box.flush(self.world.now_s))
