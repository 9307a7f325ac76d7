"""What a tuple costs in state: bytes held per tuple beside the size of the same rows in Arrow."""

from __future__ import annotations

import json

from dovetail_bench.measure import run_module
from dovetail_bench.report import Report, parse_flags

SMALL_SCALE = 0.2


def main() -> None:
    """Hold W1 and W2 whole, with few and with many groups."""
    flags = parse_flags(__doc__ or "")
    report = Report("bytes_per_tuple", "state held per tuple", flags.full)
    for workload in ("w1", "w2"):
        for partitions in (300, 3_000):
            spec = {
                "contestant": "dovetail",
                "workload": workload,
                "scale": 1.0 if flags.full else SMALL_SCALE,
                "repeats": 1,
                "partitions": partitions,
            }
            answer = run_module("dovetail_bench.contest", [json.dumps(spec)]).answer
            held, arrow = answer["held_bytes_per_tuple"], answer["arrow_bytes_per_tuple"]
            report.add(
                workload=workload,
                groups=partitions,
                tuples=answer["tuples"],
                held_bytes_per_tuple=held,
                arrow_bytes_per_tuple=arrow,
                ratio=held / arrow,
            )
            if partitions == 300:
                report.goal(f"{workload}, times the Arrow size", held / arrow, 2.0, at_most=True)
    report.finish(as_json=flags.json)


if __name__ == "__main__":
    main()
