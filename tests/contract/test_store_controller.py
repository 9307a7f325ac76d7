"""The controller on a real store: moves commit, managers die, successors resume.

The simulator runs whole clusters with faults. Here its managers write to a real store, and the
simulator's own store, a dict, says of every write what the answer and the entries must be.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import pytest

from dovetail_manager import queries, streams
from dovetail_manager.adaptation import rounds
from dovetail_manager.controller import Controller
from dovetail_manager.effects import Effect
from dovetail_manager.journal import Write
from dovetail_manager.moves.records import map_key
from dovetail_manager.records import QueryRecord
from dovetail_manager.state import ControllerSettings, State
from dovetail_manager.store import Store, open_store
from dovetail_manager.store.errors import Fenced, StaleWrite
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Join
from dovetail_proto.partition_map import map_from_json
from kit import sim_run
from kit.manager import SCHEMA, SQL, planned
from kit.sim_manager import SimStore
from kit.sim_world import Violation

Opened = Callable[[], Store]
Q = QueryName("q")
SEEDS = range(38, 60)
"""With managers that die at a write, two at once, lost writes and answers, moves that half end."""
A, B = ProcessorId("a"), ProcessorId("b")


class CheckedStore(SimStore):
    """Does everything twice, on a real store and on the simulator's, and compares."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.handles: dict[int, Store] = {}  # by epoch: each manager has its own
        self.answers: Counter[str] = Counter()

    def acquire(self) -> tuple[Epoch, int, dict[str, str]]:
        """A new manager claims both."""
        handle = open_store(self.address)
        lead = handle.claim("simulated")
        epoch, revision, entries = super().acquire()
        self.handles[epoch] = handle
        same("claim", lead, (epoch, revision, entries))
        return lead.epoch, lead.revision, dict(lead.entries)

    def write(self, w: Write, now_s: float) -> str:
        """One write to both; they must give the same answer."""
        try:
            self.handles[w.epoch].write(w)
            answer = "ok"
        except Fenced:
            answer = "fenced"
        except StaleWrite:
            answer = "stale"
        same(f"answer to revision {w.revision}", answer, super().write(w, now_s))
        same("entries", self.handles[w.epoch].entries(), self.entries)
        self.answers[answer] += 1
        return answer

    def close(self) -> None:
        """Close all handles."""
        for handle in self.handles.values():
            handle.close()


def same(what: str, real: object, simulated: object) -> None:
    """Raise Violation unless both stores agree."""
    if real != simulated:
        raise Violation(f"{what}: the store has {real!r}, must have {simulated!r}")


def test_simulated_clusters_run_on_a_real_store(
    new_address: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results equal the oracle's, and the store did what the simulator's store does."""
    answers: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    managers: list[int] = []
    for seed in SEEDS:
        checked = CheckedStore(new_address())
        monkeypatch.setattr(sim_run, "SimStore", lambda checked=checked: checked)
        try:
            outcomes += sim_run.run_seed(seed).moves
        finally:
            checked.close()
        answers += checked.answers
        managers.append(len(checked.handles))
    assert answers["ok"] > 50
    assert answers["fenced"] > 0
    assert outcomes.keys() >= {"completed", "rolled back"}
    assert max(managers) > 2


def carry_out(store: Store, controller: Controller, effects: list[Effect]) -> None:
    """Write what is to be written, until nothing is."""
    todo = deque(effects)
    while todo:
        effect = todo.popleft()
        if isinstance(effect, Write):
            store.write(effect)
            todo.extend(controller.confirmed(effect.revision, 0.0))


def do(store: Store, controller: Controller, verb: Callable[[State], object]) -> None:
    """What an operator asks for, written down."""
    carry_out(store, controller, controller.do(verb, 0.0)[1])


def test_a_restarted_manager_resumes_from_the_store(opened: Opened) -> None:
    """Members, query, map and the open move are there; the former manager is fenced."""
    settings = ControllerSettings(version="1")
    first = opened()
    controller, effects = Controller.resume(*first.claim("first"), settings, 0.0)
    carry_out(first, controller, effects)
    for processor in (A, B):
        joined = controller.handle(processor, Join(processor, 1, "1", 100), 0.0)
        carry_out(first, controller, joined)
    for name in ("s", "t"):
        do(first, controller, lambda s, n=name: streams.create(s, StreamName(n), SCHEMA, None))  # type: ignore[misc]
    disk = DiskSettings(True)
    record = QueryRecord(Q, planned("q", SQL), "lazy-disk", 0.0, disk, spill="/spill")
    do(first, controller, lambda s: queries.submit(s, record))
    known = controller.state.query(Q).placement.map
    groups = [GroupId(int(g)) for g in known.groups_of(A)]
    do(first, controller, lambda s: rounds.move(s, Q, groups, B))
    [move] = controller.state.query(Q).coordinator.moves

    second = opened()
    lead = second.claim("second")
    successor, effects = Controller.resume(*lead, settings, 0.0)
    assert [m.processor for m in successor.state.membership.alive()] == [A, B]
    resumed = successor.state.query(Q)
    assert resumed.record == controller.state.query(Q).record
    assert resumed.placement.map == known
    assert map_from_json(lead.entries[map_key(Q)]) == known
    assert move in resumed.coordinator.moves
    carry_out(second, successor, effects)
    with pytest.raises(Fenced, match="replaced by 'second'"):
        do(first, controller, lambda s: queries.set_policy(s, Q, "none"))
