"""The manager's machine on a real store: moves commit, managers die, successors resume.

The simulator runs whole clusters with faults. Here its managers write to a real store, and the
simulator's own store, a dict, says of every write what the answer and the entries must be.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import pytest

from dovetail_manager.moves.journal import Write, map_key
from dovetail_manager.steering import Output, Steering, SteeringSettings
from dovetail_manager.store import Store, open_store
from dovetail_manager.store.errors import Fenced, StaleWrite
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, QueryName, SplitId
from dovetail_proto.messages import Join
from dovetail_proto.partition_map import map_from_json
from kit import sim_run
from kit.sim_manager import SimStore
from kit.sim_world import Violation

Opened = Callable[[], Store]
Q = QueryName("q")
SEEDS = 16  # enough for managers that die at a write, two at once, lost writes and answers
A, B = ProcessorId("a"), ProcessorId("b")


class CheckedStore(SimStore):
    """Does everything twice, on a real store and on the simulator's, and compares."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.handles: dict[int, Store] = {}  # by epoch: each manager has its own
        self.answers: Counter[str] = Counter()

    def acquire(self) -> tuple[Epoch, int, dict[str, str]]:
        """A new manager claims both; the first one finds what the scenario begins with."""
        handle = open_store(self.address)
        office = handle.claim("simulated")
        if office.epoch == 1:
            handle.write(Write(office.epoch, 1, self.entries))
            self.revision = 1
            office = office._replace(revision=1, entries=handle.entries())
        epoch, revision, entries = super().acquire()
        self.handles[epoch] = handle
        same("office", office, (epoch, revision, entries))
        return office.epoch, office.revision, dict(office.entries)

    def write(self, w: Write) -> str:
        """One write to both; they must give the same answer."""
        try:
            self.handles[w.epoch].write(w)
            answer = "ok"
        except Fenced:
            answer = "fenced"
        except StaleWrite:
            answer = "stale"
        same(f"answer to revision {w.revision}", answer, super().write(w))
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
    for seed in range(SEEDS):
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
    assert outcomes.keys() >= {"completed", "rolled", "partly"}
    assert max(managers) > 2


def carry_out(store: Store, steering: Steering, outputs: list[Output]) -> list[Output]:
    """Write what is to be written, until nothing is; returns the rest."""
    rest: list[Output] = []
    todo = deque(outputs)
    while todo:
        output = todo.popleft()
        if isinstance(output, Write):
            store.write(output)
            todo.extend(steering.confirmed(output.revision, 0.0))
        else:
            rest.append(output)
    return rest


def test_a_restarted_manager_resumes_from_the_store(opened: Opened) -> None:
    """Members, query, map and the open move are there; the former manager is fenced."""
    settings = SteeringSettings(version="1")
    first = opened()
    steering, outputs = Steering.resume(*first.claim("first"), settings, 0.0)
    for processor in (A, B):
        outputs += steering.handle(processor, Join(processor, 1, "1", 100), 0.0)
    hosts = {A: (SplitId("q/0"),), B: (SplitId("q/1"),)}
    outputs += steering.submit(
        Q,
        partitions=6,
        split_hosts=hosts,
        policy_name="lazy-disk",
        disk=DiskSettings(True),
        now_s=0.0,
    )
    carry_out(first, steering, outputs)
    known = steering.queries[Q].coordinator.map
    groups = [GroupId(int(g)) for g in known.groups_of(A)]
    carry_out(first, steering, steering.move(Q, groups, B, now_s=0.0))
    [move] = steering.queries[Q].coordinator.moves

    second = opened()
    office = second.claim("second")
    successor, outputs = Steering.resume(*office, settings, 0.0)
    assert [m.processor for m in successor.membership.alive()] == [A, B]
    assert successor.queries[Q].coordinator.map == known
    assert map_from_json(office.entries[map_key(Q)]) == known
    assert move in successor.queries[Q].coordinator.moves
    carry_out(second, successor, outputs)
    with pytest.raises(Fenced, match="replaced by 'second'"):
        carry_out(first, steering, steering.set_policy(Q, "none", now_s=0.0))
