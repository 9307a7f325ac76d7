"""Run the simulator over a range of seeds: `python tests/kit/sim_main.py --seeds 1000-1999`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.sim_run import run_seed

BATCH = 10
"""Seeds per task: some seconds, so that no worker idles for long."""

TOLD_EVERY = 500
"""A long run says how far it is this often."""


def run_range(seeds: range) -> tuple[int, Counter[str], dict[int, str]]:
    """(passed, what happened, failing seed → story) of a batch."""
    happened: Counter[str] = Counter()
    failures: dict[int, str] = {}
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for seed in seeds:
        try:
            verdict = run_seed(seed)
        except AssertionError as e:
            failures[seed] = str(e)
            continue
        for end, n in verdict.ends.items():
            happened[f"queries {end or 'left open'}"] += n
        happened["pushes"] += verdict.pushes
        happened["bytes forced"] += verdict.forced
        happened["results owed"] += verdict.owed
        happened["events"] += verdict.events
        happened["results compared"] += verdict.results
        for outcome, n in verdict.moves.items():
            happened[f"moves {outcome}"] += n
    return len(seeds) - len(failures), happened, failures


def batches(first: int, last: int) -> Iterator[range]:
    """The seeds in tasks."""
    for start in range(first, last + 1, BATCH):
        yield range(start, min(start + BATCH, last + 1))


def main() -> int:
    """Parse, run, print; 1 if a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1000-1999", help="one seed, or first-last")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    first, _, last = args.seeds.partition("-")
    tasks = list(batches(int(first), int(last or first)))
    started = time.monotonic()
    passed, happened, failures = 0, Counter[str](), dict[int, str]()
    outcomes: Iterator[tuple[int, Counter[str], dict[int, str]]]
    if args.jobs == 1 or len(tasks) == 1:
        outcomes = iter(map(run_range, tasks))
        pool = None
    else:
        pool = ProcessPoolExecutor(args.jobs)
        outcomes = pool.map(run_range, tasks)
    for ok, counts, bad in outcomes:
        passed += ok
        happened.update(counts)
        failures.update(bad)
        if (passed + len(failures)) % TOLD_EVERY == 0:
            print(f"{passed} passed, {len(failures)} failed so far", file=sys.stderr, flush=True)
        for seed, story in bad.items():
            print(f"{story}\nFAILED seed {seed}; again: make sim SEEDS={seed}\n", flush=True)
    if pool is not None:
        pool.shutdown()
    seconds = time.monotonic() - started
    print(f"{passed} of {passed + len(failures)} runs passed in {seconds:.0f} s")
    print(", ".join(f"{n} {what}" for what, n in sorted(happened.items())))
    if failures:
        print(f"failing seeds: {sorted(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
