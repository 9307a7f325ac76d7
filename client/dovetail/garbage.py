"""When Python looks for garbage in cycles: seldom while a program loads, then as it always does.

Half a million objects are made while modules are loaded, and all of them stay. Looking through them
again and again takes a quarter of a second.
"""

from __future__ import annotations

import gc

LOADING_OBJECTS = 200_000
"""New objects between two looks while modules are loaded: two or three looks instead of hundreds,
and still a bound for a command that goes on for long."""

_USUAL = gc.get_threshold()


def collect_seldom() -> None:
    """A program begins: what it makes now, it keeps."""
    gc.set_threshold(LOADING_OBJECTS)


def collect_as_usual() -> None:
    """Everything is loaded: it is not looked through any more, and the rest is as always.

    Does nothing in a program that did not begin with `collect_seldom`.
    """
    if gc.get_threshold() != _USUAL:
        gc.freeze()
        gc.set_threshold(*_USUAL)
