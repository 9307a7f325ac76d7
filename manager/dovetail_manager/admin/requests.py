"""Whether what people ask for makes sense, before the machine is asked: names, places, shares."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa

from dovetail_manager.adaptation.policies import policy
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_manager.records import QueryRecord
from dovetail_proto import admin as a
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import QueryName
from dovetail_proto.query import QueryPlan
from dovetail_proto.roots import Roots
from dovetail_proto.spill_format import place_below

VICTIMS = ("least-productive", "most-productive", "least-recent", "random")
"""Orders in which groups may be pushed; `dovetail_processor.adaptation.victims` has them."""

COLUMNS_MAX = 10_000

OWN_SETTINGS = (
    "push_fraction",
    "spill_above_ratio",
    "inactive_after_s",
    "productivity_half_life_s",
)
"""What a submission may say, and the manager's settings say otherwise."""


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


def disk_of(request: a.Submit, defaults: AdaptationSettings) -> DiskSettings:
    """How the query uses the disk: as it says, else as the manager's settings say."""
    if request.victims not in VICTIMS:
        raise ConfigError(
            f"victims {request.victims!r} do not exist", remedy=f"use {', '.join(VICTIMS)}"
        )
    chosen: dict[str, float] = {}
    for name in OWN_SETTINGS:
        given: float | None = getattr(request, name)
        chosen[name] = getattr(defaults, name) if given is None else given
    for name in ("push_fraction", "spill_above_ratio"):
        if not 0 < chosen[name] <= 1:
            raise ConfigError(f"{name} {chosen[name]} is not a share above 0 and up to 1")
    for name in ("inactive_after_s", "productivity_half_life_s"):
        if not chosen[name] >= 0:
            raise ConfigError(f"{name} {chosen[name]} is below 0")
    allowed = policy(request.policy).spills_locally
    return DiskSettings(allowed, request.victims, **chosen)


def record_of(
    request: a.Submit,
    plan: QueryPlan,
    *,
    roots: Roots,
    spill_root: str | None,
    adaptation: AdaptationSettings,
    keep_results: tuple[float, int],
    created_s: float,
) -> QueryRecord:
    """The record of a submission; ConfigError names the field that cannot be worked with.

    `keep_results` is for how long and how much of each of its logs, if it does not say.
    """
    if request.counting and request.results:
        raise ConfigError(
            f"query {request.name!r}: results that are only counted go to no folder",
            remedy="leave out `results` or `counting`",
        )
    keeps_some = request.keep_results_s or request.keep_results_bytes
    has_logs = not (request.counting or request.results)
    if keeps_some and not has_logs:
        raise ConfigError(
            f"query {request.name!r}: what is kept of result logs is said, and it has none",
            remedy="leave out `keep_results_s` and `keep_results_bytes`",
        )
    keep_s, keep_bytes = keep_results if has_logs else (0.0, 0)
    if request.keep_results_s is not None:
        keep_s = request.keep_results_s
    if request.keep_results_bytes is not None:
        keep_bytes = request.keep_results_bytes
    if not 0 <= keep_s < float("inf"):
        raise ConfigError(f"keep_results_s {keep_s} is no time to keep results")
    record = QueryRecord(
        name=QueryName(request.name),
        plan=plan,
        policy=policy(request.policy).name,
        created_s=created_s,
        disk=disk_of(request, adaptation),
        expected_bytes=request.expected_state_bytes or None,
        spill=place("spill", request.spill, roots),
        results=new_folder("results", request.results, roots),
        counting=request.counting,
        keep_results_s=keep_s,
        keep_results_bytes=keep_bytes,
    )
    if record.spill is None and spill_root is not None:
        # A folder of its own for every submission: the name may be used again.
        return replace(record, spill=place_below(spill_root, record.run))
    return record


def place(what: str, text: str, roots: Roots) -> str | None:
    """A folder or URI as given, None if it is empty; ConfigError if it may not be used.

    That is so outside the roots, and where processors would take it for different places.
    """
    if not text:
        return None
    if "\0" in text or ("://" not in text and not os.path.isabs(text)):
        raise ConfigError(
            f"{what} {text!r} is neither an absolute path nor a URI",
            remedy="processors have working folders of their own: write the whole path",
        )
    roots.check(what, text)
    return text


def local_place(what: str, text: str, roots: Roots) -> str | None:
    """A file or folder on the processors' machines; ConfigError if it is anything else."""
    if "://" in text:
        raise ConfigError(
            f"{what} {text!r} is a URI, and only folders that the processors' machines mount serve",
            remedy="write the path of such a folder",
        )
    return place(what, text, roots)


def new_folder(what: str, text: str, roots: Roots) -> str | None:
    """A folder for this query's files alone; ConfigError if something is in it, seen from here.

    Processors look again: their machines may see another folder under that path.
    """
    folder = local_place(what, text, roots)
    try:
        found = next(os.scandir(folder), None) if folder else None
    except OSError:
        return folder  # not there yet, or none of this machine
    if found is not None:
        raise ConfigError(
            f"{what} folder {text!r} is not empty: it holds {found.name!r}",
            remedy="empty it or name another; results are never mixed with what is there",
        )
    return folder


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
