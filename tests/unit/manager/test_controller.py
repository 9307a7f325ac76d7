"""Streams and queries under the manager's machine: who is told what, and how queries end."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dovetail_manager import members, queries, streams
from dovetail_manager.adaptation import rounds
from dovetail_manager.records import End
from dovetail_proto.assignment import Phase
from dovetail_proto.cluster_memory import newcomer_shares, smallest_limit
from dovetail_proto.errors import ConfigError, Domain, Refusal
from dovetail_proto.ids import Epoch, GroupId, MapVersion, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import (
    ComputePartitionsToMove,
    Heartbeat,
    PartitionsToMove,
    QueryStopped,
    Stage,
    StopQuery,
)
from dovetail_proto.wire.control import ENVELOPE_BYTES_MAX
from kit.manager import SCHEMA, Manager, move_on, received, report

Q = QueryName("q")


def running(*names: str) -> Manager:
    """A manager, members and the query q."""
    manager = Manager()
    manager.join(*names)
    manager.submit()
    return manager


# Telling -----------------------------------------------------------------------------------------


def test_processors_are_told_only_what_is_durable() -> None:
    """A stream, a query and its closing wait for the store, each for itself."""
    manager = Manager()
    manager.join("a")
    manager.held = True
    manager.submit()
    manager.do(queries.set_phase, Q, Phase.CLOSING)
    told = [[], ["s"], ["s", "t"], ["s", "t"], ["s", "t"]]
    phases = [[], [], [], [Phase.RUNNING], [Phase.CLOSING]]
    for names, phase in zip(told, phases, strict=True):
        manager.pass_time(1.5)
        seen = manager.assigned("a")
        assert seen is not None
        assert [s.name for s in seen.streams] == names
        assert [q.phase for q in seen.queries] == phase
        if manager.waiting:
            manager.write(manager.waiting.pop(0))


def test_versions_grow_from_manager_to_manager() -> None:
    """What a processor had from a former one is never taken for this one's."""
    manager = running("a")
    first = manager.assigned("a")
    successor = Manager(2, manager.entries)
    successor.pass_time(0.5)
    second = successor.assigned("a")
    assert first is not None
    assert second is not None
    assert second.version > first.version
    assert second.queries == first.queries
    assert second.streams == first.streams


def test_a_self_join_has_a_split_per_input_at_one_home() -> None:
    """Both read the same stream."""
    manager = Manager()
    manager.join("a", "b")
    manager.submit(sql="SELECT x.k AS a, y.v AS b FROM s x JOIN s y ON x.k = y.k")
    assert manager.query().record.split_hosts == {"a": ("q/0", "q/1")}


def test_names_are_taken_once_and_streams_must_exist() -> None:
    """The second is refused by name; nothing was written."""
    manager = running("a")
    before = dict(manager.entries)
    with pytest.raises(Refusal, match="query 'q' exists already") as taken:
        manager.submit()
    assert taken.value.details["reason"] == "exists"
    with pytest.raises(Refusal, match="stream 's' exists already"):
        manager.do(streams.create, "s", SCHEMA, None)
    with pytest.raises(Refusal, match="stream 'x' is unknown; create it first"):
        manager.do(streams.end, "x")
    assert manager.entries == before


def test_a_stream_is_dropped_when_no_query_reads_it() -> None:
    """A stream of the same name is another one to its home."""
    manager = running("a")
    with pytest.raises(Refusal, match="query 'q' reads stream 's'; close the query first"):
        manager.do(streams.drop, "s")
    assert "stream/s" in manager.entries
    manager.do(streams.create, "x", SCHEMA, None)
    before = manager.assigned("a")
    manager.do(streams.drop, "x")
    assert ("stream/x" in manager.entries, manager.events[-1].kind) == (False, "stream-dropped")
    manager.now_s += 1
    manager.do(streams.create, "x", SCHEMA, None)
    manager.pass_time(1.0)
    after = manager.assigned("a")
    assert before is not None
    assert after is not None
    made = [[s.created_s for s in seen.streams if s.name == "x"] for seen in (before, after)]
    assert made[0] < made[1]


