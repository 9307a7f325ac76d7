"""Sizes and shares as people write them: `64MB`, `1GiB`, `30%`. The one place that reads them."""

from __future__ import annotations

import re
from decimal import Decimal

from dovetail_proto.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*")

BYTES_MAX = 2**63 - 1
"""Byte counts are int64 everywhere below."""


def parse_bytes(text: str, *, what: str) -> int:
    """`64MB` is 64 000 000, `64MiB` is 67 108 864, `64` is 64; ConfigError names `what`."""
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(
            f"{what}: {text!r} is not a size",
            remedy="write a number with a unit, such as 64MB, 1GiB or 500000000",
        )
    size = int(Decimal(match[1]) * unit)
    if not 0 < size <= BYTES_MAX:
        raise ConfigError(f"{what}: {text!r} is out of range", remedy="give at least 1 byte")
    return size


def parse_share(text: str, *, what: str) -> float:
    """`30%` and `0.3` are 0.3; ConfigError unless it is more than 0 and at most 100 %."""
    match = _SHARE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{what}: {text!r} is not a share", remedy="write a percentage such as 30%"
        )
    share = float(match[1]) / (100 if match[2] else 1)
    if not 0 < share <= 1:
        raise ConfigError(
            f"{what}: {text!r} is not between 0 and 100 %",
            remedy="write a percentage such as 30%, or a fraction such as 0.3",
        )
    return share


def format_bytes(size: float) -> str:
    """A size for people, in decimal units: `64.0 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_count(number: int) -> str:
    """A count for people: thousands set apart by thin commas."""
    return f"{number:,}"
