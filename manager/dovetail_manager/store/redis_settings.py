"""Which Redis may hold the truth: one that forgets nothing that it has confirmed.

`appendfsync everysec` is refused: after a power cut, up to two seconds of confirmed writes would
be gone. A commit among them would give a group to its old owner while the new one joins it, and a
claim among them would give two managers one epoch. The manager writes a few times per move, so
`always` costs a few milliseconds where nobody waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail_proto.errors import ConfigError

VERSION_MIN = (6, 2)
"""The first with ZRANGE … BYSCORE REV, which histories are read by. Valkey counts from 7.2."""

NEEDED = {
    "appendonly": ("yes", "confirmed writes must survive a restart"),
    "appendfsync": ("always", "confirmed writes must survive a power cut"),
    "no-appendfsync-on-rewrite": ("no", "confirmed writes must survive one during a rewrite"),
    "maxmemory-policy": ("noeviction", "nothing may be dropped to make room"),
}
"""Setting → the value that it must have, and why."""


def check_settings(where: str, info: Mapping[str, Any], settings: Mapping[str, str]) -> None:
    """Raise ConfigError, with every remedy at once, unless the server may hold the truth."""
    version = str(info.get("redis_version", "0"))
    if _numbers(version) < VERSION_MIN:
        raise ConfigError(
            f"{where} is version {version}",
            remedy=f"use Redis {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer, or Valkey",
        )
    if info.get("cluster_enabled"):
        raise ConfigError(f"{where} is a Redis Cluster", remedy="use a single server")
    if info.get("role") != "master":
        raise ConfigError(f"{where} is a {info.get('role')}", remedy="use its master")
    wrong = {k: v for k, (v, _) in NEEDED.items() if settings.get(k) != v}
    if wrong:
        problems = [f"{k} is {settings.get(k, 'unknown')!r} ({NEEDED[k][1]})" for k in wrong]
        commands = [f"CONFIG SET {k} {v}" for k, v in wrong.items()]
        raise ConfigError(
            f"{where} may lose what it has confirmed: {', '.join(problems)}",
            remedy=f"run {'; '.join(commands)}; CONFIG REWRITE",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
