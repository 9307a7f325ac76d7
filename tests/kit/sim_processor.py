"""A processor's process, simulated: the worker is the real one, and so are the bytes on its links.

    net ─▶ receive ─▶ event ─▶ worker.handle ─▶ worker.step, again while there is work
    worker ─▶ frames, acknowledgements, groups, messages ─▶ net;  jobs ─▶ lanes

What the process does beside its worker (attach, beat, be let go, hand its results over) follows
`shell.server`, call by call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dovetail_processor.batches import Keyed, Stamped, stamped
from dovetail_processor.join.transfer import decode
from dovetail_processor.operators.home import Home, Reader, Sent
from dovetail_processor.operators.links import Item
from dovetail_processor.process_memory import ProcessMemory
from dovetail_processor.shell.frames import Received, pack, unpack
from dovetail_processor.worker import TICK_S, Worker
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.assignment import Leaving
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.feeds import IngestAck, IngestBatch, LinkAck
from dovetail_proto.ids import ProcessorId, QueryName, SplitId, process_of
from dovetail_proto.messages import ControlMessage, Heard, Join, Leave, ReceivePartitions
from dovetail_proto.query import QueryPlan
from dovetail_proto.wire import control, data
from kit.sim_checks import Watch
from kit.sim_disk import SimFiles, SimLane
from kit.sim_feeds import OnCall
from kit.sim_world import Violation, World

if TYPE_CHECKING:
    from kit.sim_run import Scenario

HEARTBEAT_S = 1.0
HAND_OVER_S = 0.3
"""Between two tries to hand results over, as in the process."""

OVER = -1
"""Of a call: a batch on it was refused, and nothing follows."""

BEAT_S = 0.0004
"""From the wish for a heartbeat to it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes on a link; `source` is the processor's name, as its call tells it.

    From a worker of the same process it is the item itself, with the rows that both share.
    """

    source: ProcessorId
    data: bytes | Received


@dataclass(frozen=True, slots=True)
class Ack:
    """A LinkAck on its way back."""

    source: ProcessorId
    data: bytes


@dataclass(frozen=True, slots=True)
class Parts:
    """A chunk of a move."""

    data: tuple[bytes, ...]


class SimProcessor:
    """A worker's shell, from its start to its end; some share a process with a neighbour."""

    def __init__(
        self, world: World, scenario: Scenario, name: str, start: int, memory_bytes: int
    ) -> None:
        self.world, self.scenario = world, scenario
        self.id = ProcessorId(name)
        self.address = f"{name}.{start}:1"
        self.crashed = False
        self.paused_until_s = 0.0
        self.ended = ""  # why it is over although it did not crash
        self.ends = False  # it was told to leave, and cannot be refused
        self.memory_bytes = memory_bytes
        self._incarnation = scenario.next_incarnation()
        self.data_dir = scenario.disk.data_dir(name)
        self.files = SimFiles(scenario.disk, self.id, self.data_dir, scenario.sink_opened)
        self._stepping = False  # a step is due at once
        self._looked = False  # nothing has changed since the last look at the worker
        self.worker = Worker(self.id, ProcessMemory(memory_bytes, 1), self, now_s=world.now_s)
        self.watch = Watch(self.worker, scenario)
        self._snapshot = self.worker.heartbeat()
        self._attached = ""  # the manager that has heard our Join
        self._calls: dict[tuple[ProcessorId, SplitId], str] = {}  # whom frames came from
        self._feeds: dict[tuple[str, int], int] = {}  # batches that came on sources' calls, or OVER
        self._waited: dict[tuple[str, int], list[tuple[Reader, int]]] = {}
        """By batch: who has to take it before it is answered, and its rows by then."""
        self._beating = False  # a heartbeat is due at once
        self._handed: Leaving | None = None  # the successor that has our results
        world.nodes[self.address] = self
        world.at(world.random.random() * HEARTBEAT_S, self, self._timer)
        world.at(0.0, self, self._idle)

    # The worker's loop ----------------------------------------------------------------------------

    def event(self, event: Callable[[], None]) -> None:
        """Have the worker handle something, then go on with its work."""
        self._looked = False
        self.worker.handle(event, self.world.now_s)
        self._go_on()

    def _go_on(self) -> None:
        if not self._stepping:
            self._stepping = True
            self.world.at(
                self.world.faults.step_s * 2 * self.world.random.random(), self, self._step
            )

    def _step(self) -> None:
        self._stepping = False
        if self.worker.step(self.world.now_s):
            self._go_on()
        else:
            self._looked = True  # nothing was done

    def _idle(self) -> None:
        """The time goes on, also where nothing happens."""
        if not self._stepping and self.world.now_s >= self.worker.next_s:
            self._step()
        wait_s = min(TICK_S, self.worker.next_s - self.world.now_s)  # an event may bring it forward
        self.world.at(max(0.001, wait_s), self, self._idle)

    # What the worker needs ------------------------------------------------------------------------

    def lane(self, name: str) -> SimLane:
        """See Lanes."""
        return SimLane(self.world, self, name)

    def tell_manager(self, message: ControlMessage) -> None:
        """See Shell."""
        self.watch.says(message)
        encoded = control.encode(self.id, message)
        self.world.send(self.address, self.scenario.manager_address(), encoded)

    def send_frame(self, to: ProcessorId, split: SplitId, number: int, item: Item | None) -> None:
        """See Shell."""
        if process_of(to) == process_of(self.id):
            size_bytes = item.size_bytes if isinstance(item, Keyed) else 0
            self._send_to(to, Frame(self.id, (split, number, item, size_bytes)))
        else:
            self._send_to(to, Frame(self.id, pack(split, number, item)))

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """See Shell."""
        call = self._calls.get((to, ack.split))
        if call is not None:
            self.world.send(self.address, call, Ack(self.id, data.encode(ack)))

    def send_groups(
        self, to: ProcessorId, message: ReceivePartitions, ended: Callable[[], None]
    ) -> None:
        """See Shell."""
        self._send_to(to, Parts(tuple(data.encode_parts(message))))
        self.world.at(self.world.random.random() * 0.1, self, self.event, ended)

    def _send_to(self, to: ProcessorId, message: object) -> None:
        peer = self.worker.peers.get(to)
        if peer is not None:
            self.world.send(self.address, peer.address, message)

    def beat(self) -> None:
        """See Shell."""
        self._snapshot = self.worker.heartbeat()
        if not self._beating:
            self._beating = True
            self.world.at(BEAT_S, self, self._beat)

    def wake(self) -> None:
        """See Shell."""
        self._looked = False
        self._go_on()

    def give_up(self, error: DovetailError) -> None:
        """See Shell."""
        raise Violation(f"{self.address} gives up: {error}")

    # Messages -------------------------------------------------------------------------------------

    def receive(self, source: str, message: Any) -> None:
        """Anything that arrives."""
        with suppress(DovetailError):  # the call ends; what it brought is lost
            match message:
                case bytes():
                    self._hear(source, control.decode(message)[1])
                case Frame(sender, frame):
                    came = unpack(frame, self._plan) if isinstance(frame, bytes) else frame
                    split, number, item, size_bytes = came
                    self._calls[sender, split] = source
                    self.event(lambda: self.worker.frame(split, number, item, size_bytes))
                case Ack(sender, packed):
                    a = data.decode(LinkAck, packed)
                    news = (a.number, a.allowed_bytes, a.done_number)
                    self.event(lambda: self.worker.acknowledged(sender, a.split, *news))
                case Parts(parts):
                    m = data.decode_parts(parts, 1 << 30)
                    arrived = decode(m.payload, self._plan(m.ref.query), m.groups)
                    self._control(m, arrived)
                case OnCall(call, place, batch):
                    if self._feeds.get((source, call), 0) == place:
                        self._feeds[source, call] = place + 1
                        self._take_batch(source, call, batch)
                case Refusal():
                    self._refused(message)

    def _plan(self, query: QueryName) -> QueryPlan:
        found = self.worker.queries.get(query)
        if found is None:
            raise Refusal(Domain.QUERY, f"query {query!r} does not run here")
        return found.task.plan

    def _hear(self, source: str, message: ControlMessage) -> None:
        if isinstance(message, Heard):
            if message.incarnation != self._incarnation:
                return
            self._attached = source
            if not message.member:
                self._let_go()
                return
        self._control(message)

    def _control(self, message: ControlMessage, arrived: Any = None) -> None:
        step = type(message).__name__
        self.world.step_hook(self, step, True)
        if self.crashed:
            return
        if step not in ("Heard", "Assign"):
            self.world.tell(self.address, message)
        self.watch.heard(message)
        self.event(lambda: self.worker.control(message, arrived))
        self.world.step_hook(self, step, False)

    def _take_batch(self, source: str, call: int, m: IngestBatch) -> None:
        waited = self._waited.setdefault((m.source, m.sequence), [])

        def answer(what: IngestAck | DovetailError) -> None:
            if self._feeds[source, call] == OVER:
                return
            if isinstance(what, DovetailError):
                self._feeds[source, call] = OVER
            self.world.send(self.address, source, (call, what))

        def routed(rows: int, readers: int) -> None:
            if late := [r for r, taken in waited if r.rows < taken and not r.gone]:
                self.scenario.blame(f"batch {m.sequence} of {m.source} is answered before {late}")
            answer(IngestAck(m.sequence, rows, readers))

        def accept() -> None:
            home = self.worker.streams.home(m.stream)
            batch = from_bytes(m.payload, home.task.schema, "a batch")
            first = home.rows
            reading = [r for r in home.readers.values() if not r.gone and r.end is None]
            runs = [self.worker.queries[r.query].task.run for r in reading]
            self.worker.accept(m.stream, Sent(m.source, m.sequence, batch, routed, answer))
            if home.rows > first:
                self.scenario.accepted(m.stream, batch, runs)
                waited.extend((r, r.rows + home.waits_for(r.split)[2]) for r in reading)
                if self.world.random.random() < self.scenario.replays:
                    self._replay_later(home, reading, stamped(batch, first))

        def guarded() -> None:
            try:
                accept()
            except DovetailError as e:
                answer(e)

        self.event(guarded)

    def _replay_later(self, home: Home, reading: list[Reader], rows: Stamped) -> None:
        """Have readers get again what they have taken, as a recovery would give it to them."""

        def replay() -> None:
            for reader in reading:
                here = home.readers.get(reader.split) is reader and reader.end is None
                over = here and home.has_fed(reader.split)  # nothing may follow
                if not here or over or reader.gone or home.task.leaves or not reader.arc.has_room:
                    continue
                if home.waits_for(reader.split)[0] > rows.highest:
                    reader.rows += rows.rows.num_rows
                    reader.arc.offer(rows, self.world.now_s)

        self.world.at(self.world.random.random() * 2, self, self.event, replay)

    # Life -----------------------------------------------------------------------------------------

    def _timer(self) -> None:
        self.world.at(HEARTBEAT_S, self, self._timer)
        if self._attached != self.scenario.manager_address():
            self.tell_manager(self._join())
            return
        self._beat()

    def _join(self) -> Join:
        return Join(self.id, self._incarnation, "1", self.memory_bytes, self.address)

    def _beat(self) -> None:
        """A heartbeat has the last look at the worker, and has it looked at anew."""
        self._beating = False
        if not self._attached:
            return
        self.tell_manager(replace(self._snapshot, incarnation=self._incarnation))
        self._snapshot = self.worker.heartbeat()
        leaving = self.worker.leaving
        if leaving is not None or self.ends:
            successor = (
                leaving.successor if leaving is not None and leaving == self._handed else None
            )
            self.tell_manager(Leave(self.id, self._incarnation, successor or "", self.ends))
        if leaving is not None and leaving != self._handed and self.worker.finds_nothing_more:
            self.world.at(HAND_OVER_S * self.world.random.random(), self, self._hand_over, leaving)

    def _hand_over(self, leaving: Leaving) -> None:
        there = any(p.id == leaving.successor for p in self.scenario.alive())
        if self.worker.leaving == leaving and (there or leaving.successor is None):
            if leaving.successor is not None:
                self.scenario.disk.hand_logs(self.data_dir, leaving.successor)
            self._handed = leaving
            self.beat()

    def _let_go(self) -> None:
        """The cluster goes on without it: it has left, or was taken for dead."""
        if self.worker.leaving is not None or self.ends:
            self.end("has left")
            return
        self.world.tell(self.address, "was let go; joins anew")
        self.world.happened.add("taken for dead")
        self.worker.handle(self.worker.drop_all, self.world.now_s)
        self._incarnation = self.scenario.next_incarnation()
        self.tell_manager(self._join())

    def _refused(self, error: Refusal) -> None:
        """The manager does not take it in."""
        if error.domain is Domain.MEMBER and "is over" in str(error):
            self._let_go()
        else:
            self.give_up(error)

    def end(self, why: str) -> None:
        """It is over, in order."""
        self.worker.stop("the processor stops")
        self.crashed, self.ended = True, why
        self.world.tell(self.address, why)

    def crash(self, why: str) -> None:
        """Lose all memory, for good."""
        if not self.crashed:
            self.crashed = True
            self.world.happened.add("processor crash")
            self.world.tell(self.address, f"CRASHES {why}")
            for neighbour in self.scenario.neighbours(self):
                neighbour.crash("with its process")

    def check(self) -> None:
        """Invariants of this node, unless nothing was done since they were looked at."""
        if not self._looked:
            self.watch.look()
        self._looked = False
