"""When state moves or spills: each policy on snapshots whose numbers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_manager.adaptation.admission import Admission
from dovetail_manager.adaptation.initial import distribute, next_home, place_splits
from dovetail_manager.adaptation.policies import POLICIES, policy
from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    Decision,
    MoveState,
    Nothing,
    ProcessorLoad,
    PushState,
    Snapshot,
)
from dovetail_processor.adaptation.disk import bytes_to_push
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import ProcessorId, QueryName, StreamName

MB = 1_000_000
DEFAULTS = AdaptationSettings()


def load(
    name: str, used_mb: float, rate: float = 1.0, groups: int = 100, *, limit_mb: float = 256
) -> ProcessorLoad:
    """A processor of 256 MB, unless told otherwise."""
    used = int(used_mb * MB)
    limit = int(limit_mb * MB)
    return ProcessorLoad(ProcessorId(name), limit, used, used, limit, groups, rate)


def at(*loads: ProcessorLoad, query_mb: float = 0, **fields: float) -> Snapshot:
    """A snapshot at second 100."""
    snapshot = Snapshot(QueryName("q"), 100.0, loads, int(query_mb * MB))
    return replace(snapshot, **fields)  # type: ignore[arg-type]


def decide(
    name: str, snapshot: Snapshot, settings: AdaptationSettings = DEFAULTS
) -> list[Decision]:
    """What the named policy says."""
    return policy(name).decide(snapshot, settings)


def test_uneven_memory_moves_half_the_difference() -> None:
    """100 / 200 MB is below 0.8: (200 − 100) / 2 = 50 MB go from the most to the least used."""
    [move] = decide("distributed", at(load("p1", 200), load("p2", 100)))
    assert isinstance(move, MoveState)
    assert (move.sender, move.receiver, move.want_bytes) == ("p1", "p2", 50 * MB)
    assert move.numbers["ratio"] == 0.5
    assert "p2 / p1 = 39% / 78% = 0.50 is below 0.8" in move.reason


def test_how_full_a_processor_is_counts_not_how_many_bytes_it_uses() -> None:
    """500 of 1000 MB beside 90 of 100: the second is fuller; 36 MB make both 53.6 % full."""
    large, small = load("p1", 500, limit_mb=1000), load("p2", 90, limit_mb=100)
    for name in ("distributed", "lazy-disk", "active-disk"):
        [move, *_] = decide(name, at(large, small, query_mb=600))
        assert isinstance(move, MoveState)
        assert (move.sender, move.receiver) == ("p2", "p1")
        assert (90 * MB - move.want_bytes) / 100 == pytest.approx(
            (500 * MB + move.want_bytes) / 1000, rel=1e-6
        )
        assert "p1 / p2 = 50% / 90% = 0.56 is below 0.8" in move.reason
    [even] = decide("distributed", at(large, load("p2", 50, limit_mb=100)))
    assert isinstance(even, Nothing)
    assert even.kind == "balanced"


def test_a_small_processor_takes_what_is_little_to_a_large_one() -> None:
    """86 MB is all that 100 MB can take of 950: below a tenth of 1000, above a tenth of 100."""
    [move] = decide("distributed", at(load("p1", 950, limit_mb=1000), load("p2", 0, limit_mb=100)))
    assert isinstance(move, MoveState)
    assert move.want_bytes == 86_363_636


@pytest.mark.parametrize(
    ("snapshot", "kind", "reason"),
    [
        (
            at(load("p1", 100), load("p2", 80)),
            "balanced",
            "p2 / p1 = 31% / 39% = 0.80 is not below 0.8",
        ),
        (at(load("p1", 40), load("p2", 0)), "too small", "20000000 bytes would make both as full"),
        (at(load("p1", 200)), "alone", "1 processors are free to adapt, a move needs 2"),
        (
            at(load("p1", 200), replace(load("p2", 0), free=False)),
            "alone",
            "1 processors are free",
        ),
        (
            at(load("p1", 200), load("p2", 0), adapted_s=60.0),
            "interval",
            "the last adaptation began 40.0 s ago, the interval is 45 s",
        ),
        (at(load("p1", 0), load("p2", 0)), "balanced", "1.00 is not below"),
    ],
)
def test_why_nothing_moves_is_said_with_numbers(snapshot: Snapshot, kind: str, reason: str) -> None:
    """Every refusal to adapt has a reason that an operator can check."""
    [nothing] = decide("distributed", snapshot)
    assert isinstance(nothing, Nothing)
    assert nothing.kind == kind
    assert reason in nothing.reason


def test_many_processors_pair_the_most_with_the_least_used() -> None:
    """The first pair is the paper's; inner pairs follow while they are uneven by themselves."""
    loads = [load(f"p{i}", mb) for i, mb in enumerate((250, 200, 120, 110, 60, 10))]
    moves = decide("distributed", at(*loads))
    pairs = [(m.sender, m.receiver) for m in moves if isinstance(m, MoveState)]
    assert pairs == [("p0", "p5"), ("p1", "p4")]
    [only] = decide("distributed", at(*loads), replace(DEFAULTS, pairs_max=1))
    assert isinstance(only, MoveState)
    assert (only.sender, only.receiver) == ("p0", "p5")