def test_a_stream_needs_a_home() -> None:
    """There is none without processors."""
    with pytest.raises(ConfigError, match="a stream needs a processor as its home; start one"):
        Manager().do(streams.create, "s", SCHEMA, None)


def test_a_policy_says_whether_processors_push_by_themselves() -> None:
    """Also when it is changed later."""
    manager = running("a")
    for name, allowed in (("none", False), ("disk", True), ("distributed", False)):
        manager.do(queries.set_policy, Q, name)
        seen = manager.assigned("a")
        assert seen is not None
        assert seen.queries[0].disk.allowed is allowed


# Ends --------------------------------------------------------------------------------------------


def test_a_query_is_closed_when_its_moves_are_over() -> None:
    """Though everyone said closed before; and no new move begins."""
    manager = running("a", "b")
    manager.do(rounds.move, Q, [GroupId(0)], ProcessorId("b"))
    manager.do(queries.set_phase, Q, Phase.CLOSING)
    for name in ("a", "b"):
        manager.beat(name, report(stage=Stage.CLOSED, results=5))
    with pytest.raises(Refusal, match="query 'q' is closing: none of its groups move"):
        manager.do(rounds.move, Q, [GroupId(1)], ProcessorId("b"))
    assert manager.query().record.end is End.NOT_YET
    move_on(manager)
    received(manager)
    move_on(manager)
    assert manager.query().record.end is End.CLOSED
    assert Manager(2, manager.entries).query().record.end is End.CLOSED
    manager.pass_time(1.0)
    seen = manager.assigned("a")
    assert seen is not None
    assert seen.queries == ()


def test_a_closing_query_waits_for_a_processor_that_joins_late() -> None:
    """It gets the query in its phase, and has its say."""
    manager = running("a")
    manager.do(queries.set_phase, Q, Phase.CLOSING)
    manager.join("b")
    manager.beat("a", report(stage=Stage.CLOSED))
    seen = manager.assigned("b")
    assert seen is not None
    assert (seen.queries[0].phase, manager.query().record.end) == (Phase.CLOSING, End.NOT_YET)
    manager.beat("b", report(groups=0, stage=Stage.CLOSED))
    assert manager.query().record.end is End.CLOSED


def test_a_death_writes_down_how_the_query_ended() -> None:
    """Failure, time and all reports, in the transaction of the death."""
    manager = running("a", "b")
    manager.beat("b", report(results=2))
    for _ in range(11):
        manager.beat("a", report(results=1))
        manager.pass_time(1.0)
    dead, failed, rehomed = manager.events[-3:]
    assert (rehomed.kind, rehomed.processor) == ("stream-rehomed", "a")
    assert (dead.kind, dead.processor) == ("processor-died", "b")
    assert (failed.kind, failed.text) == ("query-failed", f"processor b died: {dead.text}")
    successor = Manager(2, manager.entries)
    assert successor.query().record.end is End.FAILED
    assert sum(i.load.results for i in queries.reports(successor.state, successor.query())) == 3


def test_a_failed_query_is_settled_when_everyone_has_dropped_it() -> None:
    """Until then it stays assigned where it is, and its name is not free."""
    manager = running("a", "b")
    manager.beat("a", report(stage=Stage.FAILED, cause="no memory"))
    stops = [s.to for s in manager.sent if isinstance(s.message, StopQuery)]
    assert stops == ["a", "b"]
    manager.hear("a", QueryStopped(Q, Epoch(1)))
    with pytest.raises(Refusal, match="a processor has not let go of it yet") as early:
        manager.do(queries.drop, Q)
    assert early.value.domain is Domain.BUSY
    manager.hear("b", QueryStopped(Q, Epoch(1)))
    with pytest.raises(Refusal, match="has not let go"):
        manager.do(queries.drop, Q)
    for name in ("a", "b"):
        manager.beat(name)
    manager.do(queries.drop, Q)
    assert [k for k in manager.entries if k.endswith("/q")] == []
    manager.submit()
    assert manager.query().record.cause == ""


