"""`dovetail experiments`: the papers' figures, measured on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

experiments = typer.Typer(help="The papers' experiments, run on this machine.")


@experiments.command("list")
def list_experiments(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what can be run."""
    from dovetail_bench.experiments import NAMES, find

    titles = {name: find(name).TITLE for name in NAMES}
    if as_json:
        print(json.dumps(titles))
        return
    for name, title in titles.items():
        print(f"{name:<12}{title}")


@experiments.command("run")
def run_experiment(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="One of `dovetail experiments list`.")
    ],
    *,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The plot; NAME.png here by default.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: the plotted series are its rows.")
    ] = False,
) -> None:
    """Run an experiment, write its plot, and say which of the paper's claims hold."""
    from dovetail_bench.experiments import find

    module = find(name)
    found = module.run()
    path = plot or Path(f"{name}.png")
    module.plot(found, path)
    if as_json:
        print(json.dumps({**found.to_dict(), "plot": str(path)}))
        return
    print(f"{name}: {found.title}")
    for total in found.totals:
        print("  " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in total.items()))
    for claim in found.claims:
        verdict = f"set by {claim.set_by}" if claim.set_by else "holds"
        print(f"  {verdict if claim.holds else 'does not hold'}: {claim.claim}")
        print(f"    paper: {claim.paper}\n    here:  {claim.ours}\n    bar:   {claim.bar}")
    print(f"plot: {path}")
