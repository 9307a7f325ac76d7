"""DuckDB's reading of a query: it must agree with ours, and it alone says what types are.

Two parsers read every query. sqlglot's tree is what is planned; DuckDB's is what the SQL means. The
tree is written back to text and both texts are given to DuckDB's parser: if its trees differ in
more than spelling, the query is refused, because something would have been run that was not asked
for. Types come from DuckDB binding an expression to an empty Arrow table, never from a table here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from dovetail_manager.planner.dialect import snippet, to_sql
from dovetail_manager.planner.refusals import Refuse
from dovetail_proto.sql_session import open_session, quote, reason

_DESCRIBE = "DESCRIBE "


class Reading:
    """DuckDB, with the streams of one query as empty tables."""

    def __init__(self, streams: Mapping[str, pa.Schema], refuse: Refuse) -> None:
        self.session = open_session()
        self._refuse = refuse
        self._understood: dict[str, bool] = {}
        self._column_types: dict[str, dict[str, str]] = {}
        for name, schema in streams.items():
            if self._holds(schema):
                self._understood |= {str(t): True for t in schema.types}
                stand_ins = schema
            else:  # a column that DuckDB cannot hold may still be selected: it is bound as a null
                stand_ins = pa.schema(
                    f if self.understands(f.type) else pa.field(f.name, pa.null()) for f in schema
                )
            self.session.register(name, stand_ins.empty_table())

    def understands(self, t: pa.DataType) -> bool:
        """Whether DuckDB can compute with columns of Arrow type `t`."""
        if str(t) not in self._understood:
            self._understood[str(t)] = self._holds(pa.schema([pa.field("c", t)]))
        return self._understood[str(t)]

    def _holds(self, schema: pa.Schema) -> bool:
        try:
            self.session.register("__probe", schema.empty_table())
            self.session.sql('SELECT * FROM "__probe"').to_arrow_table()
        except duckdb.Error:
            return False
        return True

    def check_agreement(self, sql: str, tree: exp.Expr) -> None:
        """Raise QueryError unless DuckDB reads `sql` as it reads what `tree` says."""
        types = self.session.execute(
            "SELECT DISTINCT lower(type_name), logical_type FROM duckdb_types() "
            "WHERE lower(type_name) <> 'json'"
        ).fetchall()
        spelling = _Spelling(dict(types))
        asked = self._parsed(sql, spelling)
        if asked["error"]:
            if "Max expression depth" in asked["error_message"]:
                raise RecursionError(asked["error_message"])  # what Python says of its own depth
            position = asked.get("position")
            raise self._refuse.at_byte(
                None if position is None else int(position),
                f"the SQL does not parse: {asked['error_message']}",
                "docs/sql.md shows what a query looks like",
            )
        again = to_sql(tree)
        if asked != self._parsed(again, spelling):
            raise self._refuse.at(
                None,
                f"a part of the SQL is read as something else; this was understood: {again}",
                "write that part as a plain function call, docs/sql.md lists what is understood",
            )

    def describe(self, sql: str) -> list[tuple[str, str]]:
        """Name and DuckDB type of every result column; QueryError if DuckDB refuses the query."""
        try:
            rows = self.session.execute(_DESCRIBE + sql).fetchall()
        except duckdb.Error as e:
            message, position = reason(e)
            raise self._refuse.at_byte(
                None if position is None else position - len(_DESCRIBE),
                message,
                "check the values' types" if message.startswith("No function") else "",
            ) from e
        return [(str(row[0]), str(row[1])) for row in rows]

    def column_types(self, stream: str) -> dict[str, str]:
        """DuckDB type of every column of a stream."""
        known = self._column_types.get(stream)
        if known is None:
            known = dict(self.describe(f"SELECT * FROM {quote(stream)}"))
            self._column_types[stream] = known
        return known

    def types(
        self, expressions: Sequence[tuple[str, exp.Expr]], schema: pa.Schema
    ) -> list[tuple[str, pa.DataType]]:
        """DuckDB and Arrow type of each expression over columns of `schema`.

        The node beside an expression is where the query is pointed at if DuckDB refuses it.
        """
        if not expressions:
            return []
        self.session.register("__columns", schema.empty_table())
        try:
            return self._types([sql for sql, _ in expressions])
        except duckdb.Error:
            for sql, node in expressions:  # which one was it?
                try:
                    self._types([sql])
                except duckdb.Error as e:
                    raise self._refuse.at(node, f"{snippet(node)}: {reason(e)[0]}") from e
            raise
        finally:
            self.session.unregister("__columns")

    def truth(self, sql: str, node: exp.Expr) -> bool:
        """Whether a condition without columns is true."""
        try:
            rows = self.session.execute(f"SELECT CAST(({sql}) AS BOOLEAN)").fetchall()
        except duckdb.Error as e:
            raise self._refuse.at(node, f"{sql} fails: {reason(e)[0]}") from e
        return rows[0][0] is True

    def _types(self, expressions: Sequence[str]) -> list[tuple[str, pa.DataType]]:
        items = ", ".join(f'({sql}) AS "c{i}"' for i, sql in enumerate(expressions))
        relation = self.session.sql(f'SELECT {items} FROM "__columns"')
        arrow = relation.to_arrow_table().schema.types
        return [(str(d), a) for d, a in zip(relation.types, arrow, strict=True)]

    def _parsed(self, sql: str, spelling: _Spelling) -> dict[str, Any]:
        rows = self.session.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        parsed: dict[str, Any] = json.loads(rows[0][0], object_hook=spelling.plain)
        return parsed


_RENAMED = {"**": "pow", "^": "pow", "power": "pow", "^@": "starts_with"}
_UNITS = (
    *("year", "month", "week", "day", "hour", "minute", "second"),
    *("millisecond", "microsecond", "quarter", "decade"),
)
_INTERVAL = re.compile(rf"(-?\d+)\s+({'|'.join(_UNITS)})s?")


class _Spelling:
    """Makes equal what differs in spelling only, in DuckDB's syntax trees.

    `plain` is given every object of the tree, innermost first.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types

    def plain(self, node: dict[str, Any]) -> dict[str, Any]:
        for key in ("query_location", "query_location_length", "qualified_name"):
            node.pop(key, None)
        kind = node.get("type")
        if kind == "TYPE":  # INT4 and INTEGER, text and VARCHAR
            name = str(node["type_name"]).lower()
            node["type_name"] = self._types.get(name, name)
        elif kind == "OPERATOR_IS_NOT_NULL":
            node = _negated(node, type="OPERATOR_IS_NULL")
        elif kind == "COMPARE_DISTINCT_FROM":
            node = _negated(node, type="COMPARE_NOT_DISTINCT_FROM")
        elif kind == "FUNCTION":
            node = _plain_call(node)
        elif kind == "OPERATOR_CAST":
            node = _plain_interval_text(node)
        elif node.keys() == {"kind", "text"} and node["kind"] != "STRING":  # 1_000 and 1000
            text = str(node["text"]).replace("_", "")
            node["text"] = f"0{text}" if text.startswith(".") else text
        return node