def test_a_running_query_cannot_be_dropped_nor_an_ended_one_steered() -> None:
    """Each refusal says what state it is in."""
    manager = running("a")
    with pytest.raises(Refusal, match="query 'q' is running; close it first"):
        manager.do(queries.drop, Q)
    manager.beat("a", report(stage=Stage.FAILED, cause="no memory"))
    for verb, words in (
        (queries.set_phase, (Q, Phase.RUNNING)),
        (queries.set_policy, (Q, "disk")),
        (rounds.pin, (Q, [GroupId(0)], True)),
        (rounds.move, (Q, [GroupId(0)], ProcessorId("a"))),
    ):
        with pytest.raises(Refusal, match="query 'q' is failed"):
            manager.do(verb, *words)
    with pytest.raises(Refusal, match="query 'x' is unknown"):
        manager.do(queries.set_phase, QueryName("x"), Phase.PAUSED)


# Groups ------------------------------------------------------------------------------------------


def test_pinned_groups_stay() -> None:
    """The sender is told to leave them out; an operator has to unpin; a leaver has to wait."""
    manager = running("a", "b", "c")
    manager.do(rounds.pin, Q, [GroupId(0), GroupId(3)], True)
    with pytest.raises(Refusal, match="group 0 of query 'q' is pinned; unpin it first"):
        manager.do(rounds.move, Q, [GroupId(0), GroupId(1)], ProcessorId("b"))
    with pytest.raises(Refusal, match="group 3 of query 'q' is pinned to 'c'; unpin it first"):
        manager.do(members.ask_to_leave, ProcessorId("c"))
    manager.beat("a", report(held_bytes=900), used=900)
    manager.beat("b", report(), used=0)
    manager.beat("c", report(), used=500)
    manager.do(rounds.rebalance, Q, dry_run=False)
    [asked] = [s.message for s in manager.sent if isinstance(s.message, ComputePartitionsToMove)]
    assert (asked.exclude, asked.groups) == ((0,), ())
    with pytest.raises(Refusal, match="group 0 is pinned"):
        manager.hear("a", PartitionsToMove(asked.ref, (GroupId(0),), (1,)))
    manager.do(rounds.pin, Q, [GroupId(0), GroupId(3)], False)
    assert Manager(2, manager.entries).query().record.pinned == frozenset()


def test_a_dry_run_only_tells() -> None:
    """The same decision as without it, not recorded, nothing sent."""
    manager = running("a", "b")
    with pytest.raises(Refusal, match="a has not reported query 'q' yet"):
        manager.do(rounds.rebalance, Q, dry_run=True)
    manager.beat("a", report(held_bytes=900), used=900)
    manager.beat("b", report(), used=0)
    before = len(manager.sent)
    [told] = manager.do(rounds.rebalance, Q, dry_run=True)
    assert (told.admitted, told.number, len(manager.sent)) == (True, 0, before)
    [done] = manager.do(rounds.rebalance, Q, dry_run=False)
    assert (done.decision, done.admitted) == (told.decision, True)
    assert manager.events[-2].kind == "move-begun"
    assert manager.events[-1].kind == "adaptation-decided"


def test_nothing_adapts_while_a_query_is_paused() -> None:
    """However uneven memory is; it goes on when the query is resumed."""
    manager = running("a", "b")
    manager.do(queries.set_phase, Q, Phase.PAUSED)

    def uneven() -> list[Any]:
        manager.beat("a", report(held_bytes=900), used=900)
        manager.beat("b", report(), used=0)
        manager.pass_time(1.5)
        return [s for s in manager.sent if isinstance(s.message, ComputePartitionsToMove)]

    assert uneven() == []
    with pytest.raises(Refusal, match="is paused: none of its groups move; resume it first"):
        manager.do(rounds.rebalance, Q, dry_run=False)
    manager.do(queries.set_phase, Q, Phase.RUNNING)
    assert len(uneven()) > 0


