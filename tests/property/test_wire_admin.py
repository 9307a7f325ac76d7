"""Admin requests and answers arrive as they were said; forged ones are refused by field."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.v1 import admin_pb2 as pb
from dovetail_proto.wire import admin as wire

NAMES = st.from_regex(r"[a-z0-9_-]{1,64}", fullmatch=True)
COUNTS = st.integers(1, (1 << 31) - 1)
FLOATS = st.floats(0.5, 1e9)
NAMED = {"name", "query", "to", "policy", "owner", "sender", "receiver", "home", "stream"}
NAMED |= {"processor"}


def plain(kind: type) -> st.SearchStrategy[Any]:
    """Well-formed values of an admin type, from its annotations."""
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind, **{f.name: _field(f.name, hints[f.name]) for f in dataclasses.fields(kind)}
    )


def _field(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        if inner is int:
            groups = st.sets(st.integers(0, 1000), min_size=1, max_size=5)
            return groups.map(lambda s: tuple(sorted(s)))
        values = FLOATS if inner is float else plain(inner)
        return st.lists(values, max_size=3).map(tuple)
    if type(None) in typing.get_args(hint):
        [inner] = (t for t in typing.get_args(hint) if t is not type(None))
        return st.none() | _field(name, inner)
    if hint == Mapping[str, float]:
        return st.dictionaries(st.text(max_size=9), FLOATS, max_size=3)
    if name == "id":
        return st.just("0000000001-00000002")
    if name == "run":
        return st.builds("{}-{}".format, NAMES, COUNTS)
    if name == "sql":
        return st.just("SELECT 1")
    if name in NAMED:
        return NAMES
    if name in ("partitions", "group"):
        return st.integers(1, 1000)
    return {
        str: st.text(max_size=20), int: COUNTS, float: FLOATS, bool: st.booleans(),
        bytes: st.binary(max_size=20),
    }[hint]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(wire.SPECS, key=lambda k: k.__name__))
def test_every_admin_message_crosses_the_wire_unchanged(kind: type) -> None:
    """Through bytes and back, for every request and answer there is."""

    @given(plain(kind))
    def check(value: Any) -> None:
        sent = wire.to_wire(value)
        received = type(sent).FromString(sent.SerializeToString())
        assert wire.from_wire(kind, received) == value

    check()


def test_every_message_of_the_service_has_a_plain_type() -> None:
    """Nothing in admin.proto is without its table of fields, and no field of it is left out."""
    made = {spec[0].DESCRIPTOR.name: set(spec[1]) for spec in wire.SPECS.values()}
    described = pb.DESCRIPTOR.message_types_by_name
    assert set(made) == set(described)
    for name, fields in made.items():
        assert fields == set(described[name].fields_by_name)


@pytest.mark.parametrize(
    ("kind", "message", "field"),
    [
        (a.QueryRef, pb.QueryRef(name="../etc"), "QueryRef.name"),
        (a.Submit, pb.SubmitRequest(name="q", sql=" ", partitions=3, policy="disk"), "Submit.sql"),
        (a.Submit, pb.SubmitRequest(name="q", sql="x", policy="disk"), "Submit.partitions"),
        (
            a.Submit,
            pb.SubmitRequest(name="q", sql="x", partitions=3, policy="disk", weights=[math.nan]),
            "Submit.weights",
        ),
        (
            a.Submit,
            pb.SubmitRequest(name="q", sql="x", partitions=3, policy="disk", weights=[0, 0]),
            "Submit.weights",
        ),
        (a.MoveGroups, pb.MoveGroupsRequest(query="q", to="p1"), "MoveGroups.groups"),
        (a.Pin, pb.PinRequest(query="q", groups=[7, 3]), "Pin.groups"),
        (a.CreateStream, pb.CreateStreamRequest(name="s", schema=b"x" * (2 << 20)), "schema"),
        (a.SetPolicy, pb.SetPolicyRequest(query="q", policy="Lazy Disk"), "SetPolicy.policy"),
    ],
)
def test_a_forged_request_is_refused_by_the_name_of_its_field(
    kind: type, message: Any, field: str
) -> None:
    """The error says which field of which request, and what was expected."""
    with pytest.raises(Refusal, match=field) as refused:
        wire.from_wire(kind, message)
    assert refused.value.domain is Domain.MESSAGE
