"""What an expression may contain: a list of what is allowed, by node and by argument.

sqlglot reads more than this project means, and whatever is not understood must be refused, never
ignored. So nothing passes because it was forgotten here. (`reading` checks from the other side:
that DuckDB reads the same from the text.)
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dovetail_manager.planner.dialect import sign_offset, snippet
from dovetail_manager.planner.refusals import Refuse

ARRAY_SIZE_MAX = 1024
"""Of 8 bytes each, the 2048 rows that DuckDB computes at a time then take 16 MB."""


def check_expression(node: exp.Expr, refuse: Refuse) -> None:
    """Raise QueryError unless every node of an expression is of an allowed kind and form."""
    for part in node.walk():
        if isinstance(part, exp.Star) and isinstance(part.parent, exp.Anonymous):
            continue  # count(*): what is wrong with it, `functions` says better
        allowed = _EXPRESSIONS.get(type(part))
        if allowed is None:
            said, remedy = _REFUSED_NODES.get(type(part), (_default_complaint(part), ""))
            place = sign_offset(refuse.sql, _SIGNS[type(part)]) if type(part) in _SIGNS else part
            raise refuse.at(place, said, remedy or "docs/sql.md lists what a query may contain")
        for name in filled(part):
            if name == "query":
                raise refuse.at(part, *_QUERY_IN_EXPRESSION)
            if name not in allowed:
                raise refuse.at(
                    part,
                    f"{name.upper().strip('_')} is not supported in {snippet(part)}",
                    "docs/sql.md lists what a query may contain",
                )
        if isinstance(part, exp.DataType):
            _check_array(part, refuse)
        if isinstance(part, exp.Dot) and not isinstance(part.expression, exp.Identifier):
            raise refuse.at(
                part, f"{snippet(part)} calls a function with a dot", "write function(value)"
            )


def _check_array(node: exp.DataType, refuse: Refuse) -> None:
    """A fixed size is allocated for every row, whatever the row holds."""
    size = 1
    for inner in node.find_all(exp.DataType):
        for value in inner.args.get("values") or ():
            size *= int(value.name) if value.name.isdecimal() else ARRAY_SIZE_MAX + 1
    if size > ARRAY_SIZE_MAX:
        raise refuse.at(
            node, f"arrays of more than {ARRAY_SIZE_MAX} values are not supported", "use a list"
        )


def filled(node: exp.Expr) -> Iterator[str]:
    """The arguments of a node that say something."""
    for name, value in node.args.items():
        if value is not None and value is not False and value != []:
            yield name


def _default_complaint(node: exp.Expr) -> str:
    return f"{snippet(node)} ({type(node).__name__}) is not supported"


_BINARY = frozenset({"this", "expression"})
_UNARY = frozenset({"this"})
_EXPRESSIONS: dict[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys(
        [
            *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Pow),
            *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseLeftShift, exp.BitwiseRightShift),
            *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
            *(exp.And, exp.Or, exp.Is, exp.Glob, exp.SimilarTo, exp.RegexpLike, exp.Escape),
            *(exp.Dot, exp.Extract, exp.PropertyEQ, exp.StartsWith),
        ],
        _BINARY,
    ),
    **dict.fromkeys(
        [exp.Neg, exp.Not, exp.BitwiseNot, exp.Paren, exp.Boolean, exp.Var, exp.DataTypeParam],
        _UNARY,
    ),
    exp.Null: frozenset(),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Column: frozenset({"this", "table", "db", "catalog"}),
    exp.Anonymous: frozenset({"this", "expressions"}),
    exp.DPipe: _BINARY | {"safe"},
    exp.Like: _BINARY | {"negate"},
    exp.ILike: _BINARY | {"negate"},
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions", "field"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to", "safe"}),
    exp.DataType: frozenset({"this", "expressions", "nested", "values", "kind"}),
    exp.ColumnDef: frozenset({"this", "kind"}),
    exp.Interval: frozenset({"this", "unit", "fraction_in_string"}),
    exp.AtTimeZone: frozenset({"this", "zone"}),
    exp.Bracket: frozenset({"this", "expressions", "offset"}),
    exp.Slice: _BINARY | {"step"},
    exp.Array: frozenset({"expressions", "bracket_notation"}),
    exp.Struct: frozenset({"expressions"}),
    exp.ToMap: _UNARY,
    exp.Map: frozenset({"keys", "values"}),
}

_QUERY_IN_EXPRESSION = (
    "a subquery in an expression is not supported",
    "declare it as a stream and join it",
)
_REFUSED_NODES: dict[type[exp.Expr], tuple[str, str]] = {
    exp.Select: _QUERY_IN_EXPRESSION,
    exp.Subquery: _QUERY_IN_EXPRESSION,
    exp.Exists: _QUERY_IN_EXPRESSION,
    exp.Any: ("ANY and ALL are not supported", "write IN (…), or list_contains(list, value)"),
    exp.All: ("ANY and ALL are not supported", "write IN (…), or list_contains(list, value)"),
    exp.Window: (
        "window functions are not supported",
        "join first, then number or rank the results in the engine that reads them",
    ),
    exp.Filter: ("aggregates are not supported", "aggregate what was written"),
    exp.Order: ("aggregates are not supported", "aggregate what was written"),
    exp.Distinct: ("aggregates are not supported", "aggregate what was written"),
    exp.Star: ("* stands where a value is needed", "name a column"),
    exp.Alias: ("an alias stands within an expression", "give aliases to result columns only"),
    exp.Tuple: (
        "a row of several values is not supported",
        "compare column by column: a.x = b.x AND a.y = b.y",
    ),
    exp.Placeholder: (
        "parameters are not supported",
        "write the value; for the operator @ write abs(value)",
    ),
    exp.PositionalColumn: ("columns by number are not supported", "write the column's name"),
    exp.Lambda: ("lambda functions are not supported", "transform lists after the join"),
    exp.Comprehension: ("list comprehensions are not supported", "transform lists after the join"),
    exp.JSONExtract: ("the operator -> is not supported", "write json_extract(value, path)"),
    exp.JSONExtractScalar: (
        "the operator ->> is not supported",
        "write json_extract_string(value, path)",
    ),
    exp.Collate: ("COLLATE is not supported", "compare lower(value) instead"),
    exp.ByteString: ("E'…' is not supported", "write '…', with chr(10) for a line's end"),
    exp.RawString: ("$$…$$ is not supported", "write '…', with '' for a quote"),
    exp.RegexpILike: ("the operator ~* is not supported", "write regexp_matches(value, p, 'i')"),
}
_SIGNS: dict[type[exp.Expr], str] = {exp.Placeholder: "?$@:", exp.PositionalColumn: "#"}
"""What such a node starts with; sqlglot keeps no position of it."""
