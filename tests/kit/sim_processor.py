"""A processor's process, simulated: `Participant`, links and victim choice are the real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail_processor.adaptation.victims import (
    choose_groups_to_move,
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
from dovetail_processor.moves.link import Inbox
from dovetail_processor.moves.participant import Participant
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, SplitId
from dovetail_proto.messages import (
    Assign,
    EndOfMovedPartitions,
    Heard,
    Heartbeat,
    Join,
    Leave,
    PushPartitions,
    QueryLoad,
    QueryStopped,
    ReceivePartitions,
    Refused,
    Stage,
    StopQuery,
)
from kit.sim_disk import SimDisk
from kit.sim_join import SimGroup, Tuple, decode_groups, encode_groups
from kit.sim_split import SimSplits
from kit.sim_world import Violation, World

if TYPE_CHECKING:
    from kit.sim_run import Scenario

WINDOW_BYTES = 6
"""Credit per link: small, so that links run dry and tuples wait at the split."""

TIMER_S = 0.5


class SimProcessor(SimSplits, SimDisk):
    """One processor: instance, sink, maybe splits with their sources."""

    def __init__(
        self, world: World, scenario: Scenario, address: str, incarnation: int, late: bool = False
    ) -> None:
        self.world, self.scenario = world, scenario
        self.address = address
        self.id = ProcessorId(self.address)
        self.crashed = False
        self.paused_until_s = 0.0
        self.incarnation = incarnation
        self.epoch = Epoch(0)
        self.obeyed = Epoch(0)  # the epoch of the last move message that was accepted
        self.stopped = ""  # why the query was dropped here; empty while it runs
        self.joined = False
        self.leaving = False
        self.assigned = 0  # version of the newest assignment
        self.heir = ""  # of the result logs, as it says
        splits = () if late else scenario.split_hosts.get(self.id, ())
        known = scenario.stored_map() if late else scenario.map
        if late and (len(known.groups_of(self.id)) or self.id in scenario.split_hosts):
            # Its former incarnation took state with it: there is no query to start any more.
            self.stopped = "started after its death"
        self.participant = Participant(scenario.query, self.id, known, splits)
        self.groups = {
            int(g): SimGroup(scenario.inputs, 0, [0] * scenario.inputs)
            for g in known.groups_of(self.id)
            if not self.stopped
        }
        self.live = set(self.groups)  # groups that take tuples in; not those on their way out
        self.inert: dict[tuple[str, int], dict[int, SimGroup]] = {}
        self.received_s = np.full(scenario.partitions, -np.inf)
        self.state_bytes = 0  # live, detached for a push, inert
        self.limit = scenario.limit_bytes
        self.start_disk()
        self.produced = 0
        self.inboxes: dict[str, Inbox] = {s: Inbox() for s in scenario.splits}
        self.ticks = 0
        world.nodes[self.address] = self
        world.at(world.random.random() * TIMER_S, self, self._timer)
        if not late:
            self.joined = True  # the query started with it
        self.start_splits(splits)

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
        elif isinstance(m, Assign):
            if m.version > self.assigned:
                leaving = json.loads(m.document)["leaving"]
                self.assigned, self.heir = m.version, (leaving or {}).get("heir") or ""
        else:
            self._move_message(source, m)

    def _move_message(self, source: str, m: Any) -> None:
        if self.stopped or not self.joined:
            return  # a processor is given a query, and takes part in its moves, once it is in
        name = type(m).__name__
        self.world.step_hook(self, name, True)
        if self.crashed:
            return
        # What is sent to the manager goes to whoever leads, as this processor knows it.
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
        if m.ref.epoch < self.obeyed:
            raise Violation(f"{self.address} obeys epoch {m.ref.epoch} after {self.obeyed}")
        self.obeyed = m.ref.epoch
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
            movable = self.received_s <= self.world.now_s - settle_s
            movable[list(i.exclude)] = False
            ids = choose_groups_to_move(
                self._stats(),
                i.want_bytes,
                movable=movable,
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

    # Life ----------------------------------------------------------------------------------------

    def _timer(self) -> None:
        self.world.at(TIMER_S, self, self._timer)
        self.ticks += 1
        for (split, to), box in self.outboxes.items():
            self._post(split, to, box.resend(self.world.now_s))
        self._push_if_ordered()
        self._push_if_full()
        if self.ticks % 2:
            return
        manager = self.scenario.manager_address()
        if not self.joined:
            join = Join(self.id, self.incarnation, "0", self.limit)
            self.world.send(self.address, manager, join)
            return
        if self.leaving and self.ticks % 8 == 0:
            self.world.send(self.address, manager, Leave(self.id, self.incarnation, self.heir))
        load = QueryLoad(
            self.scenario.query,
            len(self.groups),
            sum(g.size for g in self.groups.values()),
            self.spilled_bytes,
            self.produced,
            pushed_bytes=self.pushed_bytes,
            state_limit_bytes=self.limit,
            stage=Stage.CLOSED if self.leaving and not self.groups else Stage.RUNNING,
        )
        adapting = self.participant.adapting is not None or bool(self.pushing)
        beat = Heartbeat(self.id, self.incarnation, self.used_bytes(), (load,), adapting)
        self.world.send(self.address, manager, replace(beat, assigned=self.assigned))

    def _heard(self, m: Heard) -> None:
        if m.incarnation != self.incarnation or m.epoch < self.epoch:
            return
        self.epoch = m.epoch
        if m.member:
            self.joined = True
        elif self.leaving and not self.groups:
            self._hang_up()
            self.crashed = True
            self.world.tell(self.address, "has left")
        else:
            self.stop("the cluster let it go")

    def _hang_up(self) -> None:
        """Close the links: the markers of the last groups came behind all that was sent.

        Of a query that was dropped here nothing is awaited: splits elsewhere may hear later that it
        has failed, and send until then.
        """
        for host in self.scenario.processors:
            for split, inbox in self.inboxes.items():
                box = host.outboxes.pop((split, self.address), None)
                behind = box is not None and (box.pending or box.sent_number != inbox.number)
                if behind and not self.stopped:
                    raise Violation(f"{self.address} leaves before {split} has sent it all")

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
            and all(
                (not b.pending and not b.unacked) or self._gone(to)
                for (_, to), b in self.outboxes.items()
            )
        )

    def _gone(self, address: str) -> bool:
        """Whether a processor died with no group left: its links close, the query goes on.

        All that was sent for its groups had arrived before they moved; if not, the bags differ.
        """
        dead = any(p.crashed for p in self.scenario.processors if p.address == address)
        return dead and not self.scenario.stored_map().groups_of(ProcessorId(address)).size

    def _local(self) -> Local:
        return Local(self.limit - self.used_bytes(), bool(self.pushing))


def split_name(query: str, index: int) -> SplitId:
    """The id of an input's split."""
    return SplitId(f"{query}/{index}")
