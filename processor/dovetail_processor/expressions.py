"""Filters and computed columns of a plan, evaluated on Arrow batches by DuckDB.

    batch ──▶ rows where filter is true ──▶ bare columns: the same buffers, never copied by DuckDB
                                        └─▶ computed columns: DuckDB, given only what they read

DuckDB sees a batch through one view whose columns are those that some expression reads, plus the
row numbers where a filter drops rows: bare columns are then taken by those numbers, so a column of
a type that DuckDB does not have, or would change, passes untouched. One statement per batch, about
0.6 ms; none at all where nothing is filtered or computed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_proto.errors import InputError
from dovetail_proto.query import InputPlan, QueryPlan, joined_name
from dovetail_proto.sql_session import INSTANCE_ENDED, open_session, quote, reason

_BATCH_ROWS_MAX = 1 << 31
"""A result comes in one piece: more rows than an Arrow array of text has offsets for."""

Output = tuple[pa.Field, str | None, str | None]
"""A result field, and the bare column or the expression that it is made from."""


class Evaluator:
    """Filters rows, then makes columns. Keeps the order of rows. Not thread-safe.

    `outputs` are (field, bare column's name, None) or (field, None, expression). A row is kept
    where `filter_sql` is true; expressions see kept rows only, so what a filter keeps out cannot
    fail. Raises InputError if an expression fails on a value; `where` and `readable` are for its
    message: the place in the query, and an expression as people write it.
    """

    def __init__(
        self,
        input_schema: pa.Schema,
        filter_sql: str | None,
        outputs: Sequence[Output],
        *,
        where: str = "query",
        readable: Callable[[str], str] = str,
    ) -> None:
        self._input_names = input_schema.names
        self._schema = pa.schema([field for field, _, _ in outputs])
        self._bare = [(i, name) for i, (_, name, _) in enumerate(outputs) if name is not None]
        self._computed = [(i, sql) for i, (_, _, sql) in enumerate(outputs) if sql is not None]
        self._filter = filter_sql
        self._where = where
        self._readable = readable
        self._duck: _Duck | None = None
        if filter_sql is not None or self._computed:
            self._duck = _Duck(input_schema, filter_sql, [sql for _, sql in self._computed])

    @property
    def reads(self) -> list[str]:
        """The columns that a batch must have, in the order of the input schema."""
        computing = set() if self._duck is None else set(self._duck.reads)
        wanted = {name for _, name in self._bare} | computing
        return [name for name in self._input_names if name in wanted]

    def run(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that pass, as the output columns."""
        return self.run_rows(batch)[0]

    def run_rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int32] | None]:
        """The same, and the positions of the rows that pass, ascending; None: all of them."""
        columns: dict[int, pa.Array] = {}
        rows: pa.Array | None = None  # None: all of them
        if self._duck is not None:
            rows, values = self._evaluate(self._duck, batch)
            for (i, sql), value in zip(self._computed, values, strict=True):
                columns[i] = self._typed(value, i, sql)
            if rows is not None and len(rows) == batch.num_rows:
                rows = None
        for i, name in self._bare:
            column = batch.column(name)
            columns[i] = column if rows is None else _take(column, rows)
        made = pa.RecordBatch.from_arrays(
            [columns[i] for i in range(len(self._schema))], schema=self._schema
        )
        return made, None if rows is None else rows.to_numpy()

    def _evaluate(
        self, duck: _Duck, batch: pa.RecordBatch
    ) -> tuple[pa.Array | None, list[pa.Array]]:
        try:
            return duck.run(batch)
        except (duckdb.Error, pa.ArrowInvalid) as e:
            raise InputError(
                f"{self._where}, {self._culprit(duck, batch)} failed: {reason(e)[0]}",
                remedy="filter such rows out with WHERE, or use TRY_CAST or TRY(…)",
            ) from e

    def _culprit(self, duck: _Duck, batch: pa.RecordBatch) -> str:
        """The part that fails on `batch`, found by trying one after the other."""
        session = duck.open_session(alone=True)
        if self._filter is not None and duck.fails(session, batch, []):
            return f"filter {self._readable(self._filter)}"
        for i, sql in self._computed:
            if duck.fails(session, batch, [sql]):
                return f"column {self._schema.field(i).name!r} = {self._readable(sql)}"
        return "an expression"

    def _typed(self, value: pa.Array, i: int, sql: str) -> pa.Array:
        """The value in its planned type, which DuckDB gives already but for details."""
        t = self._schema.field(i).type
        try:
            if value.type != t:
                value = value.cast(t)
            if pa.types.is_decimal(t):  # a HUGEINT may have a digit more than Arrow's decimals
                value.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise InputError(
                f"{self._where}, {self._readable(sql)} gave a value that {t} cannot hold: {e}",
                remedy="cast it to another type in the query",
            ) from e
        return value


