"""Streams whose home leaves, under the manager's machine: step by step, each durable first."""

from __future__ import annotations

from functools import partial

import pytest

from dovetail_manager import members, queries, streams
from dovetail_manager.adaptation import rounds
from dovetail_manager.records import End
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.handover import Handover, handover_from_json
from dovetail_proto.ids import (
    GroupId,
    ProcessorId,
    QueryName,
    SplitId,
    StreamName,
    input_of,
    next_split,
    query_of,
    split_id,
)
from dovetail_proto.messages import Heartbeat, StreamLoad
from kit.manager import SCHEMA, Manager, report

Q = QueryName("q")
DONE = Handover(7, {"feed": 3}, {Q: 7}).to_json()
"""What the home of s says when it is ready."""


def two_homes(*more: str) -> Manager:
    """a is the home of s, b of t; q reads both."""
    manager = Manager()
    manager.join("a", "b", *more)
    manager.submit()
    assert homes(manager) == {"s": "a", "t": "b"}
    beats(manager, "a", "b", *more)
    return manager


def homes(manager: Manager) -> dict[str, str]:
    """Where every stream is at home."""
    return {s.name: s.home for s in manager.state.declared().values()}


def hosts(manager: Manager, told: str) -> dict[str, tuple[str, ...]]:
    """Who hosts which split, as a processor was last told."""
    seen = manager.assigned(told)
    assert seen is not None
    return dict(seen.queries[0].split_hosts)


def leaves(manager: Manager, told: str, stream: str) -> bool:
    """Whether a processor was told to take nothing more in."""
    seen = manager.assigned(told)
    assert seen is not None
    return {s.name: s.leaves for s in seen.streams}[stream]


def beats(manager: Manager, *names: str) -> None:
    """Everyone says that it carries its newest assignment out."""
    for name in names:
        manager.beat(name, report())


def ready(manager: Manager, name: str = "a", stream: str = "s", handover: str = DONE) -> None:
    """A home that leaves has joined all that came."""
    manager.beat(name, report(), streams=(StreamLoad(StreamName(stream), 7, False, handover),))


def test_a_home_that_leaves_is_followed_by_another_one() -> None:
    """Frozen, joined, handed on, settled; groups move before and after, not meanwhile."""
    manager = two_homes()
    manager.do(members.ask_to_leave, ProcessorId("a"))
    assert leaves(manager, "a", "s")
    assert homes(manager)["s"] == "a", "it has not said that all is joined"
    with pytest.raises(Refusal, match="stream 's', which query 'q' reads, gets another home") as e:
        manager.do(rounds.move, Q, [GroupId(0)], ProcessorId("b"))
    assert e.value.domain is Domain.BUSY
    beats(manager, "a")
    assert homes(manager)["s"] == "a"
    ready(manager)
    assert homes(manager) == {"s": "b", "t": "b"}
    assert hosts(manager, "a") == hosts(manager, "b") == {"b": ("q/0.2", "q/1")}
    seen = manager.assigned("b")
    assert seen is not None
    assert [s.handover for s in seen.streams] == [DONE, ""]
    assert manager.events[-1].kind == "stream-rehomed"
    beats(manager, "b")
    manager.pass_time(1.5)
    assert not moved(manager), "a has not heard of it yet"
    beats(manager, "a", "b")
    manager.pass_time(1.5)
    assert moved(manager), "a is drained"
    again = manager.assigned("b")
    assert again is not None
    assert [s.handover for s in again.streams] == ["", ""]


def moved(manager: Manager) -> bool:
    """Whether a group moves."""
    return bool(manager.query().coordinator.moves)


def test_nobody_is_told_before_it_is_written_down() -> None:
    """Whatever a processor was told of homes and hosts, the store has it (`Manager` checks)."""
    manager = two_homes()
    manager.held = True
    manager.do(members.ask_to_leave, ProcessorId("a"))
    manager.write_all()
    assert leaves(manager, "a", "s")
    ready(manager)
    beats(manager, "b")
    assert hosts(manager, "b") == {"a": ("q/0",), "b": ("q/1",)}
    manager.write_all()
    assert hosts(manager, "b") == {"b": ("q/0.2", "q/1")}


