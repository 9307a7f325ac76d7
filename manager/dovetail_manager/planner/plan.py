"""SQL to a plan: the planner's way through its own modules, and the select list.

    dialect ─▶ statement, grammar ─▶ names ─▶ functions ─▶ reading ─▶ conditions ─▶ keys ─▶ here
    text       tree of allowed        columns   allowed      DuckDB     below, key,   which
               nodes only                       calls        agrees     above         equalities

Nothing is planned that DuckDB would read, name or type differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from dovetail_manager.planner.conditions import (
    Condition,
    Conditions,
    Context,
    bare_column,
    check_usable,
    refs_in,
    sort_conditions,
)
from dovetail_manager.planner.dialect import snippet, to_sql
from dovetail_manager.planner.functions import check_function
from dovetail_manager.planner.keys import KeyPart, choose_key
from dovetail_manager.planner.names import RESERVED_COLUMNS, Ref, Scope
from dovetail_manager.planner.reading import Reading
from dovetail_manager.planner.refusals import Refuse
from dovetail_manager.planner.rewriting import renamed
from dovetail_manager.planner.statement import functions_of, read_statement, star_of
from dovetail_proto.errors import ConfigError, QueryError
from dovetail_proto.ids import check_name
from dovetail_proto.query import (
    PARTITIONS_MAX,
    Computed,
    InputPlan,
    OutputColumn,
    QueryPlan,
    joined_name,
)


def plan_query(
    sql: str,
    streams: Mapping[str, pa.Schema],
    *,
    name: str,
    partitions: int,
    declare: str = "declare it with --input name=path",
) -> QueryPlan:
    """Plan one SELECT over declared streams.

    Promises: the planned results are those of DuckDB running `sql`, as a bag, with the names and
    types DuckDB gives them; a bare column keeps its exact Arrow type. Raises QueryError, with the
    place in `sql`, for whatever is not supported; ConfigError for a bad name or partition count.
    `declare` is the remedy for a stream that is not known.
    """
    check_name("query", name)
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise ConfigError(
            f"{partitions} partitions are not possible", remedy=f"use 1 to {PARTITIONS_MAX}"
        )
    refuse = Refuse(name, sql, declare)
    try:
        return _plan(refuse, streams, partitions)
    except RecursionError as e:
        raise refuse.at(
            None,
            "an expression has too many operators in a row",
            "split it into several result columns, or use brackets and functions such as concat()",
        ) from e


def _plan(refuse: Refuse, streams: Mapping[str, pa.Schema], partitions: int) -> QueryPlan:
    statement = read_statement(refuse.sql, refuse)
    scope = Scope(statement, streams, refuse)
    reading = Reading({i.stream: i.schema for i in scope.inputs}, refuse)
    for call in functions_of(statement):
        check_function(call, reading.session, refuse)
    reading.check_agreement(refuse.sql, statement.select)
    query = Context(scope, reading, refuse)
    conditions = sort_conditions(statement, query)
    named = [(i.alias, t.table) for i, t in zip(scope.inputs, statement.tables, strict=True)]
    parts, left_over = choose_key(conditions.equalities, named, refuse)
    planner = _Planner(query)
    items = [i for item in statement.items for i in planner.items(item)]
    described = reading.describe(refuse.sql)
    above = [*conditions.above, *(e.condition for e in left_over)]
    residual_sql, residual_columns = planner.residual(above)
    outputs, output_columns = planner.outputs(items, described)
    used = {*residual_columns, *output_columns, *(o.source for o in outputs if o.source)}
    inputs = [planner.input(i, parts, conditions, used) for i in range(len(scope.inputs))]
    if not used:
        # a combination of no columns would have no row count
        output_columns = ((0, inputs[0].key[0]),)
    return QueryPlan(
        name=refuse.name,
        sql=refuse.sql,
        inputs=tuple(inputs),
        key_types=tuple(p.type for p in parts),
        partitions=partitions,
        residual_sql=residual_sql,
        residual_columns=residual_columns,
        outputs=outputs,
        output_columns=output_columns,
    )


_Columns = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """A result column before it is named and typed."""

    node: exp.Expr | None  # None: a column that a star stands for
    ref: Ref | None  # set if it is a bare column


@dataclass(frozen=True, slots=True)
class _Planner:
    query: Context

    def input(
        self,
        index: int,
        parts: Sequence[KeyPart],
        conditions: Conditions,
        used: set[tuple[int, str]],
    ) -> InputPlan:
        source = self.query.scope.inputs[index]
        terms = [p.terms[index] for p in parts]
        names = [t.column or _free_name(f"key_{n}", source.columns) for n, t in enumerate(terms, 1)]
        kept = {c for i, c in used if i == index} | {n for n in names if n in source.schema.names}
        fields = [f for f in source.schema if f.name in kept]
        computed = []
        for name, term in zip(names, terms, strict=True):
            if term.column is None:
                computed.append(Computed(name, term.sql))
                fields.append(pa.field(name, term.type))
        for f in fields:
            if f.name.lower() in RESERVED_COLUMNS:
                raise self.query.refuse.at(
                    None,
                    f"column {f.name!r} of {source.stream} has a reserved name",
                    "rename it in the stream",
                )
        return InputPlan(
            alias=source.alias,
            stream=source.stream,
            stream_schema=source.schema,
            filter_sql=self._filter(conditions.below.get(index, ()), conditions.never),
            computed=tuple(computed),
            kept=pa.schema(fields),
            key=tuple(names),
        )

    def residual(self, conditions: Sequence[Condition]) -> tuple[str | None, _Columns]:
        """The conditions on combinations as one, and the columns it reads."""
        columns: set[tuple[int, str]] = set()
        for condition in conditions:
            columns |= self._read(condition.node, condition.visible)
        return self._all_true(conditions, joined=True), tuple(sorted(columns))

    def outputs(
        self, items: Sequence[_Item], described: Sequence[tuple[str, str]]
    ) -> tuple[tuple[OutputColumn, ...], _Columns]:
        """The result columns, and the columns that their expressions read."""
        if len(items) != len(described):
            raise self.query.refuse.at(
                None,
                f"the select list has {len(items)} columns, DuckDB reads {len(described)}",
                "list the columns instead of *",
            )
        self._check_names(items, [name for name, _ in described])
        visible = len(self.query.scope.inputs)
        computed = [i.node for i in items if i.ref is None and i.node is not None]
        columns: set[tuple[int, str]] = set()
        for node in computed:
            columns |= self._read(node, visible)
        sqls = [to_sql(renamed(n, self.query.scope, visible, joined=True)) for n in computed]
        schema = pa.schema(
            [
                pa.field(joined_name(i, c), self.query.scope.inputs[i].schema.field(c).type)
                for i, c in sorted(columns)
            ]
            or [pa.field("0.", pa.int8())]  # DuckDB knows no table without columns
        )
        types = self.query.reading.types(list(zip(sqls, computed, strict=True)), schema)
        typed = iter(zip(sqls, computed, types, strict=True))
        outputs = []
        for item, (name, duckdb_type) in zip(items, described, strict=True):
            if item.ref is not None:
                outputs.append(self._bare(item.ref, name, duckdb_type))
                continue
            sql, node, (own_type, t) = next(typed)
            if own_type != duckdb_type:
                raise self._differs(name, own_type, duckdb_type)
            self._check_result_type(node, own_type, t)
            outputs.append(OutputColumn(name, t, None, sql))
        return tuple(outputs), tuple(sorted(columns))

    def items(self, item: exp.Expr) -> Iterator[_Item]:
        """The result columns that an item of the select list stands for, names resolved."""
        if star_of(item) is not None:
            for ref, replacement in self.query.scope.shown(item):
                yield _Item(None, ref) if replacement is None else self._item(replacement)
        else:
            yield self._item(item.this if isinstance(item, exp.Alias) else item)

    def _item(self, node: exp.Expr) -> _Item:
        visible = len(self.query.scope.inputs)
        refs_in(node, self.query.scope, visible)
        return _Item(node, bare_column(node, self.query.scope, visible))

    def _bare(self, ref: Ref, name: str, duckdb_type: str) -> OutputColumn:
        t = self.query.scope.field(ref).type
        if self.query.reading.understands(t):
            own = self.query.reading.column_types(self.query.scope.inputs[ref.input].stream)[
                ref.column
            ]
            if own != duckdb_type:
                raise self._differs(name, own, duckdb_type)
        return OutputColumn(name, t, (ref.input, ref.column), None)

    def _differs(self, name: str, own: str, duckdb_type: str) -> QueryError:
        return self.query.refuse.at(
            None,
            f"result column {name!r} would be {own}, DuckDB makes it {duckdb_type}",
            "name the table of every column in it",
        )

    def _check_names(self, items: Sequence[_Item], names: Sequence[str]) -> None:
        seen: dict[str, _Item] = {}
        for item, name in zip(items, names, strict=True):
            first = seen.setdefault(name.lower(), item)
            if first is item:
                continue
            if item.ref is None:
                proposal = f"{snippet(item.node)} AS {_alias(name)}_2" if item.node else ""
            else:
                alias = self.query.scope.inputs[item.ref.input].alias
                column = f"{alias}.{item.ref.column}"
                proposal = f"{column} AS {_alias(f'{alias}_{item.ref.column}')}"
                if item.node is None:
                    proposal = f"join with USING, exclude it from *, or list it as {proposal}"
            raise self.query.refuse.at(
                item.node,
                f"two result columns are named {name!r}",
                proposal if proposal.startswith("join") else f"write {proposal}",
            )

    def _check_result_type(self, node: exp.Expr, duckdb_type: str, t: pa.DataType) -> None:
        if duckdb_type.startswith(_NO_RESULT) or _holds_strange(t):
            raise self.query.refuse.at(
                node,
                f"{snippet(node)} is of type {duckdb_type}, which results cannot hold",
                "cast it, for example to VARCHAR, or an interval with epoch(…)",
            )

    def _filter(self, conditions: Sequence[Condition], never: bool) -> str | None:
        if never:
            return "FALSE"
        for condition in conditions:
            self._read(condition.node, condition.visible)
        return self._all_true(conditions, joined=False)

    def _all_true(self, conditions: Sequence[Condition], *, joined: bool) -> str | None:
        sqls = [
            to_sql(renamed(c.node, self.query.scope, c.visible, joined=joined)) for c in conditions
        ]
        if len(sqls) < 2:
            return sqls[0] if sqls else None
        return " AND ".join(f"({s})" for s in sqls)

    def _read(self, node: exp.Expr, visible: int) -> set[tuple[int, str]]:
        """The columns an expression reads, all of which DuckDB can compute with."""
        refs = refs_in(node, self.query.scope, visible)
        for ref in refs:
            check_usable(ref, node, self.query)
        return {(r.input, r.column) for r in refs}


_NO_RESULT = ("INTERVAL", "BIT", "TIME WITH TIME ZONE", "VARIANT", "UHUGEINT", "GEOMETRY", "TYPE")
"""Types that Arrow or Parquet holds not at all, or only as another type."""


def _holds_strange(t: pa.DataType) -> bool:
    """Whether a type, or one within it, is none that a Parquet file can hold."""
    if (
        pa.types.is_interval(t)
        or pa.types.is_union(t)
        or pa.types.is_dictionary(t)
        or isinstance(t, pa.BaseExtensionType)
    ):
        return True
    return any(_holds_strange(t.field(i).type) for i in range(t.num_fields))


def _free_name(wanted: str, taken: Mapping[str, str]) -> str:
    while wanted.lower() in taken:
        wanted += "_"
    return wanted


def _alias(text: str) -> str:
    """A name for a proposal: letters, digits and underscores."""
    return re.sub(r"\W+", "_", text).strip("_") or "value"
