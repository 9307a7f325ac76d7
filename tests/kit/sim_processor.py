"""A processor's process, simulated: `Participant`, links and victim choice are the real ones."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from sim_join import SimGroup, Tuple, decode_groups, encode_groups
from sim_world import Violation, World

from dovetail_processor.adaptation.disk import bytes_to_push
from dovetail_processor.adaptation.victims import (
    GroupStats,
    VictimOrder,
    choose_groups_to_move,
    choose_victims,
)
from dovetail_processor.moves.instructions import (
    ActivateGroups,
    AdoptMap,
    ChooseGroups,
    DropGroups,
    DropInert,
    HoldGroups,
    Instruction,
    Local,
    ReattachGroups,
    ReleaseGroups,
    Reply,
    SendMarkers,
    ShipGroups,
    StoreInert,
)
from dovetail_processor.moves.link import Inbox, Outbox
from dovetail_processor.moves.participant import Participant
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, SplitId
from dovetail_proto.messages import (
    EndOfMovedPartitions,
    Heard,
    Heartbeat,
    Join,
    Leave,
    Pushed,
    PushPartitions,
    QueryLoad,
    QueryStopped,
    ReceivePartitions,
    Refused,
    StopQuery,
)

if TYPE_CHECKING:
    from sim_run import Scenario

WINDOW_BYTES = 6
"""Credit per link: small, so that links run dry and tuples wait at the split."""

BACKLOG_MAX = 24
"""Tuples that a split keeps before it stops its source."""

TIMER_S = 0.5
Item = Tuple | EndOfMovedPartitions


class SimProcessor:
    """One processor: instance, sink, maybe splits with their sources."""

    def __init__(self, world: World, scenario: Scenario, index: int, late: bool = False) -> None:
        self.world, self.scenario = world, scenario
        self.address = f"p{index}"
        self.id = ProcessorId(self.address)
        self.crashed = False
        self.paused_until_s = 0.0
        self.incarnation = 1
        self.epoch = Epoch(0)
        self.stopped = ""  # why the query was dropped here; empty while it runs
        self.joined = False
        self.leaving = False
        splits = scenario.split_hosts.get(self.id, ())
        self.participant = Participant(scenario.query, self.id, scenario.map, splits)
        self.groups = {
            int(g): SimGroup(scenario.inputs, 0, [0] * scenario.inputs)
            for g in scenario.map.groups_of(self.id)
        }
        self.live = set(self.groups)  # groups that take tuples in; not those on their way out
        self.inert: dict[tuple[str, int], dict[int, SimGroup]] = {}
        self.received_s = np.full(scenario.partitions, -np.inf)
        self.state_bytes = 0  # live, detached for a push, inert
        self.limit = scenario.limit_bytes
        self.pushing: list[tuple[int, SimGroup]] = []
        self.push_order: PushPartitions | None = None
        self.order_done: Pushed | None = None
        self.spilled_bytes = 0
        self.produced = 0
        self.inboxes: dict[str, Inbox] = {s: Inbox() for s in scenario.splits}
        self.outboxes: dict[tuple[str, str], Outbox[Item]] = {}
        self.held: dict[tuple[str, int], deque[Tuple]] = {}
        self.sources: dict[str, list[Tuple]] = {s: scenario.streams[s] for s in splits}
        self.sent: dict[str, int] = dict.fromkeys(
            splits, 0
        )  # tuples of each source taken in so far
        self.ticks = 0
        world.nodes[self.address] = self
        world.at(world.random.random() * TIMER_S, self, self._timer)
        if not late:
            self.joined = True  # the query started with it
        for split in splits:
            world.at(0.05, self, self._source, split)

    # Messages ------------------------------------------------------------------------------------

    def receive(self, source: str, m: Any) -> None:
        """Anything that arrives."""
        if isinstance(m, list):
            self._frames(source, m)
        elif isinstance(m, tuple):
            self._acknowledged(source, *m)
        elif isinstance(m, Heard):
            self._heard(m)
        elif isinstance(m, StopQuery):
            if m.epoch >= self.epoch:
                self.epoch = m.epoch
                self.stop(m.cause)
                self.world.send(self.address, source, QueryStopped(m.query, m.epoch))
        elif isinstance(m, PushPartitions):
            self._ordered(source, m)
        else:
            self._move_message(source, m)

    def _move_message(self, source: str, m: Any) -> None:
        if self.stopped:
            return
        name = type(m).__name__
        self.world.step_hook(self, name, True)
        if self.crashed:
            return
        # What is sent to the manager goes to whoever is in office, as this processor knows it.
        to = self.scenario.manager_address() if isinstance(m, ReceivePartitions) else source
        try:
            out = self.participant.handle(m, self._local())
        except Refusal as e:
            refused = Refused(
                m.ref,
                getattr(m, "chunk", -1),
                name,
                e.domain,
                e.message,
                self.participant.epoch,
                self.participant.map.version,
            )
            self.world.tell(self.address, e)
            self.world.send(self.address, to, refused)
            return
        self.epoch = max(self.epoch, self.participant.epoch)
        self.act(out, to)
        self.world.step_hook(self, name, False)

    def act(self, out: list[Instruction], reply_to: str) -> None:
        """Carry out what the machine says."""
        for i in out:
            match i:
                case Reply(message):
                    self.world.tell(self.address, (reply_to, message))
                    self.world.send(self.address, reply_to, message)
                case ChooseGroups():
                    self._choose(i, reply_to)
                case ShipGroups():
                    self._ship(i)
                case ReattachGroups(groups):
                    self._go_live(groups)
                case DropGroups(groups):
                    for g in groups:
                        self.live.discard(g)
                        self.state_bytes -= self.groups.pop(g).size
                case StoreInert(move, chunk, _, payload):
                    stored = decode_groups(payload, self.scenario.inputs)
                    self.inert[move, chunk] = stored
                    self.state_bytes += sum(g.size for g in stored.values())
                case ActivateGroups(move, chunk, groups):
                    self.groups.update(self.inert.pop((move, chunk)))
                    self.received_s[list(groups)] = self.world.now_s
                    self._go_live(groups)
                case DropInert(move, chunk, _):
                    self.state_bytes -= sum(g.size for g in self.inert.pop((move, chunk)).values())
                case HoldGroups(groups):
                    self._hold(set(groups))
                case SendMarkers(move, chunk, to, splits):
                    for s in splits:
                        marker = EndOfMovedPartitions(self.scenario.query, move, chunk, s)
                        box = self._outbox(s, to)
                        self._post(s, to, box.mark(marker, self.world.now_s))
                case ReleaseGroups(groups, owner):
                    self._release(groups, owner)
                case AdoptMap():
                    pass
        self._top_up()

    def _go_live(self, groups: tuple[GroupId, ...]) -> None:
        for g in groups:
            other = [p.address for p in self.scenario.processors if p is not self and g in p.live]
            if other:
                raise Violation(f"group {g} is live at {self.address} and {other}")
            self.live.add(g)

    def _choose(self, i: ChooseGroups, reply_to: str) -> None:
        if i.groups:
            chosen = i.groups
        else:
            spilled = np.zeros(self.scenario.partitions, dtype=bool)
            for g, group in self.groups.items():
                spilled[g] = group.generation > 0
            settle_s = self.scenario.settle_s
            ids = choose_groups_to_move(
                self._stats(),
                i.want_bytes,
                movable=self.received_s <= self.world.now_s - settle_s,
                spilled=spilled,
                paper_restrictions=self.scenario.paper_restrictions,
            )
            chosen = tuple(GroupId(int(g)) for g in ids)
        sizes = tuple(self.groups[g].size for g in chosen)
        self.act(self.participant.groups_chosen(i.ref.move, chosen, sizes), reply_to)

    def _ship(self, i: ShipGroups) -> None:
        self.live.difference_update(i.groups)
        groups = {int(g): self.groups[g] for g in i.groups}
        size = sum(g.size for g in groups.values())
        message = ReceivePartitions(i.ref, i.chunk, i.groups, size, encode_groups(groups))
        self.world.tell(self.address, (i.receiver, message))
        self.world.send(self.address, i.receiver, message)

    # Splits --------------------------------------------------------------------------------------

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

    # Instance ------------------------------------------------------------------------------------

    def _frames(self, source: str, message: list[Any]) -> None:
        split, *frames = message
        if self.stopped:
            return
        inbox = self.inboxes[split]
        for number, item in frames:
            size = item[3] if isinstance(item, tuple) else 0
            if not inbox.take(number, size):
                continue
            if isinstance(item, tuple):
                self._insert(item)
            else:
                self.world.tell(self.address, item)
                manager = self.scenario.manager_address()
                self.act(self.participant.marker(item), manager)
        self._top_up(also=split)
        self._push_if_full()

    def _insert(self, row: Tuple) -> None:
        group = row[2] % self.scenario.partitions
        if group not in self.live:
            raise Violation(f"{self.address} got {row} of group {group}, which is not live there")
        held = self.groups[group]
        results = held.insert(row, self.world.now_s)
        if results is None:
            return
        self.state_bytes += row[3]
        self.produced += len(results)
        self.scenario.emitted(row, held.generation, results)

    def _top_up(self, also: str = "") -> None:
        """Grant credit while memory is free, and answer `also` in any case."""
        free = self.limit - self.used_bytes()
        for split, inbox in self.inboxes.items():
            grant = min(WINDOW_BYTES - inbox.outstanding_bytes, free) if inbox.number else 0
            if split == also and inbox.number == 0:
                grant = min(WINDOW_BYTES - inbox.outstanding_bytes, free)
            if grant > 0:
                inbox.grant(grant)
                free -= grant
            if grant > 0 or split == also:
                host = self.scenario.host_of(split)
                answer = (split, inbox.number, inbox.allowed_bytes)
                self.world.send(self.address, host, answer)

    def used_bytes(self) -> int:
        """Everything that counts against the limit."""
        credit = sum(i.outstanding_bytes for i in self.inboxes.values())
        return self.state_bytes + credit + self.participant.reserved_bytes

    # Disk ----------------------------------------------------------------------------------------

    def _push_if_full(self) -> None:
        if not self.scenario.spills or self.stopped:
            return
        want = bytes_to_push(
            used_bytes=self.used_bytes(),
            limit_bytes=self.limit,
            held_bytes=sum(g.size for g in self.groups.values()),
            spill_above_ratio=0.8,
            push_fraction=0.3,
            no_disk_adaptation=not self.participant.may_push(),
            in_disk_adaptation=bool(self.pushing),
        )
        if want:
            self._push(want)

    def _push(self, want: int) -> None:
        victims = choose_victims(
            self._stats(),
            want,
            order=VictimOrder.LEAST_PRODUCTIVE,
            now_s=self.world.now_s,
            inactive_after_s=5.0,
            rng=np.random.default_rng(0),
        )
        for g in victims.tolist():
            group = self.groups[g]
            self.pushing.append((g, group))
            self.groups[g] = group.next_generation()
        duration_s = self.world.faults.disk_s * (0.5 + self.world.random.random())
        self.world.tell(self.address, f"pushes {victims.tolist()} for {duration_s:.2f} s")
        self.world.at(duration_s, self, self._pushed)

    def _pushed(self) -> None:
        self.world.step_hook(self, "push", True)
        if self.crashed or self.stopped:
            return
        size = sum(group.size for _, group in self.pushing)
        self.scenario.written([(g, group.generation, group.rows) for g, group in self.pushing])
        self.state_bytes -= size
        self.spilled_bytes += size
        self.pushing = []
        self.world.step_hook(self, "push", False)
        if self.crashed:
            return
        manager = self.scenario.manager_address()
        if self.push_order is not None:
            order, self.push_order = self.push_order, None
            self.order_done = Pushed(order.query, order.epoch, order.order, size)
            self.world.send(self.address, manager, self.order_done)
        self.act(self.participant.push_finished(), manager)
        self._push_if_full()

    def _ordered(self, source: str, m: PushPartitions) -> None:
        if self.stopped or m.epoch < self.epoch or self.push_order == m:
            return
        done = self.order_done
        if done is not None and (done.epoch, done.order) >= (m.epoch, m.order):
            if done.order == m.order:
                self.world.send(self.address, source, done)
            return
        self.epoch = m.epoch
        if self.pushing:
            return
        if not self.participant.may_push() or not any(g.size for g in self.groups.values()):
            self.order_done = Pushed(m.query, m.epoch, m.order, 0)
            self.world.send(self.address, source, self.order_done)
            return
        self.push_order = m
        self._push(m.size_bytes)

    def _stats(self) -> GroupStats:
        size = np.zeros(self.scenario.partitions, dtype=np.int64)
        produced, last = size.copy(), size.astype(np.float64)
        for g, group in self.groups.items():
            size[g], produced[g], last[g] = group.size, group.produced, group.last_insert_s
        return GroupStats(size, produced, last)

    # Life ----------------------------------------------------------------------------------------

    def _timer(self) -> None:
        self.world.at(TIMER_S, self, self._timer)
        self.ticks += 1
        for (split, to), box in self.outboxes.items():
            self._post(split, to, box.resend(self.world.now_s))
        self._push_if_full()
        if self.ticks % 2:
            return
        manager = self.scenario.manager_address()
        if not self.joined:
            join = Join(self.id, self.incarnation, "0", self.limit)
            self.world.send(self.address, manager, join)
            return
        if self.leaving and self.ticks % 8 == 0:
            self.world.send(self.address, manager, Leave(self.id, self.incarnation))
        load = QueryLoad(
            self.scenario.query,
            len(self.groups),
            sum(g.size for g in self.groups.values()),
            self.spilled_bytes,
            self.produced,
        )
        adapting = self.participant.adapting is not None or bool(self.pushing)
        beat = Heartbeat(self.id, self.incarnation, self.used_bytes(), (load,), adapting)
        self.world.send(self.address, manager, beat)

    def _heard(self, m: Heard) -> None:
        if m.incarnation != self.incarnation or m.epoch < self.epoch:
            return
        self.epoch = m.epoch
        if m.member:
            self.joined = True
        elif self.leaving and not self.groups:
            self.crashed = True
            self.world.tell(self.address, "has left")
        else:
            self.stop("the cluster let it go")

    def stop(self, cause: str) -> None:
        """Drop the query; results stay."""
        if not self.stopped:
            self.world.tell(self.address, f"drops the query: {cause}")
        self.stopped = cause
        self.groups, self.inert, self.held, self.outboxes = {}, {}, {}, {}
        self.live, self.pushing, self.state_bytes = set(), [], 0

    def crash(self, why: str) -> None:
        """Lose all memory, for good."""
        self.crashed = True
        self.live = set()
        self.world.tell(self.address, f"CRASHES {why}")

    def check(self) -> None:
        """Invariants of this node."""
        if self.stopped:
            return
        self.participant.check()
        used = self.used_bytes()
        if used > self.limit:
            raise Violation(f"{self.address} uses {used} of {self.limit} bytes")
        if self.participant.owned != self.groups.keys():
            raise Violation(f"{self.address} owns {self.participant.owned}, has {set(self.groups)}")

    def idle(self) -> bool:
        """Nothing is to be sent, held or written any more."""
        return (
            not self.held
            and not self.pushing
            and all(self.sent[s] >= len(rows) for s, rows in self.sources.items())
            and all(not b.pending and not b.unacked for b in self.outboxes.values())
        )

    def _local(self) -> Local:
        return Local(self.limit - self.used_bytes(), bool(self.pushing))


def split_name(query: str, index: int) -> SplitId:
    """The id of an input's split."""
    return SplitId(f"{query}/{index}")
