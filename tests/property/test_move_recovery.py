"""The manager's side of a move: the order of its steps, and a death at each of its writes."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from dovetail_manager.effects import Send, StepDown
from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.placement import Placement
from dovetail_manager.moves.protocol import MoveEnded, Outcome
from dovetail_manager.moves.records import MoveWrite, map_key, move_from_json
from dovetail_manager.moves.steps import MoveSettings
from dovetail_processor.moves.instructions import (
    ChooseGroups,
    Reply,
    SendMarkers,
    ShipGroups,
)
from dovetail_processor.moves.participant import Participant
from dovetail_proto import messages as m
from dovetail_proto.errors import ConfigError, Domain
from dovetail_proto.ids import Epoch, MapVersion, ProcessorId
from dovetail_proto.partition_map import map_from_json
from kit.move_cases import (
    HOSTS,
    MAP,
    REF,
    ROOMY,
    H,
    Q,
    R,
    S,
    groups,
)

# The manager dies at every write ---------------------------------------------------------------


class Cluster:
    """Three participants and a store; messages arrive at once and in order."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {map_key(Q): MAP.to_json()}
        self.participants = {
            p: Participant(Q, p, MAP, HOSTS.get(p, ()), Epoch(1)) for p in (S, R, H)
        }
        self.ended: list[Any] = []
        self.told: list[str] = []

    def run(self, machine: Coordinator, todo: list[Any], die_at: int, after: bool) -> bool:
        """Carry out instructions; False if the manager died at its `die_at`-th write."""
        writes = 0
        queue = deque(todo)
        while queue:
            step = queue.popleft()
            if isinstance(step, MoveWrite):
                writes += 1
                if writes == die_at and not after:
                    return False
                self.entries.update({k: str(v) for k, v in step.puts.items()})
                if writes == die_at:
                    return False
                queue.extend(machine.persisted(step, 0.0))
            elif isinstance(step, MoveEnded):
                self.ended.append(step.move)
            elif isinstance(step, Send):
                self.told.append(type(step.message).__name__)
                for reply in self.deliver(step.to, step.message):
                    queue.extend(machine.handle(step.to, reply, 0.0))
        return True

    def deliver(self, to: ProcessorId, message: Any) -> list[Any]:
        """What the manager hears back, from whomever."""
        participant, replies = self.participants[to], []
        todo = deque(participant.handle(message, ROOMY))
        while todo:
            match todo.popleft():
                case Reply(reply):
                    replies.append(reply)
                case ChooseGroups(ref):
                    todo.extend(participant.groups_chosen(ref.move, groups(0, 1, 2), (5, 5, 5)))
                case SendMarkers(move, chunk, sender, splits):
                    for split in splits:
                        marker = m.EndOfMovedPartitions(Q, move, chunk, split)
                        shipped = self.participants[sender].marker(marker)
                        assert shipped == []
                case ShipGroups(ref, chunk, some, receiver):
                    state = m.ReceivePartitions(ref, chunk, some, 5, b"")
                    replies += [("from", receiver, r) for r in self.deliver(receiver, state)]
                case _:
                    pass
        return replies


def start(cluster: Cluster, epoch: int, chunk_bytes: int = 6) -> tuple[Coordinator, list[Any]]:
    """A manager of `epoch`, from the store."""
    known = map_from_json(cluster.entries[map_key(Q)])
    settings = MoveSettings(chunk_bytes=chunk_bytes)
    machine = Coordinator(Q, Epoch(epoch), Placement(known, HOSTS), settings)
    original = machine.handle

    def handle(source: ProcessorId, reply: Any, now_s: float) -> Any:
        if isinstance(reply, tuple):
            _, source, reply = reply
        return original(source, reply, now_s)

    machine.handle = handle  # type: ignore[method-assign]
    moves = [move_from_json(t) for k, t in cluster.entries.items() if k.startswith("move/")]
    todo = machine.take_up([v for v in moves if v.outcome is None], 0.0)
    return machine, todo


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("die_at", range(1, 7))
def test_a_manager_that_dies_at_any_write_leaves_a_move_that_its_successor_ends(
    die_at: int, after: bool
) -> None:
    """Committed chunks are completed, others rolled back; everyone agrees with the stored map."""
    cluster = Cluster()
    machine, _ = start(cluster, 1)
    begun = machine.begin(S, R, 15, reason="test", now_s=0.0)
    survived = cluster.run(machine, begun, die_at, after)
    assert survived == (die_at > 6)
    successor, todo = start(cluster, 2)
    assert cluster.run(successor, todo, 0, False)
    assert not successor.moves
    known = map_from_json(cluster.entries[map_key(Q)])
    committed = known.version - 1
    assert committed == max(0, min(3, die_at - 3 + after))
    for name, p in cluster.participants.items():
        assert p.owned == set(known.groups_of(name).tolist())
        assert p.adapting is None
        assert not p.split_host.held
    # A move that was written down and not ended is ended by the successor.
    expected = {0: Outcome.ROLLED_BACK, 3: Outcome.COMPLETED}.get(committed, Outcome.PARTLY)
    if (die_at, after) not in ((1, False), (6, True)):
        assert [v.outcome for v in cluster.ended] == [expected]


def test_the_eight_steps_come_in_the_papers_order() -> None:
    """One chunk: the names of S4 Fig. 13, with Reserve before step 3 and FinishMove at the end."""
    cluster = Cluster()
    machine, _ = start(cluster, 1, chunk_bytes=100)
    cluster.run(machine, machine.begin(S, R, 15, reason="test", now_s=0.0), 0, False)
    assert cluster.told == [
        "ComputePartitionsToMove",
        "Reserve",
        *["DeactivatePartitions"] * 2,
        "SendPartitions",
        *["ReactivatePartitions"] * 3,
        *["FinishMove"] * 3,
    ]
    assert cluster.ended[0].outcome is Outcome.COMPLETED


def test_a_manager_that_hears_of_a_higher_epoch_steps_down() -> None:
    """A processor obeys somebody else: no decision of this manager counts any more."""
    machine = Coordinator(Q, Epoch(2), Placement(MAP, HOSTS), MoveSettings())
    refused = m.Refused(REF, -1, "Reserve", Domain.EPOCH, "", Epoch(3), MapVersion(1))
    [step_down] = machine.handle(S, refused, 0.0)
    assert isinstance(step_down, StepDown)
    assert "epoch 3" in step_down.cause


def test_damaged_records_of_moves_are_refused() -> None:
    """With our error, whatever is in the store."""
    for text in ("", "[]", "{}", '{"id": 7}'):
        with pytest.raises(ConfigError, match="not the record of a move"):
            move_from_json(text)