def test_both_streams_of_a_query_go_one_after_the_other_if_they_must() -> None:
    """Two of three leave at once; all ends at the third."""
    manager = two_homes("c")
    for leaver in ("a", "b"):
        manager.do(members.ask_to_leave, ProcessorId(leaver))
    manager.held = True
    ready(manager)
    ready(manager, "b", "t")
    manager.write_all()
    assert homes(manager) == {"s": "c", "t": "c"}
    assert hosts(manager, "c") == {"c": ("q/0.2", "q/1.2")}


def test_a_query_that_closes_is_waited_for() -> None:
    """It ends its splits itself."""
    manager = two_homes()
    manager.do(queries.set_phase, Q, Phase.CLOSING)
    manager.do(members.ask_to_leave, ProcessorId("a"))
    assert not leaves(manager, "a", "s")


def test_the_home_of_a_paused_query_stays_and_a_query_whose_home_leaves_goes_on() -> None:
    """What waits for a paused one could not be joined, and its sources would be refused."""
    manager = two_homes()
    manager.do(queries.set_phase, Q, Phase.PAUSED)
    with pytest.raises(Refusal, match="query 'q' reads stream 's' at 'a' and is paused; resume it"):
        manager.do(members.ask_to_leave, ProcessorId("a"))
    manager.do(queries.set_phase, Q, Phase.RUNNING)
    manager.do(members.ask_to_leave, ProcessorId("a"))
    with pytest.raises(Refusal, match="stream 's', which query 'q' reads, gets another home"):
        manager.do(queries.set_phase, Q, Phase.PAUSED)


def test_a_file_that_a_query_reads_keeps_its_home() -> None:
    """Another processor may not have it."""
    manager = Manager()
    manager.join("a", "b")
    manager.do(streams.create, StreamName("s"), SCHEMA, "/data/s.parquet")
    manager.submit()
    beats(manager, "a", "b")
    with pytest.raises(Refusal, match=r"reads stream 's' at 'a' from '/data/s\.parquet'; close"):
        manager.do(members.ask_to_leave, ProcessorId("a"))


def test_a_home_that_is_started_anew_takes_rows_in_again() -> None:
    """It died and was back before anyone looked."""
    manager = two_homes()
    manager.do(members.ask_to_leave, ProcessorId("a"))
    assert leaves(manager, "a", "s")
    manager.join("a", incarnation=2)
    manager.beat("a", incarnation=2)
    assert homes(manager)["s"] == "a"
    assert not leaves(manager, "a", "s")
    assert not manager.state.stream("s").moving


def test_a_home_that_nobody_can_follow_takes_rows_in_until_somebody_can() -> None:
    """What it said before it took them in is not believed any more."""
    manager = Manager()
    manager.join("a", "b")
    for stream in ("s", "between", "t"):
        manager.do(streams.create, StreamName(stream), SCHEMA, None)
    manager.submit(weights=[1.0, 0.0])
    assert homes(manager) == {"s": "a", "between": "b", "t": "a"}
    manager.do(members.ask_to_leave, ProcessorId("a"))
    seen = manager.assigned("a")
    assert seen is not None
    assert leaves(manager, "a", "s")
    for _ in range(11):
        beats(manager, "a")
        manager.pass_time(1.0)
    assert manager.events[-1].kind == "processor-died"
    assert not leaves(manager, "a", "s"), "nobody is there to follow it"
    manager.join("d")
    assert leaves(manager, "a", "s")
    done = (StreamLoad(StreamName("s"), 7, False, DONE),)
    late = Heartbeat(ProcessorId("a"), 1, 0, (report(),), False, seen.version, done)
    manager.hear("a", late)
    assert homes(manager)["s"] == "a"
    ready(manager)
    assert homes(manager)["s"] == "d"


def test_a_home_without_groups_that_dies_meanwhile_fails_its_queries() -> None:
    """Whether the store has its successor or not."""
    manager = Manager()
    manager.join("a", "b")
    manager.submit(weights=[0.0, 1.0])
    beats(manager, "a", "b")
    manager.do(members.ask_to_leave, ProcessorId("a"))
    manager.held = True
    ready(manager)
    manager.join("a", incarnation=2)
    manager.write_all()
    assert manager.query().record.end is End.FAILED