def test_an_ended_move_is_in_the_history_and_no_longer_an_entry() -> None:
    """Also one whose manager died in between: its successor records it."""
    manager = running("a", "b")
    move = manager.do(rounds.move, Q, [GroupId(0)], ProcessorId("b"))
    move_on(manager)
    received(manager)
    before_end = dict(manager.entries)
    move_on(manager)
    [record] = manager.histories["moves/q"].values()
    told = json.loads(record)
    assert (told["id"], told["outcome"], told["groups"]) == (move.id, "completed", 1)
    assert [k for k in manager.entries if k.startswith("move/")] == []
    assert manager.query().placement.map.version == MapVersion(2)

    ended = json.loads(before_end[f"move/{move.id}"]) | {"outcome": "completed", "ended_s": 9.0}
    between = before_end | {f"move/{move.id}": json.dumps(ended)}
    successor = Manager(2, between)
    assert f'"{move.id}"' in next(iter(successor.histories["moves/q"].values()))
    assert [k for k in successor.entries if k.startswith("move/")] == []


def test_moves_of_two_queries_have_different_ids() -> None:
    """Their records are kept by id alone."""
    manager = running("a", "b", "c", "d")
    manager.submit("r")
    first = manager.do(rounds.move, Q, [GroupId(0)], ProcessorId("b"))
    second = manager.do(rounds.move, QueryName("r"), [GroupId(3)], ProcessorId("c"))
    assert first.id != second.id
    assert {f"move/{first.id}", f"move/{second.id}"} <= manager.entries.keys()


def test_every_reason_for_doing_nothing_is_one_record_with_a_count() -> None:
    """Amended now and then; active-disk has two in a round, and who asks is told both."""
    manager = running("a", "b")
    manager.do(queries.set_policy, Q, "active-disk")
    for _ in range(40):
        manager.beat("a", report())
        manager.beat("b", report())
        manager.pass_time(1.0)
    told = [json.loads(t) for _, t in sorted(manager.histories["adaptations/q"].items())]
    assert {t["decision"] for t in told} == {"nothing"}
    assert [25 <= t["repeated_times"] <= 40 for t in told] == [True, True], told
    manager.now_s += 0.5
    decided = manager.do(rounds.rebalance, Q, dry_run=False)
    assert [d.decision.kind for d in decided] == ["balanced", "equally productive"]


def test_streams_of_a_dead_home_get_another() -> None:
    """When no running query reads them; a new query finds them there."""
    manager = running("a", "b")
    for _ in range(12):
        manager.beat("a", report())
        manager.pass_time(1.0)
    assert {s.home for s in manager.state.declared().values()} == {"a"}
    manager.submit("r")
    assert manager.query("r").record.split_hosts == {"a": ("r/0", "r/1")}


def test_what_no_message_could_tell_a_processor_is_refused_when_it_is_asked_for() -> None:
    """Wide streams at one home: what was declared before is told, and a narrow one still fits."""
    manager = running("a")
    wide = pa.schema([(f"{'column' * 20}_{i}", pa.int64()) for i in range(5_000)])
    refused = ""
    for n in range(12):
        try:
            manager.do(streams.create, StreamName(f"wide_{n}"), wide, None)
        except Refusal as e:
            refused = str(e)
    assert re.search(r"would take [\d,]+ bytes to tell it, .* drop queries and streams", refused)
    manager.do(streams.create, StreamName("narrow"), SCHEMA, None)
    told = manager.assigned("a")
    assert told is not None
    assert {"s", "t", "wide_0", "narrow"} <= {s.name for s in told.streams}
    assert len(told.to_json()) < ENVELOPE_BYTES_MAX


@pytest.mark.parametrize("reported", [False, True])
def test_a_query_that_no_processor_has_reported_yet_counts_with_what_it_will_take(
    reported: bool,
) -> None:
    """The first query on a processor is made of all that is there, so less is left than its least.

    The next one is refused when it is submitted, and does not fail when it starts.
    """
    on = {"inputs": 2, "partitions": 4, "hosted": 2, "peers": 1}
    least = smallest_limit(**on)
    first = newcomer_shares(2 * least, alone=True, **on)
    left = 2 * least - first.fixed - first.minimum
    assert left < least
    manager = Manager()
    manager.join("a")
    beat = Heartbeat(ProcessorId("a"), 1, 0, (), False, room_bytes=2 * least)
    manager.hear("a", beat)
    manager.submit("q")
    if reported:
        manager.hear("a", replace(beat, loads=(report("q"),), room_bytes=left))
    with pytest.raises(Refusal, match=rf"needs at least {least:,} bytes .* and {left:,} of its"):
        manager.submit("r")
