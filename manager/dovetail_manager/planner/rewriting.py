"""Expressions over other names: a stream's own below the join, joined names above it."""

from __future__ import annotations

from sqlglot import exp

from dovetail_manager.planner.names import Scope
from dovetail_proto.query import joined_name


def paths_in(node: exp.Expr) -> list[exp.Expr]:
    """The columns, and paths into columns, that an expression reads, in the order of walking."""
    found: list[exp.Expr] = []
    for column in node.find_all(exp.Column):
        top: exp.Expr = column
        while isinstance(top.parent, exp.Dot) and top.parent.this is top and top is not node:
            top = top.parent
        found.append(top)
    return found


def renamed(node: exp.Expr, scope: Scope, visible: int, *, joined: bool) -> exp.Expr:
    """A copy of an expression over the columns of one stream, or over the joined columns."""
    root = exp.Paren(this=node.copy())
    for path in paths_in(root.this):
        ref = scope.resolve(path, visible)
        name = joined_name(ref.input, ref.column) if joined else ref.column
        new: exp.Expr = exp.column(exp.to_identifier(name, quoted=True))
        for field in ref.fields:
            new = exp.Bracket(this=new, expressions=[exp.Literal.string(field)])
        path.replace(new)
    new_root: exp.Expr = root.this
    return new_root
