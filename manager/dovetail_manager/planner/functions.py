"""The functions a query may call: scalar, and the same at any time on any machine.

This is a list of what is allowed, not of what is forbidden: DuckDB's catalog also holds scalar
functions that read its settings, the clock or the catalog, and some of those call themselves
consistent. A refusal asks DuckDB what kind of function it was, so that it can say what to write.
"""

from __future__ import annotations

import re

import duckdb
from sqlglot import exp

from dovetail_manager.planner.refusals import Refuse, did_you_mean

_TEXT = """
    ascii bin bit_length char_length character_length chr concat concat_ws contains
    damerau_levenshtein editdist3 ends_with format format_bytes formatreadabledecimalsize
    formatreadablesize from_base64 from_binary from_hex hamming hex instr jaccard jaro_similarity
    jaro_winkler_similarity lcase left left_grapheme len length length_grapheme levenshtein lower
    lpad ltrim md5 md5_number mismatches nfc_normalize octet_length ord overlay parse_dirname
    parse_dirpath parse_filename parse_path position prefix printf regexp_escape regexp_extract
    regexp_extract_all regexp_full_match regexp_matches regexp_replace regexp_split_to_array repeat
    replace reverse right right_grapheme rpad rtrim sha1 sha256 split split_part starts_with
    str_split str_split_regex string_split string_split_regex string_to_array strip_accents strlen
    strpos substr substring substring_grapheme suffix to_base to_base64 to_binary to_hex translate
    trim ucase unbin unhex unicode upper url_decode url_encode base64 encode decode hash
"""
_NUMBERS = """
    abs acos acosh add asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees
    divide even exp factorial fdiv floor fmod gamma gcd greatest greatest_common_divisor isfinite
    isinf isnan lcm least least_common_multiple lgamma ln log log10 log2 mod multiply nextafter pi
    pow power radians round round_even roundbankers sign signbit sin sinh sqrt subtract tan tanh
    trunc xor
"""
_TIMES = """
    century date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc
    day dayname dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns
    epoch_us era hour isodow isoyear julian last_day make_date make_time make_timestamp
    make_timestamp_ms make_timestamp_ns make_timestamptz microsecond millennium millisecond minute
    month monthname nanosecond quarter second strftime strptime time_bucket timezone timezone_hour
    timezone_minute to_centuries to_days to_decades to_hours to_microseconds to_millennia
    to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years
    try_strptime week weekday weekofyear year yearweek
"""
_NESTED = """
    array_append array_cat array_concat array_contains array_cosine_distance
    array_cosine_similarity array_cross_product array_distance array_distinct array_dot_product
    array_extract array_has array_has_all array_has_any array_indexof array_inner_product
    array_intersect array_length array_position array_prepend array_reverse
    array_reverse_sort array_slice array_sort array_to_string array_unique array_value cardinality
    element_at flatten list_append list_avg list_cat list_concat list_contains list_count
    list_cosine_distance list_cosine_similarity list_distance list_distinct list_dot_product
    list_element list_extract list_first list_has list_has_all list_has_any list_indexof
    list_inner_product list_intersect list_last list_max list_median list_min list_mode list_pack
    list_position list_prepend list_product list_reverse list_reverse_sort list_slice
    list_sort list_string_agg list_sum list_unique list_value list_where list_zip map map_concat
    map_contains map_entries map_extract map_extract_value map_from_entries map_keys map_values
    struct_concat struct_extract struct_insert struct_keys struct_pack struct_update struct_values
"""
_JSON = """
    json_array json_array_length json_contains json_exists json_extract json_extract_path
    json_extract_path_text json_extract_string json_keys json_object json_structure json_type
    json_valid json_value to_json
"""
_CHOICES = "coalesce if ifnull nullif try typeof"

ALLOWED = frozenset(f"{_TEXT} {_NUMBERS} {_TIMES} {_NESTED} {_JSON} {_CHOICES}".split())
"""Lower case, as DuckDB reads function names in any case."""

CLOCK_WORDS = frozenset(
    {
        *("current_date", "current_time", "current_timestamp"),
        *("localtime", "localtimestamp", "today", "now"),
    }
)
"""Names that DuckDB reads as the clock where no column bears them."""

REPEATS_MAX = 10_000
"""How much longer than its arguments a value may get: at one byte each, the 2048 rows that DuckDB
computes at a time then take 20 MB. One call may otherwise ask for any amount of memory."""

_REPEATING = {"repeat": 1, "lpad": 1, "rpad": 1}  # and which argument says how much
_FORMATTING = ("format", "printf")