@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.sampled_from((16, 64, 256))), min_size=2, max_size=12
    )
)
def test_a_round_never_makes_memory_more_uneven(used: list[tuple[int, int]]) -> None:
    """Each processor moves at most once, to one that is less full and stays no fuller."""
    loads = [
        load(f"p{i:02d}", percent * mb / 100, limit_mb=mb) for i, (percent, mb) in enumerate(used)
    ]
    moves = [d for d in decide("distributed", at(*loads)) if isinstance(d, MoveState)]
    ends = [p for d in moves for p in (d.sender, d.receiver)]
    assert len(ends) == len(set(ends))
    limits = {p.processor: p.limit_bytes for p in loads}
    after = {p.processor: p.used_bytes for p in loads}

    def full(processor: ProcessorId) -> float:
        return after[processor] / limits[processor]

    before = max(map(full, after)) - min(map(full, after))
    for d in moves:
        assert full(d.receiver) < full(d.sender)
        after[d.sender] -= d.want_bytes
        after[d.receiver] += d.want_bytes
        assert full(d.receiver) <= full(d.sender) + 1e-6
    assert max(map(full, after)) - min(map(full, after)) <= before


def test_none_and_disk_never_move() -> None:
    """However uneven; `disk` leaves spilling to the processors."""
    uneven = at(load("p1", 250), load("p2", 0))
    for name in ("none", "disk"):
        assert all(isinstance(d, Nothing) for d in decide(name, uneven))
    assert {n: p.spills_locally for n, p in POLICIES.items()} == {
        "none": False,
        "disk": True,
        "distributed": False,
        "lazy-disk": True,
        "active-disk": True,
    }


def test_active_disk_forces_the_least_productive_when_memory_is_balanced() -> None:
    """Rates 4 and 1 differ by more than 2: push 30 % of 200 MB, within 1000 − 0.8 · 512 MB."""
    snapshot = at(load("p1", 210, rate=4.0), load("p2", 200, rate=1.0), query_mb=1000)
    [_, push] = decide("active-disk", snapshot)
    assert isinstance(push, PushState)
    assert (push.processor, push.want_bytes) == ("p2", 60 * MB)
    assert push.numbers["rate_ratio"] == 4.0


def test_active_disk_never_forces_more_than_the_cluster_lacks() -> None:
    """M_query − M_cluster − forced: 420 − 0.8 · 500 − 15 leaves 5 MB, then nothing."""
    loads = (load("p1", 210, 4.0, limit_mb=250), load("p2", 200, 1.0, limit_mb=250))
    [_, push] = decide("active-disk", at(*loads, query_mb=420, forced_bytes=15 * MB))
    assert isinstance(push, PushState)
    assert push.want_bytes == 5 * MB
    decisions = decide("active-disk", at(*loads, query_mb=420, forced_bytes=20 * MB))
    assert [d.kind for d in decisions if isinstance(d, Nothing)] == ["balanced", "bound"]
    open_ended = replace(at(*loads, query_mb=300), unknown=(StreamName("s"), StreamName("t")))
    [_, nothing] = decide("active-disk", open_ended)
    assert isinstance(nothing, Nothing)
    assert nothing.kind == "unknown"
    assert "without what streams 's', 't' still bring" in nothing.reason


def test_m_cluster_is_what_theta_m_leaves_for_this_querys_state() -> None:
    """A limit is shared with queues, output and other queries: 100 of 256 MB are for this state."""
    loads = [
        replace(load(name, 80, rate), state_limit_bytes=100 * MB)
        for name, rate in (("p1", 4.0), ("p2", 1.0))
    ]
    [_, push] = decide("active-disk", at(*loads, query_mb=170))
    assert isinstance(push, PushState)
    assert push.numbers["m_cluster_bytes"] == 160 * MB
    assert push.want_bytes == 10 * MB


