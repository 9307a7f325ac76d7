"""A plan for people (`explain`) and for programs (`explain_dict`).

Bytes per row are an estimate of what a row of an input takes in state as Arrow: fixed widths are
known, text and lists are taken at `VARIABLE_BYTES_GUESSED`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dovetail_manager.planner.refusals import type_name
from dovetail_proto.query import InputPlan, QueryPlan

VARIABLE_BYTES_GUESSED = 24
"""A value of variable length: 16 bytes of content, which names, symbols and codes seldom exceed,
and 8 for where it starts and how long it is."""


def explain_dict(plan: QueryPlan) -> dict[str, Any]:
    """The plan as plain values: what `--explain --json` prints."""
    return {
        "query": plan.name,
        "partition_groups": plan.partitions,
        "key": [
            {"columns": [f"{i.alias}.{i.key[p]}" for i in plan.inputs], "type": type_name(t)}
            for p, t in enumerate(plan.key_types)
        ],
        "inputs": [
            {
                "alias": i.alias,
                "stream": i.stream,
                "filter": i.filter_sql,
                "computed": {c.name: c.sql for c in i.computed},
                "kept": {f.name: type_name(f.type) for f in i.kept},
                "columns_dropped": len(i.stream_schema) - (len(i.kept) - len(i.computed)),
                "bytes_per_row": _bytes_per_row(i),
            }
            for i in plan.inputs
        ],
        "condition": plan.residual_sql,
        "results": [
            {
                "name": c.name,
                "type": type_name(c.type),
                "from": c.sql
                if c.source is None
                else f"{plan.inputs[c.source[0]].alias}.{c.source[1]}",
            }
            for c in plan.outputs
        ],
    }


def explain(plan: QueryPlan) -> str:
    """The plan as text, in the order rows go through it."""
    facts = explain_dict(plan)
    lines = [f"query {plan.name}: {len(plan.inputs)} inputs, {plan.partitions} partition groups"]
    for i in facts["inputs"]:
        alias = "" if i["alias"].lower() == i["stream"] else f" as {i['alias']}"
        lines.append(
            f"  input {i['stream']}{alias}: about {i['bytes_per_row']} bytes a row in state"
        )
        if i["filter"] is not None:
            lines.append(f"    filter  {i['filter']}")
        lines += [f"    compute {name} = {sql}" for name, sql in i["computed"].items()]
        kept = ", ".join(f"{name} {t}" for name, t in i["kept"].items())
        dropped = i["columns_dropped"]
        lines.append(f"    keep    {kept}" + (f" ({dropped} not needed)" if dropped else ""))
    for part in facts["key"]:
        lines.append(f"  key {' = '.join(part['columns'])} compared as {part['type']}")
    if facts["condition"] is not None:
        lines.append(f"  condition on combinations {plan.readable(facts['condition'])}")
    lines.append("  results")
    for c in facts["results"]:
        origin = plan.readable(c["from"])
        lines.append(
            f"    {c['name']} {c['type']}" + (f" = {origin}" if origin != c["name"] else "")
        )
    return "\n".join(lines)


def _bytes_per_row(plan_input: InputPlan) -> int:
    bits = sum(_bits(f.type) for f in plan_input.kept)
    return (bits + 7) // 8


def _bits(t: pa.DataType) -> int:
    if pa.types.is_null(t):
        return 0
    if pa.types.is_struct(t):
        return 1 + sum(_bits(t.field(i).type) for i in range(t.num_fields))
    if pa.types.is_fixed_size_list(t):
        return 1 + int(t.list_size) * _bits(t.value_type)
    if isinstance(t, pa.BaseExtensionType):
        return _bits(t.storage_type)
    try:
        return 1 + int(t.bit_width)  # one bit says whether it is null
    except ValueError:
        return 1 + 8 * VARIABLE_BYTES_GUESSED
