"""What the commands share that start processors, in their own process or in others."""

from __future__ import annotations

from typing import Annotated

import typer

Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=256,
        metavar="N",
        help="Threads of each processor, which share its memory; by default the cores are dealt "
        "among the processors, fewer if memory is small.",
        show_default=False,
    ),
]
