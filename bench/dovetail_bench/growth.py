"""Cost per tuple as tuples grow tenfold, with a result per tuple so that output does not grow."""

from __future__ import annotations

import json

from dovetail_bench.measure import run_module
from dovetail_bench.report import Report, parse_flags

SCALES_SMALL = (0.02, 0.2)
SCALES_FULL = (0.1, 0.3, 1.0)


def main() -> None:
    """W2 at growing sizes: keys grow with rows, so results per tuple stay at a third."""
    flags = parse_flags(__doc__ or "")
    report = Report("growth", "cost per tuple as W2 grows", flags.full)
    cost: list[float] = []
    scales = SCALES_FULL if flags.full else SCALES_SMALL
    for scale in scales:
        spec = {
            "contestant": "dovetail",
            "workload": "w2",
            "scale": scale,
            "repeats": flags.repeats,
        }
        answer = run_module("dovetail_bench.contest", [json.dumps(spec)]).answer
        cost.append(1e9 / answer["tuples_per_s"])
        report.add(
            tuples=answer["tuples"],
            results=answer["results"],
            seconds=answer["seconds"],
            nanoseconds_per_tuple=cost[-1],
        )
    report.goal("cost per tuple at ten times the tuples", cost[-1] / cost[0], 1.5, at_most=True)
    report.finish(as_json=flags.json)


if __name__ == "__main__":
    main()
