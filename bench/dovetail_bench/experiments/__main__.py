"""Runs the experiments: `python -m dovetail_bench.experiments [--only NAME …] [--again | --page]`.

Every figure is run three times, in rounds, so that a disturbance of the machine does not fall on
all runs of one figure. Each run is stored in docs/experiments/ when it is done, with the plot of
the first, and docs/experiments.md is written anew from what is stored: whoever stops half-way goes
on there. Figures that have their three runs are left out unless `--again` is given; `--page` runs
none. Lines with the same settings in several figures (14, 15, 16) are run once a round.
"""

from __future__ import annotations

import argparse
import sys
import time

from dovetail_bench.experiments import NAMES, cluster_runs, find
from dovetail_bench.experiments.page import PAGE, filled
from dovetail_bench.experiments.stored import FOLDER, add, load, verdict

TITLE = "Run the papers' experiments, store what they find, and write docs/experiments.md."
RUNS = 3
"""As many as the paper takes the mean of for Fig. 6."""


def main(arguments: list[str]) -> int:
    """Run, store, write the page, and say what holds."""
    parser = argparse.ArgumentParser(prog="dovetail_bench.experiments", description=TITLE)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--again", action="store_true", help="drop what is stored of these first")
    parser.add_argument("--page", action="store_true", help="write the page from what is stored")
    asked = parser.parse_args(arguments)
    if asked.again:
        for name in asked.only:
            (FOLDER / f"{name}.json").unlink(missing_ok=True)
    cluster_runs.sharing = True
    for _ in range(0 if asked.page else RUNS):
        cluster_runs.shared.clear()
        for name in asked.only:
            stored = load(name)
            if stored is None or len(stored["runs"]) < RUNS:
                _run(name)
    _write_page()
    return 0


def _run(name: str) -> None:
    module = find(name)
    print(f"{name}: {module.TITLE}", flush=True)
    began = time.monotonic()
    found = module.run()
    took_s = time.monotonic() - began
    stored = add(found, took_s)
    if len(stored["runs"]) == 1:
        module.plot(found, FOLDER / f"{name}.png")
    for claims in zip(*(run["claims"] for run in stored["runs"]), strict=True):
        print(f"  {verdict(claims)}: {claims[-1]['claim']}: {claims[-1]['ours']}")
    print(f"  run {len(stored['runs'])} took {took_s:.0f} s", flush=True)
    _write_page()


def _write_page() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