def test_a_query_that_closes_after_all_keeps_its_splits() -> None:
    """The home said that all was joined, but the ends of input are on its links by now."""
    manager = two_homes()
    manager.do(members.ask_to_leave, ProcessorId("a"))
    manager.do(queries.set_phase, Q, Phase.CLOSING)
    ready(manager)
    assert homes(manager)["s"] == "a"
    assert hosts(manager, "b") == {"a": ("q/0",), "b": ("q/1",)}


def test_an_open_move_ends_first() -> None:
    """Splits that take part in it stay where they are until then."""
    manager = two_homes()
    manager.do(rounds.move, Q, [GroupId(0)], ProcessorId("b"))
    manager.do(members.ask_to_leave, ProcessorId("a"))
    assert moved(manager)
    assert not leaves(manager, "a", "s")


def test_another_next_home_is_chosen_if_the_first_is_gone() -> None:
    """As long as it holds nothing: then it would take the query along."""
    manager = two_homes()
    manager.join("c")
    beats(manager, "a", "b", "c")
    manager.do(members.ask_to_leave, ProcessorId("a"))
    assert manager.state.stream("s").next_home == "c", "who has no stream yet"
    manager.do(members.ask_to_leave, ProcessorId("c"))
    assert manager.state.stream("s").next_home == "b"
    ready(manager)
    assert homes(manager)["s"] == "b"


@pytest.mark.parametrize("after", ["leave", "ready", "settled"])
def test_a_successor_goes_on_where_the_store_is(after: str) -> None:
    """At every step."""
    manager = two_homes()
    steps = [
        ("leave", partial(manager.do, members.ask_to_leave, ProcessorId("a"))),
        ("ready", partial(ready, manager)),
        ("settled", partial(beats, manager, "a", "b")),
    ]
    for name, step in steps:
        step()
        if name == after:
            break
    successor = Manager(2, manager.entries)
    beats(successor, "a", "b")
    beats(successor, "a", "b")
    ready(successor)
    beats(successor, "a", "b")
    assert homes(successor) == {"s": "b", "t": "b"}
    assert not successor.state.stream("s").moving
    assert hosts(successor, "b") == {"b": ("q/0.2", "q/1")}


def test_a_stream_without_readers_is_handed_on_before_its_home_may_go() -> None:
    """Its sources go on as well."""
    manager = Manager()
    manager.join("a", "b")
    manager.do(streams.create, StreamName("s"), SCHEMA, None)
    beats(manager, "a", "b")
    manager.do(members.ask_to_leave, ProcessorId("a"))
    manager.hand_over("a")
    manager.pass_time(2.0)
    assert manager.events[-1].kind == "processor-leaving"
    ready(manager)
    manager.pass_time(2.0)
    assert manager.events[-1].kind == "processor-left"
    assert homes(manager) == {"s": "b"}


def test_nothing_is_submitted_on_a_stream_that_gets_another_home() -> None:
    """A moment later it can be."""
    manager = two_homes()
    manager.do(members.ask_to_leave, ProcessorId("a"))
    with pytest.raises(Refusal, match="stream 's' gets another home: 'a' leaves"):
        manager.submit("r")
    ready(manager)
    with pytest.raises(Refusal, match="gets another home"):
        manager.submit("r")
    beats(manager, "a", "b")
    manager.submit("r")


def test_split_ids_name_input_and_host() -> None:
    """`prices/0`, then `prices/0.2`."""
    first = split_id(Q, 3)
    assert first == SplitId("q/3")
    second = next_split(first)
    assert second == SplitId("q/3.2")
    assert next_split(second) == SplitId("q/3.3")
    assert {input_of(s) for s in (first, second)} == {3}
    assert {query_of(s) for s in (first, second)} == {Q}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rows": -1, "marks": {}, "rows_in": {}}', "[" * 100_000]
)
def test_what_is_no_handover_is_refused(text: str) -> None:
    """It comes over the wire."""
    with pytest.raises(Refusal, match="not a stream's handover"):
        handover_from_json(text)
    assert handover_from_json(DONE).marks == {"feed": 3}
