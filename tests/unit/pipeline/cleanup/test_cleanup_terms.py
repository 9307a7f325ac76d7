"""The delta terms are exactly what is owed, each combination once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from dovetail_pipeline.cleanup.terms import Rows, Term, delta_terms, show


def in_term(term: Term, t: int, generations: Sequence[int]) -> bool:
    """Whether a combination of rows of these generations is in the term of generation `t`."""
    return all(
        g < t if rows is Rows.OLDER else g == t if rows is Rows.NEW else g <= t
        for rows, g in zip(term, generations, strict=True)
    )


def test_three_inputs_give_the_terms_of_the_papers_first_equation():
    """S4 Eq. 1, with the last line parted so that what the run produced is left out."""
    shown = [show(t, "t", "ABC") for t in delta_terms(3)]
    assert shown == ["A=t ⋈ B<t ⋈ C<t", "A≤t ⋈ B=t ⋈ C<t", "A<t ⋈ B≤t ⋈ C=t", "A=t ⋈ B<t ⋈ C=t"]


@pytest.mark.parametrize("inputs", range(2, 7))
def test_terms_are_disjoint_and_complete(inputs: int):
    """Owed combinations of 8 generations are in one term, produced ones in none."""
    generations = 8
    combinations = np.indices((generations,) * inputs).reshape(inputs, -1)
    hits = np.zeros(combinations.shape[1], np.int64)
    for t in range(generations):
        masks = {
            Rows.OLDER: combinations < t,
            Rows.NEW: combinations == t,
            Rows.ALL: combinations <= t,
        }
        for term in delta_terms(inputs):
            hits += np.logical_and.reduce([masks[rows][i] for i, rows in enumerate(term)])
    produced = (combinations == combinations[0]).all(axis=0)
    assert (hits == np.where(produced, 0, 1)).all()


def test_in_term_agrees_with_the_ranges():
    """The sentence about one combination says the same as the ranges."""
    for t, gens in product(range(3), product(range(3), repeat=3)):
        owed = len(set(gens)) > 1 and max(gens) == t
        assert sum(in_term(term, t, gens) for term in delta_terms(3)) == owed


def test_no_term_holds_rows_of_all_generations_at_every_input():
    """The full join is never computed: each term has an input with new rows and one with old."""
    for inputs in range(2, 7):
        for term in delta_terms(inputs):
            assert Rows.NEW in term
            assert Rows.OLDER in term
