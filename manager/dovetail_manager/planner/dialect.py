"""SQL text to a syntax tree and back, with bounds on what is read.

sqlglot would turn functions into its own and fill in the defaults of types; here both stay as they
were written, so that the text that goes to DuckDB is the text that came. Its parser calls itself at
every bracket: `parse` bounds the brackets before it starts.
"""

from __future__ import annotations

import logging
import re
from typing import Any, ClassVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.duckdb import DuckDBParser

from dovetail_manager.planner.refusals import Refuse

# sqlglot logs what it does not know before it says so in the tree, where it is refused
logging.getLogger("sqlglot").setLevel(logging.ERROR)

SQL_CHARS_MAX = 1 << 20
"""A query that lists 6000 result columns has about 200 000 characters."""

SQL_TOKENS_MAX = 40_000
"""Planning takes up to 0.2 ms a token, so ten seconds at most; 6000 result columns fit, written
`t.name AS alias,` in six tokens each."""

NESTING_MAX = 24
"""Brackets and CASEs within each other. sqlglot calls itself 24 times a level, Python allows 1000
calls in all, and the caller needs some of them."""


_UNREADABLE = re.compile("[\x00\ud800-\udfff]")
"""What UTF-8 cannot hold, and what ends a text for other programs."""


class PlainDuckDB(DuckDB):
    """DuckDB's dialect without sqlglot's knowledge of functions and type defaults."""

    class Parser(DuckDBParser):
        """Reads every function as a name and arguments, but for the forms with own syntax."""

        FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[Any, Any]] = {
            name: DuckDBParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
        }
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[Any, Any]] = {
            "CASE": DuckDBParser.NO_PAREN_FUNCTION_PARSERS["CASE"],
            "MAP": DuckDBParser.NO_PAREN_FUNCTION_PARSERS["MAP"],
        }
        TYPE_CONVERTERS: ClassVar[dict[Any, Any]] = {}


def parse(sql: str, refuse: Refuse) -> exp.Expr:
    """The one statement in `sql`; raise QueryError if there is none, or too much of it."""
    if len(sql) > SQL_CHARS_MAX:
        raise refuse.at(
            None,
            f"the SQL has {len(sql)} characters, at most {SQL_CHARS_MAX} are read",
            "shorten it",
        )
    bad = _UNREADABLE.search(sql)
    if bad is not None:
        raise refuse.at(bad.start(), f"character {bad[0]!r} is not text", "remove it")
    dialect = PlainDuckDB()
    try:
        tokens = dialect.tokenize(sql)
        _check_size(tokens, refuse)
        read = dialect.parser().parse(tokens, sql)
        # A comment behind the last `;` hangs on a tree of its own, which says nothing.
        trees = [t for t in read if t is not None and not isinstance(t, exp.Semicolon)]
    except TokenError as e:
        raise refuse.at(len(sql.rstrip()), "a quote or a comment is not closed", "close it") from e
    except ParseError as e:
        place = e.errors[0] if e.errors else {}
        found = str(place.get("highlight") or "")
        offset = len(str(place.get("start_context") or "")) if found else None
        raise refuse.at(
            _offset_of(sql, place, offset),
            f"the SQL does not parse near {found!r}: {_complaint(str(place.get('description')))}",
            "docs/sql.md shows what a query looks like",
        ) from e
    if not trees:
        raise refuse.at(None, "there is no SQL", "write SELECT … FROM … JOIN …")
    if len(trees) > 1:
        raise refuse.at(trees[1], "there are several statements", "run one query at a time")
    return trees[0]


def to_sql(node: exp.Expr) -> str:
    """The text of a tree, in DuckDB's dialect, without comments."""
    return PlainDuckDB().generate(node, comments=False, normalize_functions=False)


def snippet(node: exp.Expr, most: int = 40) -> str:
    """The text of a tree, cut for an error message."""
    text = to_sql(node)
    return text if len(text) <= most else text[: most - 1] + "…"


def word_offset(sql: str, words: str) -> int | None:
    """Where a keyword stands outside of brackets."""
    depth = 0
    first = words.split(maxsplit=1)[0]
    for token in PlainDuckDB().tokenize(sql):
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth == 0 and token.text.upper().split()[:1] == [first]:
            return int(token.start)
    return None


def sign_offset(sql: str, signs: str) -> int | None:
    """Where the first token stands that starts with one of `signs`."""
    for token in PlainDuckDB().tokenize(sql):
        if sql[token.start] in signs:
            return int(token.start)
    return None


def _complaint(description: str) -> str:
    """sqlglot's complaint without the names of its classes."""
    if description.startswith("Required keyword"):
        return "something is missing here"
    return description.replace("Invalid expression / Unexpected token", "not expected here")


def _offset_of(sql: str, place: dict[str, object], fallback: int | None) -> int | None:
    """sqlglot gives the line and the column of a token's last character."""
    line, column = place.get("line"), place.get("col")
    if not isinstance(line, int) or not isinstance(column, int):
        return fallback
    lines = sql.splitlines(keepends=True)
    end = sum(len(text) for text in lines[: line - 1]) + column
    return max(end - len(str(place.get("highlight") or "")), 0)


_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}


def _check_size(tokens: list[Token], refuse: Refuse) -> None:
    """Bound what the parser, which calls itself at every bracket, is given."""
    if len(tokens) > SQL_TOKENS_MAX:
        raise refuse.at(
            tokens[SQL_TOKENS_MAX].start,
            f"the SQL has {len(tokens)} words and signs, at most {SQL_TOKENS_MAX} are read",
            "shorten it",
        )
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth > NESTING_MAX:
            raise refuse.at(
                token.start,
                f"brackets are nested more than {NESTING_MAX} deep",
                "write the expression with fewer brackets",
            )
