"""Paths and URIs further down: what a URI says of its service stays behind its path."""

from __future__ import annotations

import pytest

from dovetail_proto.spill_format import place_above, place_below


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("spill", "spill/q/p1"),
        ("/data/spill/", "/data/spill/q/p1"),
        ("/odd?name", "/odd?name/q/p1"),
        ("s3://bucket", "s3://bucket/q/p1"),
        ("s3://bucket/run/?region=eu&scheme=http", "s3://bucket/run/q/p1?region=eu&scheme=http"),
    ],
)
def test_a_place_below(place: str, expected: str) -> None:
    """A question mark in a local path is a letter like any other."""
    made = place_below(place, "q", "p1")
    assert made == expected
    assert place_above(made) == (place_below(place, "q"), "p1")
