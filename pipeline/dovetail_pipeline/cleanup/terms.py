"""Which combinations are owed: the terms of incremental view maintenance, as plain data.

A group was pushed as generations 0, 1, 2, … Rows of one generation have met, so the run produced
every combination whose rows share a generation; all others are owed. S4 section 4.2 merges the
generations one by one. When generation t joins what came before it, Eq. 1 gives, for A ⋈ B ⋈ C,

    A=t B<t C<t     A≤t B=t C<t     A≤t B≤t C=t

one term per input i: i is the last input whose row is of generation t. The last term holds
A=t B=t C=t, which the run produced; it is split on the first input whose row is older than t:

    A≤t B≤t C=t   −   A=t B=t C=t   =   A<t B≤t C=t   ∪   A=t B<t C=t

So n inputs have 2(n − 1) terms for each t. They are disjoint, hold every owed combination and no
other, and each is a cross product of row ranges once rows are sorted by (key, generation).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class Rows(IntEnum):
    """Which rows of an input take part in a term of generation t."""

    OLDER = 0  # generation < t
    NEW = 1  # generation = t
    ALL = 2  # generation ≤ t


Term = tuple[Rows, ...]
"""One element per input."""

_SIGNS = {Rows.OLDER: "<", Rows.NEW: "=", Rows.ALL: "≤"}


def delta_terms(inputs: int) -> tuple[Term, ...]:
    """The terms that each generation t adds to a join of `inputs` inputs, in the order of Eq. 1."""
    last = inputs - 1
    terms = [
        tuple(_side(j, i, before=Rows.ALL, at=Rows.NEW, after=Rows.OLDER) for j in range(inputs))
        for i in range(last)
    ]
    for m in range(last):
        head = [_side(j, m, before=Rows.NEW, at=Rows.OLDER, after=Rows.ALL) for j in range(last)]
        terms.append((*head, Rows.NEW))
    return tuple(terms)


def show(term: Term, t: int | str, aliases: Sequence[str]) -> str:
    """A term as text, such as `a≤3 ⋈ b=3 ⋈ c<3`."""
    return " ⋈ ".join(f"{a}{_SIGNS[r]}{t}" for a, r in zip(aliases, term, strict=True))


def _side(j: int, pivot: int, *, before: Rows, at: Rows, after: Rows) -> Rows:
    return before if j < pivot else at if j == pivot else after
