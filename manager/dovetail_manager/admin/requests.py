"""Whether what people ask for makes sense, before the machine is asked: names, places, shares."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa

from dovetail_manager.adaptation.policies import policy
from dovetail_manager.catalog import Spec
from dovetail_proto import admin as a
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import QueryName
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import place_below

VICTIMS = ("least-productive", "most-productive", "least-recent", "random")
"""Orders in which groups may be pushed; `dovetail_processor.adaptation.victims` has them."""

COLUMNS_MAX = 10_000


def read_schema(name: str, data: bytes) -> pa.Schema:
    """A stream's schema as its queries see it: no metadata, values without encodings.

    ConfigError if it is no schema, or has columns that cannot be held.
    """
    try:
        given = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError) as e:
        raise ConfigError(
            f"stream {name!r}: its schema is not an Arrow IPC schema: {e}",
            remedy="send schema.serialize() of pyarrow",
        ) from e
    if not 0 < len(given) <= COLUMNS_MAX:
        raise ConfigError(f"stream {name!r} has {len(given)} columns", remedy="declare some")
    twice = sorted({n for n in given.names if given.names.count(n) > 1})
    if twice:
        raise ConfigError(
            f"stream {name!r}: column {twice[0]!r} is there twice", remedy="name each column once"
        )
    fields = [pa.field(f.name, _decoded(f.type), f.nullable) for f in given]
    for field in fields:
        if not _is_plain(field.type):
            raise ConfigError(
                f"stream {name!r}: column {field.name!r} is of type {field.type}, which cannot "
                "be held",
                remedy="declare the type of its values: no unions, encodings, views, extensions",
            )
    return pa.schema(fields)


def spec_of(request: a.Submit, plan: QueryPlan, spill_root: str | None, created_s: float) -> Spec:
    """The spec of a submission; ConfigError names the field that cannot be worked with."""
    if request.counting and request.results:
        raise ConfigError(
            f"query {request.name!r}: results that are only counted go to no folder",
            remedy="leave out `results` or `counting`",
        )
    if request.victims not in VICTIMS:
        raise ConfigError(
            f"victims {request.victims!r} do not exist", remedy=f"use {', '.join(VICTIMS)}"
        )
    _share("push_share", request.push_share)
    _share("spill_threshold", request.spill_threshold)
    if not request.inactive_after_s >= 0:
        raise ConfigError(f"inactive_after_s {request.inactive_after_s} is below 0")
    chosen = policy(request.policy)
    spec = Spec(
        name=QueryName(request.name),
        plan=plan,
        policy=chosen.name,
        disk=DiskSettings(
            allowed=chosen.spills_locally,
            victims=request.victims,
            push_share=request.push_share,
            threshold=request.spill_threshold,
            inactive_after_s=request.inactive_after_s,
        ),
        created_s=created_s,
        spill=place("spill", request.spill),
        results=place("results", request.results),
        counting=request.counting,
    )
    if spec.spill is None and spill_root is not None:
        # A folder of its own for every submission: the name may be used again.
        return replace(spec, spill=place_below(spill_root, spec.run))
    return spec


def place(what: str, text: str) -> str | None:
    """A folder or URI as given, None if it is empty; ConfigError if processors would differ."""
    if not text:
        return None
    if "\0" in text or ("://" not in text and not os.path.isabs(text)):
        raise ConfigError(
            f"{what} {text!r} is neither an absolute path nor a URI",
            remedy="processors have working folders of their own: write the whole path",
        )
    return text


def _share(what: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{what} {value} is not a share above 0 and up to 1")


def _decoded(kind: pa.DataType) -> pa.DataType:
    """Sources deliver the values of dictionaries."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_plain(kind: pa.DataType) -> bool:
    """Whether a column has the layout in which everything behind the sources holds it."""
    refused = (
        pa.types.is_union,
        pa.types.is_dictionary,
        pa.types.is_run_end_encoded,
        pa.types.is_string_view,
        pa.types.is_binary_view,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    if isinstance(kind, pa.BaseExtensionType) or any(test(kind) for test in refused):
        return False
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    return all(_is_plain(part) for part in parts)
