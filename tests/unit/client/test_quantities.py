"""Sizes and shares are read as people write them, and refused with an example otherwise."""

from __future__ import annotations

import pytest

from dovetail.quantities import format_bytes, parse_bytes, parse_share
from dovetail_proto.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MB", 64_000_000),
        ("64 MB", 64_000_000),
        ("64mb", 64_000_000),
        ("64M", 64_000_000),
        ("1GiB", 1 << 30),
        ("1.5kib", 1536),
        ("0.1GB", 100_000_000),
        ("500", 500),
        ("500b", 500),
        ("2T", 2 * 10**12),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    """Decimal units without an i, binary ones with it, bytes alone."""
    assert parse_bytes(text, what="--memory") == size


@pytest.mark.parametrize("text", ["", "MB", "64 parsecs", "-1MB", "1e9", "64MBMB", "1,5GB", "½GB"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    """The flag and the value are named."""
    with pytest.raises(ConfigError, match=r"--memory: .* is not a size; .*64MB"):
        parse_bytes(text, what="--memory")


@pytest.mark.parametrize("text", ["0", "0MB", "9999999TiB"])
def test_a_size_out_of_range_is_refused(text: str) -> None:
    """Nothing and more than an int64 are no limits."""
    with pytest.raises(ConfigError, match="out of range"):
        parse_bytes(text, what="--memory")


@pytest.mark.parametrize(
    ("text", "share"), [("30%", 0.3), ("100 %", 1.0), ("0.25", 0.25), ("1", 1.0), ("2.5%", 0.025)]
)
def test_a_share_is_a_percentage_or_a_fraction(text: str, share: float) -> None:
    """Both mean the same."""
    assert parse_share(text, what="--push-fraction") == pytest.approx(share)


@pytest.mark.parametrize("text", ["0%", "101%", "30", "-5%", "half", "", "%"])
def test_a_share_out_of_range_is_refused(text: str) -> None:
    """A push of nothing would never free memory; 30 is more likely 30 % than 30 times."""
    with pytest.raises(ConfigError, match=r"--push-fraction: .*30%"):
        parse_share(text, what="--push-fraction")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (64_000_000, "64.0 MB"), (2.5e15, "2500.0 TB")]
)
def test_sizes_are_shown_in_decimal_units(size: float, text: str) -> None:
    """As they are written on flags."""
    assert format_bytes(size) == text