def below_join(plan_input: InputPlan) -> Evaluator:
    """From a batch of the stream to the columns that the join keeps."""
    computed = {c.name: c.sql for c in plan_input.computed}
    return Evaluator(
        plan_input.stream_schema,
        plan_input.filter_sql,
        [
            (f, None if f.name in computed else f.name, computed.get(f.name))
            for f in plan_input.kept
        ],
        where=f"input {plan_input.alias!r} (stream {plan_input.stream!r})",
    )


def above_join(plan: QueryPlan) -> Evaluator:
    """From a batch of combinations (`plan.joined_schema()`) to results."""
    return Evaluator(
        plan.joined_schema(),
        plan.residual_sql,
        [
            (
                pa.field(c.name, c.type),
                None if c.source is None else joined_name(*c.source),
                c.sql,
            )
            for c in plan.outputs
        ],
        where=f"query {plan.name!r}",
        readable=plan.readable,
    )


_VIEW = "__batch"
_NAMES = re.compile(r"'(?:[^']|'')*'|\"((?:[^\"]|\"\")+)\"")
"""Quoted names in SQL, skipping text. Plans quote every name and hold no other kind of text."""


class _Feed:
    """What DuckDB reads the batch of the moment from."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.batch = pa.RecordBatch.from_arrays(
            [pa.array([], f.type) for f in schema], schema=schema
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self.schema, [self.batch])
        return reader.__arrow_c_stream__(requested_schema)


class _Duck:
    """One statement over one view, planned once and run for every batch."""

    def __init__(self, schema: pa.Schema, filter_sql: str | None, computed: list[str]) -> None:
        self._filter, self._computed = filter_sql, computed
        texts = [*computed, *([] if filter_sql is None else [filter_sql])]
        named = {m[1].replace('""', '"') for t in texts for m in _NAMES.finditer(t) if m[1]}
        self.reads = [f.name for f in schema if f.name in named]
        self._rows = _free_name(schema)
        fields = [schema.field(n) for n in self.reads]
        self._feed = _Feed(pa.schema([*fields, pa.field(self._rows, pa.int32())]))
        self._relation: Any = None  # None: not planned, or its instance has ended
        with contextlib.suppress(*INSTANCE_ENDED):  # the first batch shows by whose fault
            self._plan()

    def _plan(self) -> None:
        session = self.open_session()
        self._relation = session.sql(self._statement(self._computed))

    def open_session(self, *, alone: bool = False) -> duckdb.DuckDBPyConnection:
        """A session that sees the view."""
        return open_session(alone=alone).register(_VIEW, self._feed)

    def run(self, batch: pa.RecordBatch) -> tuple[pa.Array | None, list[pa.Array]]:
        """The rows that pass, None for all, and the computed columns of those."""
        try:
            if self._relation is None:
                self._plan()
            table = self._execute(self._relation, batch)
        except INSTANCE_ENDED:  # by this statement, or by one of another query: alone, it shows
            self._relation = None
            with self.open_session(alone=True) as session:
                table = self._execute(session.sql(self._statement(self._computed)), batch)
        arrays = [table.column(i).combine_chunks() for i in range(table.num_columns)]
        if self._filter is None:
            assert table.num_rows == batch.num_rows
            return None, arrays
        return arrays[0], arrays[1:]

    def fails(
        self, session: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, computed: Sequence[str]
    ) -> bool:
        """Whether the filter, and then `computed`, cannot be evaluated on `batch`."""
        try:
            self._execute(session.sql(self._statement(computed)), batch)
        except (duckdb.Error, pa.ArrowInvalid):
            return True
        return False

    def _execute(self, relation: Any, batch: pa.RecordBatch) -> pa.Table:
        empty = self._feed.batch
        rows = pa.array(np.arange(batch.num_rows, dtype=np.int32))
        self._feed.batch = pa.RecordBatch.from_arrays(
            [*(batch.column(n) for n in self.reads), rows], schema=self._feed.schema
        )
        try:
            return relation.to_arrow_table(_BATCH_ROWS_MAX)
        finally:
            self._feed.batch = empty  # holds no batch longer than needed

    def _statement(self, computed: Sequence[str]) -> str:
        items = [f'({sql}) AS "c{i}"' for i, sql in enumerate(computed)]
        if self._filter is None:
            return f"SELECT {', '.join(items) or quote(self._rows)} FROM {_VIEW}"
        rows = quote(self._rows)
        return f"SELECT {', '.join([rows, *items])} FROM {_VIEW} WHERE ({self._filter})"


def _take(column: pa.Array, rows: pa.Array) -> pa.Array:
    t = column.type
    if pa.types.is_string_view(t) or pa.types.is_binary_view(t):  # Arrow cannot take from views
        large = pa.large_string() if pa.types.is_string_view(t) else pa.large_binary()
        return column.cast(large).take(rows).cast(t)
    return column.take(rows)


def _free_name(schema: pa.Schema) -> str:
    """A name for the row numbers that no column has, in any case."""
    taken = {n.lower() for n in schema.names}
    name = "__row"
    while name in taken:
        name += "_"
    return name
