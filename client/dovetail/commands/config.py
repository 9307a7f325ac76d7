"""`dovetail config`: which settings hold here, and who set them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

config = typer.Typer(help="The settings of file, environment and flags.", no_args_is_help=True)


@config.command("show")
def show(
    file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings file; else DOVETAIL_CONFIG, else dovetail.toml here.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show every setting, its value and where it came from; secrets stay hidden."""
    from dovetail.settings import load

    loaded = load(config=file)
    shown = loaded.shown()
    if as_json:
        print(json.dumps({"file": str(loaded.file) if loaded.file else None, "settings": shown}))
        return
    from dovetail.tables import print_table

    print_table(
        ("setting", "value", "from"),
        [
            (name, "–" if entry["value"] is None else str(entry["value"]), entry["origin"])
            for name, entry in shown.items()
        ],
    )