@pytest.mark.parametrize(("held_mb", "kind"), [(39, Nothing), (41, PushState)])
def test_active_disk_forces_nothing_while_memory_is_nearly_empty(
    held_mb: float, kind: type[Decision]
) -> None:
    """Below 40 % of what state may take, however much is expected."""
    loads = (load("p1", held_mb, 4.0, limit_mb=100), load("p2", held_mb, 1.0, limit_mb=100))
    [_, verdict] = decide("active-disk", at(*loads, query_mb=1e6))
    assert isinstance(verdict, kind)
    if isinstance(verdict, Nothing):
        assert verdict.kind == "nearly empty"


def test_active_disk_moves_first_when_memory_is_uneven() -> None:
    """Fig. 19: the comparison of rates comes only when the comparison of memory is settled."""
    uneven = at(load("p1", 250, rate=9.0), load("p2", 100, rate=1.0), query_mb=1000)
    [move, nothing] = decide("active-disk", uneven)
    assert isinstance(move, MoveState)
    assert isinstance(nothing, Nothing)


def test_active_disk_compares_only_whom_no_move_involves() -> None:
    """The most with the least used move; the other four are balanced, two pairs differ in rate."""
    loads = [load(f"p{i}", mb) for i, mb in enumerate((250, 200, 198, 196, 194, 10))]
    rates = (1.0, 8.0, 6.0, 2.0, 1.0, 9.0)
    snapshot = at(*(replace(p, rate=r) for p, r in zip(loads, rates, strict=True)), query_mb=5000)
    decisions = decide("active-disk", snapshot)
    moves = [(d.sender, d.receiver) for d in decisions if isinstance(d, MoveState)]
    pushes = [d.processor for d in decisions if isinstance(d, PushState)]
    assert moves == [("p0", "p5")]
    assert pushes == ["p4", "p3"]


def test_active_disk_waits_for_the_interval() -> None:
    """Forced pushes are adaptations, too."""
    loads = (load("p1", 210, rate=4.0), load("p2", 200, rate=1.0))
    [nothing] = decide("active-disk", at(*loads, query_mb=1000, adapted_s=60.0))
    assert isinstance(nothing, Nothing)
    assert nothing.kind == "interval"


@pytest.mark.parametrize(
    ("rates", "pushes"), [((2.0, 1.0), 0), ((2.1, 1.0), 1), ((1, 0), 1), ((0, 0), 0)]
)
def test_active_disk_compares_rates_strictly(rates: tuple[float, float], pushes: int) -> None:
    """Above θ_f, not at it; a rate of 0 is infinitely lower unless all are 0."""
    high, low = rates
    snapshot = at(load("p1", 200, rate=high), load("p2", 200, rate=low), query_mb=1000)
    assert sum(isinstance(d, PushState) for d in decide("active-disk", snapshot)) == pushes


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    """The error lists what there is."""
    with pytest.raises(ConfigError, match="'lazy' does not exist; use none, disk, distributed"):
        policy("lazy")


# Admission ---------------------------------------------------------------------------------------


def test_one_adaptation_at_a_time_on_a_processor() -> None:
    """A busy processor is left out: the next pair is formed without it."""
    admission = Admission(policy("lazy-disk"), DEFAULTS)
    loads = [load(f"p{i}", mb) for i, mb in enumerate((250, 200, 100, 10))]
    [move] = admission.decide(at(*loads), busy={ProcessorId("p0"), ProcessorId("p3")})
    assert isinstance(move, MoveState)
    assert (move.sender, move.receiver) == ("p1", "p2")


def test_the_interval_counts_from_the_last_admitted_move() -> None:
    """And what was decided, when and why is on record, nothings in a row once with a count."""
    admission = Admission(policy("lazy-disk"), DEFAULTS)
    uneven = at(load("p1", 200), load("p2", 100))
    assert len(admission.decide(uneven, busy=set())) == 1
    for second in (101, 120, 144):
        assert admission.decide(replace(uneven, now_s=float(second)), busy=set()) == []
    assert len(admission.decide(replace(uneven, now_s=145.0), busy=set())) == 1
    kinds = [type(r.decision).__name__ for r in admission.history]
    assert kinds == ["MoveState", "Nothing", "MoveState"]
    assert admission.history[1].repeated == 3
    assert all(r.admitted for r in admission.history)


