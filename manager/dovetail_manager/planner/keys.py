"""The join key: which written equalities tie all inputs together, and which stay conditions.

Every equality between two inputs is an edge between two terms (a term is an expression over one
input). Terms that edges connect form a class; a class with a term of every input is one part of the
key, and one term per input stands for it:

    a.k = b.k AND b.k = c.k AND a.x = c.x     class {a.k b.k c.k} is the key; a.x = c.x is left over

DuckDB compares each pair in the pair's common type, the join compares a class in one common type
for all. Two rules keep the results the same, where A and B are a pair's types, T their common type
and C the class's:

* an edge may build the class only if being equal in T implies being equal in C: T is C, or A and B
  fit into T without loss (else 2**24 + 1 = 16777216.0 holds as FLOAT, but not as DOUBLE);
* an edge is dropped only if being equal in C implies being equal in T: T is C, or A and B fit into
  C without loss (else 2**53 + 1 = 2**53 would hold, once a third input is a DOUBLE). All others
  stay as conditions after the join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa
from sqlglot import exp

from dovetail_manager.planner.refusals import Refuse, type_name
from dovetail_proto.errors import QueryError
from dovetail_proto.key_types import common_key_type

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Term:
    """One side of an equality: an expression over the columns of one input."""

    input: int
    sql: str  # over the stream's columns
    column: str | None  # if it is a bare column
    type: pa.DataType
    faithful: bool  # Arrow holds exactly what DuckDB compares
    text: str = field(compare=False)  # for messages: trades.symbol
    owner: str = field(compare=False)  # for messages: the stream's name


@dataclass(frozen=True, slots=True)
class Equality(Generic[T]):
    """A written equality between terms; `condition` is what to evaluate if it is left over."""

    left: Term
    right: Term
    place: exp.Expr
    condition: T

    @property
    def text(self) -> str:
        """The equality as a message shows it."""
        return f"{self.left.text} = {self.right.text}"


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One part of the key: a term of every input, in input order, compared as `type`."""

    terms: tuple[Term, ...]
    type: pa.DataType


def choose_key(
    equalities: Sequence[Equality[T]], inputs: Sequence[tuple[str, exp.Expr]], refuse: Refuse
) -> tuple[list[KeyPart], list[Equality[T]]]:
    """The parts of the key, and the equalities that must be evaluated after the join.

    `inputs` are the inputs' names and places. Raises QueryError if no class ties all inputs
    together, or if the types of an equality cannot be compared without a cast.
    """
    usable = [e for e in equalities if _pair_type(e) is not None]
    for e in equalities:
        if _pair_type(e) is None and _may_be_key(e.left) and _may_be_key(e.right):
            raise _type_trouble(e, refuse)
    while True:
        classes = _classes(usable)
        unsound = {id(e) for e in usable if not _builds(e, classes[e.left][1])}
        if not unsound:
            break
        usable = [e for e in usable if id(e) not in unsound]
    parts: list[KeyPart] = []
    for terms, t in _distinct(classes):
        chosen = _one_per_input(terms, len(inputs))
        if chosen is not None:
            parts.append(KeyPart(chosen, t))
    if not parts:
        raise _no_key(equalities, usable, inputs, refuse)
    kept = {id(e) for e in usable}
    left_over = [
        e
        for e in equalities
        if e.left.input != e.right.input
        and not (id(e) in kept and any(_covers(p, e) for p in parts))
    ]
    return parts, left_over


def _pair_type(e: Equality[T]) -> pa.DataType | None:
    """What the pair is compared in; None if it cannot be a key."""
    if not (e.left.faithful and e.right.faithful):
        return None
    return _common([e.left.type, e.right.type])


def _common(types: Sequence[pa.DataType]) -> pa.DataType | None:
    try:
        return common_key_type(types)
    except QueryError:
        return None


def _may_be_key(term: Term) -> bool:
    return term.faithful and _common([term.type]) is not None


_Class = tuple[tuple[Term, ...], pa.DataType | None]


