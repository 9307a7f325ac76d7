"""The manager's process and its store, simulated: `Controller` is the real one."""

from __future__ import annotations

import json
from typing import Any

from dovetail_manager.controller import Controller
from dovetail_manager.effects import AppendHistory, Effect, LogEvent, Send, StepDown
from dovetail_manager.journal import Write
from dovetail_manager.state import ControllerSettings
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import Epoch, ProcessorId
from dovetail_proto.partition_map import map_from_json
from kit.sim_world import Violation, World

STORE_DELAY_S = 0.01
STORE_TIMEOUT_S = 0.5


class SimStore:
    """A linearizable store: an epoch, a revision and entries; it never fails itself."""

    def __init__(self) -> None:
        self.epoch = 0
        self.revision = 0
        self.entries: dict[str, str] = {}
        self.writes = 0

    def claim(self) -> tuple[Epoch, int, dict[str, str]]:
        """A new manager leads."""
        self.epoch += 1
        return Epoch(self.epoch), self.revision, dict(self.entries)

    def write(self, w: Write) -> str:
        """`ok`, `fenced` or `stale`; the same write twice is done once."""
        if w.epoch != self.epoch:
            return "fenced"
        if w.revision == self.revision:
            return "ok"
        if w.revision != self.revision + 1:
            return "stale"
        self._check_maps(w)
        for key, value in w.puts.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
        self.revision = w.revision
        self.writes += 1
        return "ok"

    def _check_maps(self, w: Write) -> None:
        """One owner per group and version: a map follows its predecessor by a version.

        Or it is of the same version, and has forgotten a processor that owns nothing.
        """
        for key, value in w.puts.items():
            if key.startswith("map/") and key in self.entries and value is not None:
                old, new = map_from_json(self.entries[key]), map_from_json(value)
                owners = [[m.processors[o] for o in m.owners] for m in (old, new)]
                same = new.version == old.version and owners[0] == owners[1]
                if new.version != old.version + 1 and not same:
                    raise Violation(f"map version {new.version} follows {old.version}")


class SimManager:
    """One manager process, from its claim to crash or step-down."""

    def __init__(
        self, world: World, store: SimStore, address: str, settings: ControllerSettings
    ) -> None:
        self.world = world
        self.store = store
        self.address = address
        self.crashed = False
        self.paused_until_s = 0.0
        self.crash_at_write: tuple[int, bool] | None = None  # which write of ours; after it?
        self.writes_begun = 0
        self._awaited = -1  # revision whose answer is outstanding
        self._tick_s = float("inf")
        epoch, revision, entries = store.claim()
        self.controller, effects = Controller.resume(
            epoch, revision, entries, settings, world.now_s
        )
        world.nodes[address] = self
        world.tell(address, f"leads in epoch {epoch}")
        self.act(effects)

    def receive(self, source: str, message: Any) -> None:
        """A message from a processor."""
        try:
            effects = self.controller.handle(ProcessorId(source), message, self.world.now_s)
        except Refusal as e:
            self.world.tell(self.address, e)
            return
        self.act(effects)

    def check(self) -> None:
        """The machine's own invariants."""
        self.controller.check()

    def crash(self, why: str) -> None:
        """Lose everything but the store."""
        self.crashed = True
        self.world.tell(self.address, f"CRASHES {why}")

    def act(self, effects: list[Effect]) -> None:
        """Carry out what the machine says."""
        for effect in effects:
            if self.crashed:
                return
            match effect:
                case Send(to, message):
                    self.world.send(self.address, to, message)
                    if type(message).__name__ not in ("Heard", "Assign"):
                        self.world.tell(self.address, (to, message))
                case Write():
                    self._write(effect)
                case StepDown(cause):
                    self.crash(f"as it steps down: {cause}")
                case LogEvent("move-ended"):
                    self.world.tell(self.address, f"{effect.move} ended: {effect.text}")
                case AppendHistory(move=move) if move is not None:
                    self.act(self.controller.recorded(move, self.world.now_s))
        self._schedule()

    def _schedule(self) -> None:
        due_s = self.controller.next_tick_s()
        if due_s < self._tick_s:
            self._tick_s = due_s
            self.world.at(max(0.0, due_s - self.world.now_s), self, self._tick, due_s)

    def _tick(self, due_s: float) -> None:
        if due_s == self._tick_s:
            self._tick_s = float("inf")
        self.act(self.controller.tick(self.world.now_s))

    def _write(self, w: Write) -> None:
        self.writes_begun += 1
        at_write, after = self.crash_at_write or (0, False)
        keys = ", ".join(w.puts)
        if at_write == self.writes_begun and not after:
            self.crash(f"before writing {keys}")
            return
        self._awaited = w.revision
        random, loss = self.world.random, self.world.faults.store_loss
        lost = random.random() < loss if loss else False
        now_s = self.world.now_s
        lost |= any(a <= now_s < b for a, b in self.world.faults.store_outages)
        applied = not lost or random.random() < 0.5
        delay_s = STORE_DELAY_S * (0.5 + random.random())
        if applied:
            # The request may reach the store even when its sender is gone by then.
            crash_after = at_write == self.writes_begun
            self.world.at(delay_s, None, self._reach_store, w, lost, crash_after)
        self.world.at(STORE_TIMEOUT_S, self, self._timed_out, w.revision)

    def _reach_store(self, w: Write, answer_lost: bool, crash_after: bool) -> None:
        verdict = self.store.write(w)
        self.world.tell(self.address, f"store says {verdict} to {w.revision}: {_brief(w)}")
        if crash_after and not self.crashed:
            self.crash("after writing")
        if not answer_lost:
            delay_s = STORE_DELAY_S
            if self.world.faults.store_loss and self.world.random.random() < 0.2:
                delay_s += self.world.random.random() * 3 * STORE_TIMEOUT_S
            self.world.at(delay_s, self, self._answered, w.revision, verdict)

    def _answered(self, revision: int, verdict: str) -> None:
        if verdict == "fenced":
            self.crash("as it was fenced")
        elif verdict == "ok":
            if self._awaited == revision:
                self._awaited = -1
            self.act(self.controller.confirmed(revision, self.world.now_s))

    def _timed_out(self, revision: int) -> None:
        if self._awaited == revision:
            self._awaited = -1
            self.act(self.controller.store_failed())


def _brief(w: Write) -> str:
    told = []
    for key, value in w.puts.items():
        raw = json.loads(value or "{}")
        fields = ("version", "committed", "outcome", "state", "cause")
        told.append(f"{key} { ({k: raw[k] for k in fields if raw.get(k)}) }")
    return "; ".join(told)