def test_several_reasons_for_doing_nothing_are_one_record_each() -> None:
    """Under active-disk every idle round has two; the next adaptation begins new records."""
    admission = Admission(policy("active-disk"), DEFAULTS)
    even = at(load("p1", 100), load("p2", 100))
    for second in range(50):
        assert admission.decide(replace(even, now_s=100.0 + second), busy=set()) == []
    told = [(r.decision.kind, r.repeated, r.at_s) for r in admission.history]  # type: ignore[union-attr]
    assert told == [("balanced", 50, 149.0), ("equally productive", 50, 149.0)]
    uneven = replace(at(load("p1", 200), load("p2", 100)), now_s=150.0)
    assert len(admission.decide(uneven, busy=set())) == 1
    admission.decide(replace(even, now_s=200.0), busy=set())
    assert [r.repeated for r in admission.history if isinstance(r.decision, Nothing)][-2:] == [1, 1]


def test_forced_pushes_count_against_the_bound_while_they_run() -> None:
    """An order of 60 MB that is not answered yet leaves 28 MB of 88; the answer settles it."""
    admission = Admission(policy("active-disk"), DEFAULTS)
    loads = (load("p1", 210, rate=4.0), load("p2", 200, rate=1.0), load("p3", 205, rate=1.5))
    snapshot = at(*loads, query_mb=0.8 * 768 + 88)
    [first] = admission.decide(snapshot, busy=set())
    assert isinstance(first, PushState)
    assert (first.processor, first.want_bytes) == ("p2", 60 * MB)
    [second] = admission.decide(replace(snapshot, now_s=145.0), busy=set())
    assert isinstance(second, PushState)
    assert (second.processor, second.want_bytes) == ("p3", 28 * MB)
    admission.pushed(ProcessorId("p2"), 61 * MB)
    admission.pushed(ProcessorId("p2"), 61 * MB)
    assert admission.forced_bytes == 61 * MB


# The local half, and the beginning ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "no_disk", "in_disk", "pushed"),
    [(80, False, False, 0), (81, False, False, 24), (81, True, False, 0), (81, False, True, 0)],
)
def test_a_processor_pushes_above_the_threshold_unless_a_flag_forbids(
    used: int, no_disk: bool, in_disk: bool, pushed: int
) -> None:
    """Fig. 18: M_u / M_a > θ_m, not nodiskAdaptation, not indiskAdaptation; 30 % of the state."""
    wanted = bytes_to_push(
        used_bytes=used,
        limit_bytes=100,
        held_bytes=80,
        spill_above_ratio=0.8,
        push_fraction=0.3,
        no_disk_adaptation=no_disk,
        in_disk_adaptation=in_disk,
    )
    assert wanted == pushed


@given(st.integers(1, 500), st.integers(1, 12))
def test_groups_are_dealt_equally(partitions: int, processors: int) -> None:
    """Every group once, in contiguous ranges whose sizes differ by at most one."""
    names = [ProcessorId(f"p{i}") for i in range(processors)]
    owners = distribute(partitions, names)
    counts = [owners.count(n) for n in names]
    assert len(owners) == partitions == sum(counts)
    assert max(counts) - min(counts) <= 1
    assert owners == sorted(owners, key=names.index)


def test_weights_deal_groups_in_proportion() -> None:
    """4 : 1 : 1 of 300 is 200, 50, 50; a weight of 0 gets none."""
    names = [ProcessorId(n) for n in ("a", "b", "c")]
    owners = distribute(300, names, [4, 1, 1])
    assert [owners.count(n) for n in names] == [200, 50, 50]
    assert distribute(7, names, [1, 0, 0]).count(names[0]) == 7


@pytest.mark.parametrize("weights", [[1.0], [-1, 1], [0, 0], [float("inf"), 1], [float("nan"), 1]])
def test_weights_that_cannot_be_are_refused(weights: list[float]) -> None:
    """One per processor, finite, not negative, not all 0."""
    with pytest.raises(ConfigError, match="weights"):
        distribute(10, [ProcessorId("a"), ProcessorId("b")], weights)


def test_splits_are_where_their_streams_are_at_home() -> None:
    """Three inputs, two homes; a self-join has two splits at one home."""
    homes = [ProcessorId("a"), ProcessorId("b"), ProcessorId("a")]
    assert place_splits(QueryName("q"), homes) == {"a": ("q/0", "q/2"), "b": ("q/1",)}


def test_streams_are_dealt_out_evenly() -> None:
    """To who has the fewest, by name among equals; to nobody if there is nobody."""
    names = [ProcessorId("a"), ProcessorId("b")]
    assert [next_home(h, names) for h in ([], ["a"], ["a", "b"], ["a", "a", "c"])] == [
        "a",
        "b",
        "a",
        "b",
    ]
    with pytest.raises(ConfigError, match="a stream needs a processor as its home; start one"):
        next_home([], [])
