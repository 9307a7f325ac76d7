"""The manager's machine under random events: slow writes, crashes, deaths, operators at any time.

What processors were told is never taken back: a query that was told to close is never told to go
on, and one that vanished from an assignment has ended. Afterwards, when everyone answers, every
query can be closed or has failed, and dropping them leaves nothing of them in the store.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from dovetail_manager import members, queries
from dovetail_manager.adaptation import rounds
from dovetail_manager.records import End
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import DovetailError
from dovetail_proto.ids import GroupId, ProcessorId, QueryName
from dovetail_proto.messages import (
    ComputePartitionsToMove,
    Deactivated,
    DeactivatePartitions,
    FinishMove,
    Heartbeat,
    MoveFinished,
    PartitionsToMove,
    Pushed,
    PushPartitions,
    QueryStopped,
    Reactivated,
    ReactivatePartitions,
    Received,
    Reserve,
    Reserved,
    SendPartitions,
    Stage,
    StopQuery,
)
from kit.manager import Manager, report

NAMES = ("a", "b", "c")
QUERIES = (QueryName("q"), QueryName("r"))
POLICIES = ("none", "disk", "lazy-disk", "active-disk")


class Story:
    """One seed: a manager (one after the other) and three processors that mostly answer."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.manager = Manager()
        self.manager.held = True
        self.epoch = 1
        self.read = 0  # messages of this manager that were looked at
        self.incarnation = dict.fromkeys(NAMES, 0)
        self.told: dict[str, dict[str, Phase]] = {n: {} for n in NAMES}  # by run
        self.assigned = dict.fromkeys(NAMES, 0)

    def run(self, steps: int) -> None:
        """Random events."""
        for _ in range(steps):
            self.random.choice(
                (self.join, self.beat, self.beat, self.beat, self.operate, self.operate)
                + (self.time, self.write, self.write, self.write, self.write, self.listen)
                + ((self.crash,) if self.random.random() < 0.5 else ())
            )()

    def settle(self) -> None:
        """Everyone answers: queries end and are dropped."""
        for _ in range(60):
            for query in QUERIES:
                self.ask(queries.set_phase, query, Phase.CLOSING)
                self.ask(queries.drop, query)
            for name in NAMES:
                self.beat(name, honest=True)
            self.manager.write_all()
            self.manager.pass_time(0.5)
            self.listen()
        left = [k for k in self.manager.entries if not k.startswith(("member/", "stream/"))]
        assert left == []

    def join(self) -> None:
        """A processor starts, for the first time or anew."""
        name = self.random.choice(NAMES)
        if self.random.random() < 0.05 or self.incarnation[name] == 0:
            self.incarnation[name] += 1
            self.told[name], self.assigned[name] = {}, 0
        try:
            self.manager.join(name, incarnation=self.incarnation[name])
        except DovetailError:  # this incarnation was declared dead
            self.manager.controller.check()

    def beat(self, name: str = "", honest: bool = False) -> None:
        """A processor reports what it was told to run; sometimes it cannot go on."""
        if not name:
            for each in self.random.sample(NAMES, 2):
                self.beat(each)
            return
        if not self.incarnation[name]:
            return
        loads = []
        for run, phase in self.told[name].items():
            stage = Stage.RUNNING
            if phase is Phase.CLOSING and (honest or self.random.random() < 0.5):
                stage = Stage.CLOSED
            if not honest and self.random.random() < 0.003:
                stage = Stage.FAILED
            groups = self.random.randint(0, 2)
            query = run.partition("-")[0]
            loads.append(report(query, groups, stage, held_bytes=self.random.randint(0, 900)))
        beat = Heartbeat(
            ProcessorId(name),
            self.incarnation[name],
            self.random.randint(0, 1000),
            tuple(loads),
            False,
            assigned=self.assigned[name],
        )
        self.manager.hear(name, beat)

    def operate(self) -> None:
        """Somebody asks for something, sensible or not."""
        query, name = self.random.choice(QUERIES), self.random.choice(NAMES)
        groups = [GroupId(g) for g in sorted(self.random.sample(range(5), 2))]
        verb, words = self.random.choice(
            (
                (queries.submit, ()),
                (queries.submit, ()),
                (queries.set_phase, (query, self.random.choice(list(Phase)))),
                (queries.drop, (query,)),
                (rounds.move, (query, groups[:1], ProcessorId(name))),
                (rounds.pin, (query, groups, self.random.random() < 0.5)),
                (queries.set_policy, (query, self.random.choice(POLICIES))),
                (members.ask_to_leave, (ProcessorId(name),)),
                (rounds.rebalance, (query,)),
            )
        )
        if verb is queries.submit:
            try:
                self.manager.submit(query)
            except DovetailError:
                self.manager.controller.check()
        elif verb is rounds.rebalance:
            self.ask(verb, *words, dry_run=self.random.random() < 0.5)
        else:
            self.ask(verb, *words)

    def ask(self, verb: str, *words: Any, **fields: Any) -> None:
        """A verb that may be refused."""
        try:
            self.manager.do(verb, *words, **fields)
        except DovetailError:
            self.manager.controller.check()

    def time(self) -> None:
        """Some seconds pass."""
        self.manager.pass_time(self.random.choice((0.5, 0.5, 2.0)))

    def write(self) -> None:
        """The store does the next write; processors may hear of it before it does another."""
        if self.manager.waiting:
            self.manager.write(self.manager.waiting.pop(0))
        if self.random.random() < 0.5:
            self.listen()

    def crash(self) -> None:
        """Another manager takes over; a write under way may have been done."""
        entries = dict(self.manager.entries)
        if self.manager.waiting and self.random.random() < 0.5:
            for key, value in self.manager.waiting[0].puts.items():
                entries.pop(key, None)
                if value is not None:
                    entries[key] = value
        self.epoch += 1
        self.manager = Manager(self.epoch, entries)
        self.manager.held, self.read = True, 0

    def listen(self) -> None:
        """Processors hear what was sent to them since, and answer most of it."""
        while self.read < len(self.manager.sent):
            sent = self.manager.sent[self.read]
            self.read += 1
            answer = self._answer(sent.to, sent.message)
            if answer is not None and self.random.random() < 0.9:
                try:
                    self.manager.hear(sent.to, answer)
                except DovetailError:
                    self.manager.controller.check()
        for name in NAMES:
            self._carry_out(name)

    def _carry_out(self, name: str) -> None:
        seen = self.manager.assigned(name)
        if seen is None or seen.version <= self.assigned[name]:
            return
        now = {q.run: q.phase for q in seen.queries}
        durable = [q.durable for q in self.manager.state.queries.values() if q.durable]
        going_on = {record.run for record in durable if record.end is End.NOT_YET}
        for run, phase in self.told[name].items():
            if run not in now:
                assert run not in going_on, f"{run} goes on but {name} was told to drop it"
            elif phase is Phase.CLOSING:
                assert now[run] is Phase.CLOSING, f"{run} closed at {name}, then {now[run]}"
        self.told[name], self.assigned[name] = now, seen.version

    def _answer(self, to: ProcessorId, m: Any) -> Any:
        match m:
            case StopQuery(query, epoch):
                return QueryStopped(query, epoch)
            case PushPartitions(query, epoch, order, size_bytes):
                return Pushed(query, epoch, order, size_bytes)
            case ComputePartitionsToMove(ref, _, groups, exclude):
                known = self.manager.query(ref.query).placement.map
                owned = [GroupId(int(g)) for g in known.groups_of(to)]
                chosen = groups or tuple(g for g in owned if g not in exclude)[:1]
                return PartitionsToMove(ref, chosen, tuple(10 for _ in chosen))
            case Reserve(ref):
                return Reserved(ref)
            case DeactivatePartitions(ref, chunk):
                return Deactivated(ref, chunk)
            case SendPartitions(ref, chunk, _, receiver):
                if self.random.random() < 0.8:
                    try:
                        self.manager.hear(receiver, Received(ref, chunk, 10))
                    except DovetailError:
                        self.manager.controller.check()
            case ReactivatePartitions(ref, chunk, _, _, patch):
                return Reactivated(ref, chunk, patch.to_version)
            case FinishMove(ref):
                return MoveFinished(ref)
        return None


@pytest.mark.parametrize("seeds", [range(i, i + 20) for i in range(0, 80, 20)])
def test_whatever_happens_nothing_told_is_taken_back_and_every_query_ends(seeds: range) -> None:
    """Seeds that fail are named."""
    for seed in seeds:
        story = Story(seed)
        try:
            story.run(150)
            story.settle()
        except AssertionError as e:
            raise AssertionError(f"seed {seed}: {e}") from e