_CLOCK = re.compile("now|today|date|time")

_REMEDIES = {
    "clock": "select a timestamp column of a stream instead",
    "session": "write the value",
    "volatile": "a join's result must not depend on when or how often a row is read; "
    "compute it before the join, as a column of a stream",
    "aggregate": "join first, then aggregate the results in the engine that reads them",
    "window": "join first, then number or rank the results in the engine that reads them",
    "table": "declare the rows as a stream and join it",
}


def check_function(node: exp.Anonymous, session: duckdb.DuckDBPyConnection, refuse: Refuse) -> None:
    """Raise QueryError unless the function that `node` calls is allowed."""
    name = node.name
    fold = name.lower()
    if fold == "age" and len(node.expressions) != 2:  # with one argument it reads the clock
        raise refuse.at(node, "age() of one value depends on today", "write age(later, earlier)")
    if fold in ALLOWED or fold == "age":
        if any(isinstance(a, exp.Star) for a in node.expressions):
            raise refuse.at(node, f"{name}(*) needs a value", "name a column")
        _check_growth(node, refuse)
        return
    if fold in ("any", "all"):
        raise refuse.at(node, "ANY and ALL are not supported", "write list_contains(list, value)")
    if fold == "columns":
        raise refuse.at(node, "COLUMNS() is not supported", "list the columns")
    if fold == "unnest":
        raise refuse.at(
            node, "unnest() makes several rows of one", "unnest before the join, in the stream"
        )
    kind = _kind(fold, session)
    if kind is None:
        guess = did_you_mean(name, ALLOWED)
        raise refuse.at(node, f"there is no function {name}()", guess or "docs/sql.md lists them")
    if kind == "scalar":
        raise refuse.at(
            node,
            f"function {name}() is not among those a query may call",
            "docs/sql.md lists them",
        )
    said = {
        "clock": "depends on when it is called",
        "session": "depends on where it is called",
        "volatile": "is not the same at each call",
        "aggregate": "is an aggregate",
        "window": "is a window function",
        "table": "makes rows",
    }[kind]
    raise refuse.at(node, f"function {name}() {said}", _REMEDIES[kind])


def _check_growth(node: exp.Anonymous, refuse: Refuse) -> None:
    """Bound what a small query can make a processor allocate."""
    name = node.name.lower()
    if name in _REPEATING:
        count = node.expressions[_REPEATING[name]] if len(node.expressions) > 1 else None
        number = count.name if isinstance(count, exp.Literal) and not count.is_string else ""
        if not number.isdecimal() or int(number) > REPEATS_MAX:
            raise refuse.at(
                node,
                f"{name}() needs a plain number up to {REPEATS_MAX} as its second argument",
                "write such a number",
            )
        outer = node.parent
        while outer is not None:
            if isinstance(outer, exp.Anonymous) and outer.name.lower() in _REPEATING:
                raise refuse.at(
                    node, f"{name}() stands within {outer.name}()", "repeat or pad once"
                )
            outer = outer.parent
    if name in _FORMATTING:
        form = node.expressions[0] if node.expressions else None
        if not (isinstance(form, exp.Literal) and form.is_string):
            raise refuse.at(node, f"{name}() needs a text as its first argument", "write '…'")
        if any(int(width) > REPEATS_MAX for width in re.findall(r"\d+", form.name)):
            raise refuse.at(
                form, f"a width of more than {REPEATS_MAX} is not possible", "write a smaller one"
            )
        if re.search(r"%[-+ #0-9.]*\*|\{[^{}]*:[^{}]*\{", form.name):
            raise refuse.at(form, "a width that is computed is not possible", "write a number")


def _kind(name: str, session: duckdb.DuckDBPyConnection) -> str | None:
    """What DuckDB has under `name`, the least welcome first; None if nothing."""
    rows = session.execute(
        "SELECT DISTINCT function_type, stability FROM duckdb_functions() "
        "WHERE lower(function_name) = ?",
        [name],
    ).fetchall()
    types = {t for t, _ in rows}
    stabilities = {s for _, s in rows}
    if "VOLATILE" in stabilities:
        return "volatile"
    if "CONSISTENT_WITHIN_QUERY" in stabilities:
        return "clock" if _CLOCK.search(name) else "session"
    for kind in ("aggregate", "window"):
        if kind in types:
            return kind
    if types & {"table", "table_macro"} and "scalar" not in types:
        return "table"
    return "scalar" if types else None