def _negated(node: dict[str, Any], **changed: str) -> dict[str, Any]:
    return {
        "class": "OPERATOR",
        "type": "OPERATOR_NOT",
        "alias": node["alias"],
        "children": [{**node, **changed, "alias": ""}],
    }


def _plain_call(node: dict[str, Any]) -> dict[str, Any]:
    name = node["function_name"]
    arguments = [a["expression"] for a in node["arguments"]]
    if name in _RENAMED:
        return {**node, "function_name": _RENAMED[name], "is_operator": False}
    if name == "+" and len(arguments) == 1:
        return {**arguments[0], "alias": node["alias"] or arguments[0]["alias"]}
    if name == "date_part" and "literal" in arguments[0]:
        arguments[0]["literal"]["text"] = arguments[0]["literal"]["text"].lower()
    unit = name.removeprefix("to_").removesuffix("s")
    if unit in _UNITS and len(arguments) == 1:  # INTERVAL 3 DAY and INTERVAL '3' DAY
        inner, truncated = arguments[0], False
        while inner.get("type") == "OPERATOR_CAST" or inner.get("function_name") == "trunc":
            truncated |= "function_name" in inner
            inner = inner["child"] if "child" in inner else inner["arguments"][0]["expression"]
        text = inner.get("literal", {}).get("text", "")
        if truncated and re.fullmatch(r"-?\d+", text):
            return {"interval": int(text), "unit": unit, "alias": node["alias"]}
    return node


def _plain_interval_text(node: dict[str, Any]) -> dict[str, Any]:
    """INTERVAL '3 days' as INTERVAL 3 DAY; not '1.5 days', which is not INTERVAL 1.5 DAY."""
    literal = node["child"].get("literal", {})
    if node["type_expr"].get("type_name") == "INTERVAL" and literal.get("kind") == "STRING":
        literal["text"] = literal["text"].lower()
        match = _INTERVAL.fullmatch(literal["text"].strip())
        if match and not node["try_cast"]:
            return {
                "interval": int(match[1]),
                "unit": match[2],
                "alias": node["alias"],
            }
    return node
