"""Conditions to where they are evaluated: below the join, as its key, or above it.

ON and WHERE mean the same in an inner join, so all of them are taken apart at their ANDs. What
reads one input filters that input; an equality between two inputs may become the key (`keys`
decides); the rest is evaluated on combinations. A condition on nothing is decided here and now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from dovetail_manager.planner.dialect import snippet, to_sql
from dovetail_manager.planner.keys import Equality, Term
from dovetail_manager.planner.names import Ref, Scope
from dovetail_manager.planner.reading import Reading
from dovetail_manager.planner.refusals import Refuse
from dovetail_manager.planner.rewriting import paths_in, renamed
from dovetail_manager.planner.statement import Statement
from dovetail_proto.sql_session import quote


@dataclass(frozen=True, slots=True)
class Context:
    """What every question about one query is asked of."""

    scope: Scope
    reading: Reading
    refuse: Refuse


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without AND at its top, and how many inputs it sees."""

    node: exp.Expr
    visible: int


@dataclass(slots=True)
class Conditions:
    """All conditions of a query, by where they go."""

    below: dict[int, list[Condition]] = field(default_factory=dict)  # by input
    equalities: list[Equality[Condition]] = field(default_factory=list)
    above: list[Condition] = field(default_factory=list)
    never: bool = False  # a condition without columns is not true: nothing matches


_FAITHFUL = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"),
    *("UINTEGER", "UBIGINT", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "BLOB", "DATE", "TIMESTAMP"),
)
"""DuckDB types that compare as their Arrow form does; a UUID, for one, becomes text."""


def sort_conditions(statement: Statement, query: Context) -> Conditions:
    """Take the conditions apart and find out what each one reads."""
    sorted_ = Conditions()
    for condition in _conjuncts(statement, query.scope):
        inputs = {r.input for r in refs_in(condition.node, query.scope, condition.visible)}
        if not inputs:
            sorted_.never |= not query.reading.truth(to_sql(condition.node), condition.node)
            continue
        equality = _equality(condition, query)
        if equality is not None:
            sorted_.equalities.append(equality)
        if len(inputs) == 1:
            sorted_.below.setdefault(inputs.pop(), []).append(condition)
        elif equality is None:
            sorted_.above.append(condition)
    return sorted_


def refs_in(node: exp.Expr, scope: Scope, visible: int) -> list[Ref]:
    """What the names in an expression mean."""
    return [scope.resolve(path, visible) for path in paths_in(node)]


def bare_column(node: exp.Expr, scope: Scope, visible: int) -> Ref | None:
    """The column that an expression is, brackets aside; None if it is more than that."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Column | exp.Dot) or not any(p is node for p in paths_in(node)):
        return None
    ref = scope.resolve(node, visible)
    return None if ref.fields else ref


def check_usable(ref: Ref, node: exp.Expr, query: Context) -> None:
    """Raise QueryError if DuckDB cannot compute with a column."""
    t = query.scope.field(ref).type
    if not query.reading.understands(t):
        raise query.refuse.at(
            node,
            f"column {ref.column!r} is {t}, which expressions cannot read",
            "select it as it is, or give the stream another type",
        )


def _conjuncts(statement: Statement, scope: Scope) -> Iterator[Condition]:
    for index, joined in enumerate(statement.tables):
        if joined.on is not None:
            yield from (Condition(c, index + 1) for c in _split(joined.on))
    for merged in scope.merged:
        node = exp.EQ(this=_column(scope, merged.left), expression=_column(scope, merged.right))
        place = merged.place.this if isinstance(merged.place, exp.Table) else merged.place
        for name in node.find_all(exp.Identifier):
            name.meta.update(place.meta)
        yield Condition(node, merged.right.input + 1)
    if statement.where is not None:
        yield from (Condition(c, len(scope.inputs)) for c in _split(statement.where))


def _split(node: exp.Expr) -> Iterator[exp.Expr]:
    """The operands of AND, brackets removed, in the order written."""
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, exp.Paren):
            stack.append(top.this)
        elif isinstance(top, exp.And):
            stack += [top.expression, top.this]
        else:
            yield top


def _column(scope: Scope, ref: Ref) -> exp.Column:
    alias = exp.to_identifier(scope.inputs[ref.input].alias, quoted=True)
    return exp.column(exp.to_identifier(ref.column, quoted=True), table=alias)


def _equality(condition: Condition, query: Context) -> Equality[Condition] | None:
    """The condition as an edge between two terms, if it is one."""
    node = condition.node
    if not isinstance(node, exp.EQ):
        return None
    sides = [Condition(side, condition.visible) for side in (node.this, node.expression)]
    for side in sides:
        if len({r.input for r in refs_in(side.node, query.scope, side.visible)}) != 1:
            return None
    left, right = (_term(side, query) for side in sides)
    return Equality(left, right, node, condition)


def _term(side: Condition, query: Context) -> Term:
    refs = refs_in(side.node, query.scope, side.visible)
    owner = query.scope.inputs[refs[0].input]
    bare = bare_column(side.node, query.scope, side.visible)
    if bare is not None:
        return Term(
            owner.index,
            sql=quote(bare.column),
            column=bare.column,
            type=query.scope.field(bare).type,
            faithful=True,
            text=f"{owner.alias}.{bare.column}",
            owner=owner.stream,
        )
    for ref in refs:
        check_usable(ref, side.node, query)
    sql = to_sql(renamed(side.node, query.scope, side.visible, joined=False))
    columns = {r.column: query.scope.field(r) for r in refs}
    [(duckdb_type, t)] = query.reading.types([(sql, side.node)], pa.schema(columns.values()))
    return Term(
        owner.index,
        sql=sql,
        column=None,
        type=t,
        faithful=duckdb_type.startswith(_FAITHFUL) and not duckdb_type.endswith("]"),
        text=snippet(side.node),
        owner=owner.stream,
    )
