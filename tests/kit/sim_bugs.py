"""Seeded bugs: each breaks one rule on purpose; the simulator must find it.

A bug is a set of patches of the product's code. What ordinary seeds seldom come to is sought in a
scene (`sim_scenes`). `sim_bugs_input`, `sim_bugs_state` and `sim_bugs_moves` have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Patches = Callable[[], list[Any]]

WITHIN = 30
"""Seeds, from 0 on, that must find a bug: three times what the worst took when this was written, as
any change of the kit deals the faults anew."""


@dataclass(frozen=True, slots=True)
class Bug:
    """One broken rule."""

    rule: str  # what is broken
    patches: Patches
    scene: str = ""  # where it is sought; empty: in ordinary seeds


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Run with the bug in place."""
    patches = bug.patches()
    for p in patches:
        p.start()
    try:
        yield
    finally:
        for p in patches:
            p.stop()


def instead(owner: Any, name: str, made: Any) -> Patches:
    """Patches that put something in place of what a class or a module has."""
    return lambda: [patch.object(owner, name, made)]


def around(owner: Any, name: str, made: Callable[[Any], Any]) -> Patches:
    """The same, made from what is there."""
    return lambda: [patch.object(owner, name, made(getattr(owner, name)))]
