"""The policies by name."""

from __future__ import annotations

from dovetail_manager.adaptation import active_disk, disk, distributed, lazy_disk, none
from dovetail_manager.adaptation.snapshot import Policy
from dovetail_proto.errors import ConfigError

POLICIES: dict[str, Policy] = {
    p.name: p
    for p in (
        none.POLICY,
        disk.POLICY,
        distributed.POLICY,
        lazy_disk.POLICY,
        active_disk.POLICY,
    )
}


def policy(name: str) -> Policy:
    """The policy called `name`; ConfigError lists what there is."""
    if name not in POLICIES:
        raise ConfigError(f"policy {name!r} does not exist", remedy=f"use {', '.join(POLICIES)}")
    return POLICIES[name]
