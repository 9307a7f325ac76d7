"""Run the simulator over a range of seeds: `python tests/kit/sim_main.py --seeds 1000-1999`.

With `--progress FILE` the ranges that passed are noted there, and left out when it is run again.
"""

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

BATCH = 25
"""Seeds per task: some ten seconds, so that no worker idles for long."""

Outcome = tuple[range, Counter[str], dict[int, str]]


def run_range(seeds: range) -> Outcome:
    """(seeds, what happened, failing seed → story) of a batch."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    happened: Counter[str] = Counter()
    failures: dict[int, str] = {}
    for seed in seeds:
        try:
            verdict = run_seed(seed)
        except AssertionError as e:
            failures[seed] = str(e)
            continue
        happened["pushes"] += verdict.pushes
        happened["bytes forced"] += verdict.forced
        happened["results owed"] += verdict.owed
        happened["events"] += verdict.events
        happened["results of the run"] += verdict.results
        for end, n in verdict.ends.items():
            happened[f"queries {end}"] += n
        for outcome, n in verdict.moves.items():
            happened[f"moves {outcome}"] += n
        for kind in verdict.kinds:
            happened[f"seeds with {kind}"] += 1
    return seeds, happened, failures


def batches(first: int, last: int) -> Iterator[range]:
    """The seeds in tasks."""
    for start in range(first, last + 1, BATCH):
        yield range(start, min(start + BATCH, last + 1))


def outcomes(tasks: list[range], jobs: int) -> Iterator[Outcome]:
    """Do the tasks, in processes if there are several."""
    if jobs == 1 or len(tasks) == 1:
        yield from map(run_range, tasks)
    else:
        with ProcessPoolExecutor(jobs) as pool:
            yield from pool.map(run_range, tasks)


def main() -> int:
    """Parse, run, print; 1 if a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1000-1999", help="one seed, or first-last")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--progress", type=Path, help="a file that remembers what has passed")
    args = parser.parse_args()
    first, _, last = args.seeds.partition("-")
    done = args.progress.read_text().split() if args.progress and args.progress.exists() else []
    tasks = [t for t in batches(int(first), int(last or first)) if _name(t) not in done]
    started = time.monotonic()
    seeds, happened, failures = 0, Counter[str](), dict[int, str]()
    for task, counts, bad in outcomes(tasks, args.jobs):
        seeds += len(task)
        happened.update(counts)
        failures.update(bad)
        for seed, story in bad.items():
            print(f"{story}\nFAILED seed {seed}; again: make sim SEEDS={seed}\n", flush=True)
        if args.progress and not bad:
            with args.progress.open("a") as file:
                file.write(f"{_name(task)}\n")
    seconds = time.monotonic() - started
    print(f"{seeds - len(failures)} of {seeds} runs passed in {seconds:.0f} s")
    print(", ".join(f"{n} {what}" for what, n in sorted(happened.items())))
    if failures:
        print(f"failing seeds: {sorted(failures)}")
    return 1 if failures else 0


def _name(task: range) -> str:
    return f"{task.start}-{task.stop - 1}"


if __name__ == "__main__":
    sys.exit(main())
