"""What the runs of a figure found, kept in docs/experiments/NAME.json.

A file has the totals and claims of every run, so that ranges can be told, and the plotted points of
the first. Runs with other settings than the newest are dropped: they are of another experiment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dovetail_bench.experiments.experiment import Experiment

FOLDER = Path("docs/experiments")
POINTS_MAX = 120
"""Of a line: what a plot of 560 pixels can show, and 20 kilobytes a figure."""

LOAD = "load_average_before"
_NUMBER = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?")


def load(name: str, folder: Path = FOLDER) -> dict[str, Any] | None:
    """What is stored of a figure; None if it was never run."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def add(found: Experiment, took_s: float, folder: Path = FOLDER) -> dict[str, Any]:
    """Store one more run of a figure."""
    told = found.to_dict()
    settings = {k: v for k, v in told["settings"].items() if k != LOAD}
    settings = json.loads(json.dumps(settings))
    run = {
        "took_s": round(took_s, 1),
        LOAD: round(told["settings"].get(LOAD, 0.0), 2),
        "totals": told["totals"],
        "claims": told["claims"],
    }
    before = load(found.name, folder)
    if before is None or before["settings"] != settings:
        head = {"name": found.name, "title": found.title, "settings": settings}
        before = {**head, "machine": told["machine"], "runs": [], "rows": thinned(told["rows"])}
    before["runs"].append(run)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(before, separators=(",", ":"))
    (folder / f"{found.name}.json").write_text(text + "\n", encoding="utf-8")
    return before


def thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `POINTS_MAX` points of every line, the first and the last among them, as plotted."""
    kept = []
    for series in dict.fromkeys(row["series"] for row in rows):
        points = [row for row in rows if row["series"] == series]
        count = min(len(points), POINTS_MAX)
        last = len(points) - 1
        kept += [points[round(i * last / max(1, count - 1))] for i in range(count)]
    return [{k: v for k, v in row.items() if not isinstance(v, dict)} for row in kept]


def ranged(texts: Sequence[str]) -> str:
    """One text for the texts of several runs: numbers that differ become `least … most`.

    Texts that differ in more than numbers stand beside each other.
    """
    if len({_NUMBER.sub("#", text) for text in texts}) > 1:
        return " / ".join(dict.fromkeys(texts))
    slots = list(zip(*(_NUMBER.findall(text) for text in texts), strict=True))
    spans = iter([_span(slot) for slot in slots])
    return _NUMBER.sub(lambda _: next(spans), texts[0])


def _span(numbers: Sequence[str]) -> str:
    ordered = sorted(dict.fromkeys(numbers), key=lambda text: float(text.replace(",", "")))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} … {ordered[-1]}"


def verdict(claims: Sequence[dict[str, Any]]) -> str:
    """Of a claim in every run: holds, set, noise or does not hold.

    A difference that changes its sign, or that runs differ by more than it is large, is noise
    whatever the runs say by themselves; one run cannot tell.
    """
    if len(claims) == 1:
        return _unanimous(claims[0]) + " (in one run)"
    differences = [c["difference"] for c in claims if c["difference"] is not None]
    if len(differences) == len(claims):
        spread = max(differences) - min(differences)
        if min(differences) <= 0 <= max(differences) or spread > abs(median(differences)):
            return "*does not hold* (noise)"
    count = sum(c["holds"] for c in claims)
    if 0 < count < len(claims):
        return f"*does not hold* (only in {count} of {len(claims)} runs)"
    return _unanimous(claims[0])


def _unanimous(claim: dict[str, Any]) -> str:
    if not claim["holds"]:
        return "*does not hold*"
    return f"*set* (by {claim['set_by']})" if claim["set_by"] else "*holds*"
