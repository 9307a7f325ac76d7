"""The versioned map of owners, against a plain list of lists."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_proto.errors import ConfigError, Domain, Refusal
from dovetail_proto.ids import GroupId, MapVersion, ProcessorId, QueryName
from dovetail_proto.partition_map import MapPatch, PartitionMap, map_from_json
from dovetail_proto.query import PARTITIONS_MAX

Q = QueryName("q")
P = [ProcessorId(f"p{i}") for i in range(4)]
MOVES = st.lists(st.tuples(st.sets(st.integers(0, 9), min_size=1), st.integers(0, 3)), max_size=8)


def history(moves: list[tuple[set[int], int]]) -> tuple[list[PartitionMap], list[list[str]]]:
    """Every version of a map, and the same as plain lists of owners."""
    owners: list[str] = [P[0]] * 5 + [P[1]] * 5
    maps, plain = [PartitionMap.initial(Q, [ProcessorId(o) for o in owners])], [list(owners)]
    for groups, to in moves:
        maps.append(maps[-1].moved([GroupId(g) for g in sorted(groups)], P[to]))
        owners = [P[to] if g in groups else o for g, o in enumerate(owners)]
        plain.append(list(owners))
    return maps, plain


@given(MOVES)
def test_every_version_has_one_owner_per_group(moves: list[tuple[set[int], int]]) -> None:
    """Versions grow by one, and each agrees with the plain list."""
    maps, plain = history(moves)
    for version, (known, owners) in enumerate(zip(maps, plain, strict=True), start=1):
        known.validate()
        assert known.version == version
        assert [known.owner(GroupId(g)) for g in range(10)] == owners
        for p in P:
            expected = [g for g, o in enumerate(owners) if o == p]
            assert known.groups_of(p).tolist() == expected


@given(MOVES, st.data())
def test_a_patch_from_any_version_catches_up(
    moves: list[tuple[set[int], int]], picks: st.DataObject
) -> None:
    """A holder of version v and the patch since v has the newest map; twice changes nothing."""
    maps, plain = history(moves)
    old = picks.draw(st.sampled_from(maps))
    patch = maps[-1].patch_since(old.version)
    caught_up = old.applied(patch)
    assert caught_up == maps[-1]
    assert caught_up.applied(patch) is caught_up
    changed = {g for g, _, _ in old.diff(maps[-1])}
    assert changed <= {g for g, _ in patch.changes}
    assert plain[-1] == [caught_up.owner(GroupId(g)) for g in range(10)]


def test_a_patch_that_skips_versions_is_refused() -> None:
    """The refusal names both versions, and what to send instead."""
    maps, _ = history([({1}, 2), ({2}, 3), ({3}, 1)])
    with pytest.raises(Refusal, match=r"3→4 .* does not follow version 1; send .* version 1") as e:
        maps[0].applied(maps[3].patch_since(MapVersion(3)))
    assert e.value.domain is Domain.MAP
    assert maps[0].version == 1


@pytest.mark.parametrize(
    ("patch", "domain"),
    [
        (MapPatch(QueryName("other"), MapVersion(1), MapVersion(2), ()), Domain.QUERY),
        (MapPatch(Q, MapVersion(2), MapVersion(1), ()), Domain.MAP),
        (MapPatch(Q, MapVersion(1), MapVersion(2), ((GroupId(99), P[0]),)), Domain.GROUP),
        (MapPatch(Q, MapVersion(1), MapVersion(2), ((GroupId(-1), P[0]),)), Domain.GROUP),
        (
            MapPatch(Q, MapVersion(1), MapVersion(2), ((GroupId(1), ProcessorId("NO")),)),
            Domain.MEMBER,
        ),
    ],
)
def test_impossible_patches_are_refused(patch: MapPatch, domain: Domain) -> None:
    """Another query, backwards, an unknown group, an owner that is no name."""
    known = history([])[0][0]
    with pytest.raises(Refusal) as e:
        known.applied(patch)
    assert e.value.domain is domain


@given(MOVES)
def test_a_map_survives_the_store(moves: list[tuple[set[int], int]]) -> None:
    """Text and back gives the same owners and the same patches."""
    newest = history(moves)[0][-1]
    read = map_from_json(newest.to_json())
    assert read == newest
    assert read.patch_since(MapVersion(1)) == newest.patch_since(MapVersion(1))


def test_a_map_of_the_most_groups_is_small_as_text() -> None:
    """As it is dealt, and when every group has moved by itself and to anybody: seed 1."""
    random = Random(1)
    names = [ProcessorId(f"processor-{i}") for i in range(200)]
    dealt = PartitionMap.initial(
        Q, [names[g * 200 // PARTITIONS_MAX] for g in range(PARTITIONS_MAX)]
    )
    assert len(dealt.to_json()) < 10_000
    groups = list(range(PARTITIONS_MAX))
    random.shuffle(groups)
    owners = np.array(random.choices(range(200), k=PARTITIONS_MAX), np.int32)
    worst = replace(
        dealt,
        version=MapVersion(PARTITIONS_MAX + 1),
        owners=owners,
        since=np.array(groups, np.int64) + 2,
    )
    assert len(worst.to_json()) < 8 * PARTITIONS_MAX
    assert map_from_json(worst.to_json()) == worst


def test_a_forged_map_does_not_swell() -> None:
    """A short text that unpacks to more groups than there may be is refused before it does."""
    known = json.loads(history([])[0][0].to_json())
    for size in (PARTITIONS_MAX + 1, 1 << 26):
        packed = base64.b64encode(zlib.compress(bytes(4 * size))).decode()
        with pytest.raises(ConfigError, match="cut short or more than 65536"):
            map_from_json(json.dumps({**known, "owners": packed}))


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}"),
        '{"query": "q", "version": 1, "processors": [], "owners": "", "since": ""}',
        '{"query": "q", "version": 1, "processors": ["p"], "owners": "AAAA", "since": "AAAA"}',
    ],
)
def test_a_damaged_record_is_refused(text: str) -> None:
    """With our error, whatever is in the store."""
    with pytest.raises(ConfigError):
        map_from_json(text)


def test_groups_that_do_not_exist_are_named() -> None:
    """Owner, patch and move alike."""
    known = history([])[0][0]
    with pytest.raises(Refusal, match="group 10 does not exist in query 'q': it has groups 0 to 9"):
        known.owner(GroupId(10))
    with pytest.raises(Refusal, match="group 10"):
        known.moved([GroupId(10)], P[0])
    with pytest.raises(Refusal, match="no patch from map version 2"):
        known.patch_since(MapVersion(2))
