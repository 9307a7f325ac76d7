"""A query as parts: select list, joined tables, condition; every other clause is refused.

`read_statement` gives a `Statement` of which nothing is left to be misunderstood but names and
types; those are for `names` and `reading`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from dovetail_manager.planner.dialect import parse, snippet, word_offset
from dovetail_manager.planner.grammar import check_expression, filled
from dovetail_manager.planner.refusals import Refuse
from dovetail_proto.query import INPUTS_MAX


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """One table of the FROM clause and how it joins those before it."""

    table: exp.Table
    comma: bool  # starts a FROM item of its own: a USING after it looks no further left
    on: exp.Expr | None
    using: tuple[exp.Identifier, ...]
    natural: bool

    @property
    def alias(self) -> exp.Identifier:
        """The name that columns are qualified with."""
        alias = self.table.args.get("alias")
        name: exp.Identifier = self.table.this if alias is None else alias.this
        return name


@dataclass(frozen=True, slots=True)
class Statement:
    """A SELECT that holds nothing but a select list, joined tables and a condition."""

    select: exp.Select
    tables: tuple[JoinedTable, ...]
    items: tuple[exp.Expr, ...]
    where: exp.Expr | None


def read_statement(sql: str, refuse: Refuse) -> Statement:
    """Parse `sql`; raise QueryError if it is not one SELECT of the supported form."""
    select = parse(sql, refuse)
    if not isinstance(select, exp.Select):
        raise _not_a_select(select, refuse)
    _check_clauses(select, refuse)
    source = select.args.get("from_")
    if source is None:
        raise refuse.at(select, "there is no FROM clause", "name at least two streams to join")
    tables = [_table(source.this, None, refuse)]
    tables += [_table(join.this, join, refuse) for join in select.args.get("joins") or ()]
    if len(tables) < 2:
        raise refuse.at(
            source.this,
            "only one stream is read; a query joins 2 or more",
            "join another stream, or the same one under another alias",
        )
    if len(tables) > INPUTS_MAX:
        raise refuse.at(
            tables[INPUTS_MAX].table,
            f"{len(tables)} inputs are joined, at most {INPUTS_MAX} are possible",
            "join some of them first and feed the results in as a stream",
        )
    where = select.args.get("where")
    statement = Statement(
        select, tuple(tables), tuple(select.expressions), None if where is None else where.this
    )
    for item in statement.items:
        _check_item(item, refuse)
    for condition in (*(t.on for t in tables), statement.where):
        if condition is not None:
            check_expression(condition, refuse)
    return statement


def functions_of(statement: Statement) -> Iterator[exp.Anonymous]:
    """Every function call of the statement."""
    yield from statement.select.find_all(exp.Anonymous)


def _not_a_select(tree: exp.Expr, refuse: Refuse) -> Exception:
    if isinstance(tree, exp.SetOperation):
        word = type(tree).__name__.upper()
        place = word_offset(refuse.sql, word)
        return refuse.at(place, f"{word} is not supported", "run one query per SELECT")
    return refuse.at(0, "the statement is not a SELECT", "write SELECT … FROM … JOIN …")


_CLAUSES = {
    "with_": ("WITH", "write the streams' names in FROM; a query reads streams only"),
    "distinct": ("DISTINCT", "remove repeats in the engine that reads the results"),
    "group": ("GROUP BY", "join first, then aggregate the results in the engine that reads them"),
    "having": ("HAVING", "filter single rows with WHERE"),
    "qualify": ("QUALIFY", "filter single rows with WHERE"),
    "windows": ("WINDOW", "leave it out: a row stays in the join until the run ends"),
    "order": ("ORDER BY", "results come as they are found; sort what was written"),
    "limit": ("LIMIT", "a join is computed in full; cut what was written"),
    "offset": ("OFFSET", "a join is computed in full; cut what was written"),
    "sample": ("SAMPLE", "filter the rows with WHERE"),
    "into": ("INTO", "results go to the query's output"),
    "locks": ("FOR UPDATE", "leave it out"),
    "laterals": ("LATERAL", "join streams only"),
    "pivots": ("PIVOT", "pivot the results in the engine that reads them"),
}


def _check_clauses(select: exp.Select, refuse: Refuse) -> None:
    for name in filled(select):
        if name in ("expressions", "from_", "joins", "where"):
            continue
        word, remedy = _CLAUSES.get(name, (name.upper().strip("_"), "leave it out"))
        raise refuse.at(word_offset(refuse.sql, word), f"{word} is not supported", remedy)


def _table(source: exp.Expr, join: exp.Join | None, refuse: Refuse) -> JoinedTable:
    if join is not None:
        _check_join(join, refuse)
    if not isinstance(source, exp.Table):
        if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Table):
            said, remedy = "a join in brackets is not supported", "write a JOIN b JOIN c"
        elif isinstance(source, exp.Subquery | exp.Values):
            said, remedy = "a subquery in FROM is not supported", "declare it as a stream"
        else:
            said, remedy = f"{snippet(source)} is not a stream", "join streams only"
        raise refuse.at(source, said, remedy)
    if not isinstance(source.this, exp.Identifier):
        raise refuse.at(
            source,
            f"table function {snippet(source.this)} is not supported",
            "declare the file as a stream and name the stream",
        )
    for name in filled(source):
        if name in ("db", "catalog"):
            raise refuse.at(
                source, f"{snippet(source)} has a schema; streams have none", "write its name only"
            )
        if name == "joins":
            raise refuse.at(
                source,
                "a join within a join is not supported",
                "start with SELECT, and give every JOIN its own ON or USING at once",
            )
        if name not in ("this", "alias"):
            raise refuse.at(
                source, f"{name.upper()} of a stream is not supported", "write the stream's name"
            )
    alias = source.args.get("alias")
    if alias is not None and list(filled(alias)) != ["this"]:
        raise refuse.at(
            alias, "column names in a table's alias are not supported", "use AS in SELECT"
        )
    if join is None:
        return JoinedTable(source, True, None, (), False)
    return JoinedTable(
        source,
        comma=set(filled(join)) == {"this"},
        on=join.args.get("on"),
        using=tuple(join.args.get("using") or ()),
        natural=join.args.get("method") == "NATURAL",
    )


def _check_join(join: exp.Join, refuse: Refuse) -> None:
    words = " ".join(
        str(join.args[w]) for w in ("method", "side", "kind") if join.args.get(w)
    ).upper()
    if words not in ("", "INNER", "CROSS", "NATURAL", "NATURAL INNER"):
        raise refuse.at(
            join.this,
            f"{words} JOIN is not supported",
            "only rows that match in all inputs are joined; JOIN gives those alone, which is "
            "another answer",
        )
    for name in filled(join):
        if name not in ("this", "on", "using", "kind", "method"):
            raise refuse.at(join.this, f"{name.upper()} of a JOIN is not supported", "leave it out")
    for column in join.args.get("using") or ():
        if not isinstance(column, exp.Identifier):
            raise refuse.at(column, f"USING ({snippet(column)}) is not a column name", "use ON")


def _check_item(item: exp.Expr, refuse: Refuse) -> None:
    """A result column: an expression, an alias of one, or a star."""
    star = star_of(item)
    if star is not None:
        for name in filled(star):
            if name not in ("except_", "replace"):
                raise refuse.at(
                    star, f"* {name.upper()} is not supported", "list the columns and use AS"
                )
        for column in star.args.get("except_") or ():
            if not isinstance(column, exp.Column | exp.Identifier):
                raise refuse.at(column, f"cannot exclude {snippet(column)}", "name a column")
        for column in star.args.get("replace") or ():
            if not isinstance(column, exp.Alias):
                raise refuse.at(column, "REPLACE needs an alias", "write expression AS column")
            check_expression(column.this, refuse)
        return
    if isinstance(item, exp.Alias):
        if not isinstance(item.args.get("alias"), exp.Identifier):
            raise refuse.at(item, f"cannot name {snippet(item)}", "write expression AS name")
        item = item.this
    check_expression(item, refuse)


def star_of(item: exp.Expr) -> exp.Star | None:
    """The star of a select item `*` or `t.*`."""
    if isinstance(item, exp.Star):
        return item
    if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
        return item.this if not item.args.get("db") else None
    return None
