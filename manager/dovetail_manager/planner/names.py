"""Names to columns: which input a name means, as DuckDB resolves it.

Names are compared without regard to case and keep the case of the stream. A column named in USING
(or shared in a NATURAL JOIN) is merged: without a table's name it means the leftmost input's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from dovetail_manager.planner.dialect import snippet
from dovetail_manager.planner.functions import CLOCK_WORDS
from dovetail_manager.planner.refusals import Refuse, did_you_mean, listed
from dovetail_manager.planner.statement import Statement, star_of

RESERVED_COLUMNS = frozenset({"__group", "__generation"})
"""The spill store writes these beside an input's own columns."""


@dataclass(frozen=True, slots=True)
class Input:
    """A stream in the FROM clause."""

    index: int
    alias: str
    stream: str
    schema: pa.Schema
    columns: Mapping[str, str]  # lower-case name to name


@dataclass(frozen=True, slots=True)
class Ref:
    """What a name means: a column, or a field within a column."""

    input: int
    column: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """An equality that USING or NATURAL asks for."""

    left: Ref
    right: Ref
    place: exp.Expr


class Scope:
    """The inputs of a query and the meaning of names in it."""

    def __init__(
        self, statement: Statement, streams: Mapping[str, pa.Schema], refuse: Refuse
    ) -> None:
        self._refuse = refuse
        self._aliases = {i.alias.lower() for i in statement.items if isinstance(i, exp.Alias)}
        self._primary: dict[Ref, Ref] = {}  # a merged column to the one it is shown as
        self.inputs = self._read_inputs(statement, streams)
        self.merged = tuple(self._merge(statement))

    def resolve(self, node: exp.Expr, visible: int) -> Ref:
        """The meaning of a column or of a path into one, seen by the first `visible` inputs."""
        names = path_names(node)
        first, rest = names[0], names[1:]
        table = self._input(first, visible)
        if table is not None and rest:
            column = table.columns.get(rest[0].lower())
            if column is not None:
                return self._with_fields(Ref(table.index, column), rest[1:], node)
        found = self._unqualified(first, visible)
        if len(found) > 1:
            options = [f"{self.inputs[r.input].alias}.{r.column}" for r in found]
            raise self._refuse.at(
                node, f"column {first!r} is ambiguous", f"write {' or '.join(options)}"
            )
        if found and (not rest or table is None or self._is_struct(found[0])):
            return self._with_fields(found[0], rest, node)
        raise self._unknown(node, names, visible)

    def shown(self, item: exp.Expr) -> list[tuple[Ref, exp.Expr | None]]:
        """The columns a star stands for; beside one, the expression that REPLACE gives it."""
        star = star_of(item)
        assert star is not None
        table = item.args.get("table") if isinstance(item, exp.Column) else None
        refs = self._star_columns(table)
        for excluded in star.args.get("except_") or ():
            refs = self._without(refs, excluded)
        if not refs:
            raise self._refuse.at(item, f"{snippet(item)} stands for no column", "name columns")
        replaced: dict[Ref, exp.Expr] = {}
        for alias in star.args.get("replace") or ():
            hits = [r for r in refs if r.column.lower() == alias.alias.lower()]
            if len(hits) != 1:
                raise self._refuse.at(
                    alias,
                    f"REPLACE needs one column {alias.alias!r} in {snippet(item)}, "
                    f"there are {len(hits)}",
                    "list the columns",
                )
            replaced[hits[0]] = alias.this
        return [(r, replaced.get(r)) for r in refs]

    def field(self, ref: Ref) -> pa.Field:
        """The stream's field that `ref` reads, whole."""
        return self.inputs[ref.input].schema.field(ref.column)

    def _read_inputs(
        self, statement: Statement, streams: Mapping[str, pa.Schema]
    ) -> tuple[Input, ...]:
        by_fold = {name.lower(): name for name in streams}
        inputs: list[Input] = []
        for index, joined in enumerate(statement.tables):
            written = joined.table.this.name
            stream = by_fold.get(written.lower())
            if stream is None:
                known = listed(sorted(streams)) or "none"
                raise self._refuse.at(
                    joined.table,
                    f"there is no stream {written!r}; there are: {known}",
                    did_you_mean(written, streams) or self._refuse.declare,
                )
            alias = joined.alias.name
            if any(alias.lower() == i.alias.lower() for i in inputs):
                raise self._refuse.at(
                    joined.table,
                    f"two inputs are named {alias!r}",
                    f"give this one an alias: {written} AS {alias}_{index + 1}",
                )
            schema = streams[stream]
            inputs.append(
                Input(index, alias, stream, schema, self._columns(joined.table, stream, schema))
            )
        return tuple(inputs)

    def _columns(self, place: exp.Expr, stream: str, schema: pa.Schema) -> dict[str, str]:
        columns: dict[str, str] = {}
        for name in schema.names:
            other = columns.setdefault(name.lower(), name)
            if other is not name:
                raise self._refuse.at(
                    place,
                    f"stream {stream!r} has two columns {other!r} and {name!r}, which SQL cannot "
                    "tell apart",
                    "rename one in the stream",
                )
        return columns

    def _merge(self, statement: Statement) -> Iterator[Merged]:
        start = 0
        for index, joined in enumerate(statement.tables):
            if joined.comma:
                start = index
            right = self.inputs[index]
            names: list[tuple[str, exp.Expr]] = [(n.name, n) for n in joined.using]
            if joined.natural:
                left = {c for i in self.inputs[start:index] for c in i.columns}
                names = [(n, joined.table) for c, n in right.columns.items() if c in left]
                if not names:
                    raise self._refuse.at(
                        joined.table,
                        f"NATURAL JOIN: {right.alias} shares no column with those before it",
                        "write ON or USING",
                    )
            for name, place in names:
                found = self._unqualified(name, index, start)
                column = right.columns.get(name.lower())
                if column is None or not found:
                    side = right.alias if column is None else "the inputs before it"
                    have = right.columns.values() if column is None else self._names(start, index)
                    raise self._refuse.at(
                        place,
                        f"USING ({name}): {side} has no such column; it has: {listed(list(have))}",
                        did_you_mean(name, have) or "write ON",
                    )
                if len(found) > 1:
                    options = [f"{self.inputs[r.input].alias}.{r.column}" for r in found]
                    raise self._refuse.at(
                        place,
                        f"USING ({name}): {' and '.join(options)} could be meant",
                        f"write ON {options[0]} = {right.alias}.{column}",
                    )
                ref = Ref(index, column)
                self._primary[ref] = found[0]
                yield Merged(found[0], ref, place)

    def _names(self, start: int, stop: int) -> list[str]:
        return sorted({n for i in self.inputs[start:stop] for n in i.columns.values()})

    def _input(self, name: str, visible: int) -> Input | None:
        for candidate in self.inputs[:visible]:
            if candidate.alias.lower() == name.lower():
                return candidate
        return None

    def _unqualified(self, name: str, visible: int, start: int = 0) -> list[Ref]:
        """What a name without a table may mean: one column, unless it is ambiguous."""
        found: list[Ref] = []
        for candidate in self.inputs[start:visible]:
            column = candidate.columns.get(name.lower())
            if column is not None:
                ref = Ref(candidate.index, column)
                ref = self._primary.get(ref, ref)
                if ref not in found:
                    found.append(ref)
        return found

    def _is_struct(self, ref: Ref) -> bool:
        return bool(pa.types.is_struct(self.field(ref).type))

    def _with_fields(self, ref: Ref, names: Sequence[str], node: exp.Expr) -> Ref:
        t = self.field(ref).type
        fields: list[str] = []
        for name in names:
            inner = [f.name for f in t] if pa.types.is_struct(t) else []
            match = [f for f in inner if f.lower() == name.lower()]
            if len(match) != 1:
                has = f"has the fields {listed(inner)}" if inner else f"is {t}, not a struct"
                raise self._refuse.at(
                    node,
                    f"{'.'.join([ref.column, *fields])} has no field {name!r}: it {has}",
                    did_you_mean(name, inner) or "name an existing field",
                )
            fields.append(match[0])
            t = t.field(match[0]).type
        return Ref(ref.input, ref.column, tuple(fields))

    def _star_columns(self, table: exp.Identifier | None) -> list[Ref]:
        if table is None:
            every = [Ref(i.index, c) for i in self.inputs for c in i.schema.names]
            return [r for r in every if r not in self._primary]
        owner = self._input(table.name, len(self.inputs))
        if owner is None:
            raise self._refuse.at(
                table,
                f"there is no input {table.name!r}; there are: "
                f"{listed([i.alias for i in self.inputs])}",
                did_you_mean(table.name, [i.alias for i in self.inputs]) or "name one of them",
            )
        return [Ref(owner.index, c) for c in owner.schema.names]

    def _without(self, refs: list[Ref], excluded: exp.Expr) -> list[Ref]:
        names = path_names(excluded) if isinstance(excluded, exp.Column) else [excluded.name]
        if len(names) == 1:
            hit = {r for r in refs if r.column.lower() == names[0].lower()}
        else:
            ref = self.resolve(excluded, len(self.inputs))
            if ref in self._primary or ref in self._primary.values():
                raise self._refuse.at(
                    excluded,
                    f"{snippet(excluded)} is merged by USING",
                    f"write EXCLUDE ({ref.column})",
                )
            hit = {ref} & set(refs)
        if not hit:
            have = [r.column for r in refs]
            raise self._refuse.at(
                excluded,
                f"EXCLUDE: there is no column {snippet(excluded)}; there are: {listed(have)}",
                did_you_mean(names[-1], have) or "name one of them",
            )
        return [r for r in refs if r not in hit]

    def _unknown(self, node: exp.Expr, names: Sequence[str], visible: int) -> Exception:
        first = names[0]
        table = self._input(first, visible)
        if table is not None and len(names) > 1:
            have = list(table.columns.values())
            return self._refuse.at(
                node,
                f"{table.alias} has no column {names[1]!r}; it has: {listed(have)}",
                did_you_mean(names[1], have) or "name one of them",
            )
        if table is not None:
            return self._refuse.at(
                node, f"{first} is an input, not a column", f"write {first}.* or name a column"
            )
        if len(names) > 1:
            later = self._input(first, len(self.inputs))
            aliases = [i.alias for i in self.inputs[:visible]]
            remedy = did_you_mean(first, aliases) or "name one of them"
            if later is not None:
                remedy = f"{first} is joined further right; write the condition there or in WHERE"
            elif any(first.lower() == i.stream.lower() for i in self.inputs):
                remedy = "use its alias"
            return self._refuse.at(
                node, f"there is no input {first!r} here; there are: {listed(aliases)}", remedy
            )
        if first.lower() in CLOCK_WORDS:
            return self._refuse.at(
                node,
                f"{first} depends on when it is read",
                "select a timestamp column of a stream instead",
            )
        have = self._names(0, visible)
        if first.lower() in self._aliases:
            return self._refuse.at(
                node,
                f"{first!r} is the name of a result column, which cannot be used elsewhere",
                "write its expression again",
            )
        return self._refuse.at(
            node,
            f"there is no column {first!r}; there are: {listed(have)}",
            did_you_mean(first, have) or "name one of them",
        )


def path_names(node: exp.Expr) -> list[str]:
    """The names of a column or of a path `table.column.field.field`, first to last."""
    if isinstance(node, exp.Dot):
        return [*path_names(node.this), node.expression.name]
    if isinstance(node, exp.Column):
        parts = [node.args.get(p) for p in ("catalog", "db", "table", "this")]
        return [p.name for p in parts if p is not None]
    return [node.name]