def _classes(edges: Sequence[Equality[T]]) -> dict[Term, _Class]:
    """Every term's class, as the terms it holds in the order written, and its common type."""
    members: dict[Term, list[Term]] = {}
    for e in edges:
        left, right = members.setdefault(e.left, [e.left]), members.setdefault(e.right, [e.right])
        if left is not right:
            left += right
            for term in right:
                members[term] = left
    classes: dict[int, _Class] = {}
    for group in members.values():
        if id(group) not in classes:
            classes[id(group)] = (tuple(group), _common([t.type for t in group]))
    return {term: classes[id(group)] for term, group in members.items()}


def _distinct(classes: dict[Term, _Class]) -> list[_Class]:
    return list({id(c): c for c in classes.values()}.values())


def _one_per_input(terms: Sequence[Term], inputs: int) -> tuple[Term, ...] | None:
    """A term of every input, a bare column where there is one; None if an input has none."""
    chosen: dict[int, Term] = {}
    for term in terms:
        held = chosen.get(term.input)
        if held is None or (held.column is None and term.column is not None):
            chosen[term.input] = term
    return tuple(chosen[i] for i in range(inputs)) if len(chosen) == inputs else None


def _builds(e: Equality[T], class_type: pa.DataType | None) -> bool:
    """Whether equal as a pair implies equal in the class."""
    pair = _pair_type(e)
    if class_type is None or pair is None:
        return False
    return bool(pair == class_type) or (_fits(e.left.type, pair) and _fits(e.right.type, pair))


def _covers(part: KeyPart, e: Equality[T]) -> bool:
    """Whether equal in the class implies equal as a pair."""
    if e.left not in part.terms or e.right not in part.terms:
        return False
    return bool(_pair_type(e) == part.type) or (
        _fits(e.left.type, part.type) and _fits(e.right.type, part.type)
    )


_FLOAT_EXACT_BITS = {32: 24, 64: 53}


def _fits(t: pa.DataType, wider: pa.DataType) -> bool:
    """Whether every value of `t` has its own equal in `wider`, a common type of `t` and others."""
    t = common_key_type([t])
    if t == wider or not pa.types.is_floating(wider):
        return True
    if pa.types.is_floating(t):
        return bool(t.bit_width <= wider.bit_width)
    if pa.types.is_boolean(t):
        return True
    return bool(pa.types.is_integer(t) and t.bit_width < _FLOAT_EXACT_BITS[wider.bit_width])


def _no_key(
    written: Sequence[Equality[T]],
    usable: Sequence[Equality[T]],
    inputs: Sequence[tuple[str, exp.Expr]],
    refuse: Refuse,
) -> QueryError:
    """Why there is no key: types, a missing condition, or keys that differ between pairs."""
    across = [e for e in written if e.left.input != e.right.input]
    for e in across:
        if not any(e is u for u in usable):
            return _type_trouble(e, refuse)
    reached = {0}
    for _ in inputs:
        for e in across:
            if {e.left.input, e.right.input} & reached:
                reached |= {e.left.input, e.right.input}
    apart = [named for i, named in enumerate(inputs) if i not in reached]
    if apart:
        first = inputs[0][0]
        names = " and ".join(name for name, _ in apart)
        return refuse.at(
            apart[0][1],
            f"no equality joins {names} to {first}: every row would meet every row",
            f"add a condition such as {apart[0][0]}.column = {first}.column",
        )
    last = across[-1]
    return refuse.at(
        last.place,
        "the inputs are joined on different keys: " + ", ".join(e.text for e in across),
        "use one key for all inputs, or run one query per key and join its results in another",
    )


def _type_trouble(e: Equality[T], refuse: Refuse) -> QueryError:
    left, right = e.left, e.right
    for term in (left, right):
        if not _may_be_key(term):
            return refuse.at(
                e.place,
                f"{term.text} is {type_name(term.type)}, which cannot be a join key",
                "join on integers, floats, text, binary, booleans, dates, timestamps or decimals, "
                "or cast it in the query",
            )
    if left.column is not None and left.column == right.column:
        said = (
            f"column {left.column!r} is {type_name(left.type)} in {left.owner} "
            f"but {type_name(right.type)} in {right.owner}"
        )
    else:
        said = f"{left.text} is {type_name(left.type)} but {right.text} is {type_name(right.type)}"
    if _pair_type(e) is not None:
        said += (
            ", and another input widens the key: the pair would no longer be compared as written"
        )
    return refuse.at(e.place, said, "cast one side in the query")
