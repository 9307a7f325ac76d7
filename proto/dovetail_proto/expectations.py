"""What a value from outside should have been, in plain English, from how pydantic puts it.

Settings and REST bodies are checked by pydantic, whose messages are for programmers of the model
("Input should be a valid integer, unable to parse string as an integer"). Users get the value that
they gave and what was expected: `processors: 'x' is given, expected a whole number`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail_proto.ids import NAME, NAME_IN_WORDS, OWNER

VALUE_CHARS_MAX = 60
"""Of a value that is shown: enough to recognise it."""

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_unicode": "text",
    "path_type": "a path",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} in the list",
    "too_long": "at most {max_length} in the list",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "{expected}",
}
"""By pydantic's type of error; what is in braces comes with the error."""


def plain(error: Mapping[str, Any], *, show: bool = True) -> str:
    """One of pydantic's errors, to be put after the place and a colon; `show`: with the value."""
    kind, context = str(error["type"]), error.get("ctx", {})
    if kind == "missing":
        return "this is missing"
    if kind == "extra_forbidden":
        return "no such field is known"
    if kind == "json_invalid":
        return f"this is not JSON: {context.get('error', '')}"
    if kind not in _EXPECTED:
        return str(error["msg"]).removeprefix("Value error, ")
    expected = _EXPECTED[kind].format(**context)
    if context.get("pattern") in (f"^{NAME.pattern}$", f"^{OWNER.pattern}$"):
        expected = f"a name: {NAME_IN_WORDS}"
    return f"{_shown(error.get('input'))} is given, expected {expected}" if show else expected


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
