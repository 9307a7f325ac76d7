"""`dovetail owed`: how many results a spill store still owes, by counting keys."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from dovetail.quantities import format_count
from dovetail.tables import print_table
from dovetail_proto.errors import ConfigError

GROUPS_SHOWN = 20
"""A screenful; `--json` has them all."""


def owed(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A run's --spill-dir.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, every group.")] = False,
) -> None:
    """Count the combinations that pushed state owes, per group and in all; joins nothing."""
    from dovetail_pipeline.cleanup import owed as count_owed
    from dovetail_pipeline.cleanup.stores import find_cleanups

    runs = find_cleanups([directory], output="none")
    if len(runs) > 1:
        raise ConfigError(
            f"{directory!r} holds {len(runs)} runs", remedy="name the folder of one of them"
        )
    report = count_owed(*runs[0].stores)
    if as_json:
        print(json.dumps(asdict(report)))
        return
    largest = sorted(report.groups, key=lambda g: -g.owed)
    print_table(
        ("group", "generations", "rows", "owed"),
        [(g.group, g.generations, sum(g.rows), g.owed) for g in largest[:GROUPS_SHOWN]],
        empty="no group owes anything",
    )
    if len(largest) > GROUPS_SHOWN:
        print(f"… and {len(largest) - GROUPS_SHOWN} groups more; --json lists them all")
    print(f"owed in all: {format_count(report.owed)} combinations")
