"""Puts what the distributed experiments found into docs/experiments.md.

Reads docs/experiments/*.json and rewrites what stands between the page's `<!-- name -->` and
`<!-- /name -->` marks: `statements` is the table of the paper's statements, the name of an
experiment its plot and totals. Words stay as they are, and so do places whose experiment was not
run yet.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dovetail_bench.experiments import DISTRIBUTED

PAGE = Path("docs/experiments.md")
FOLDER = Path("docs/experiments")
STATEMENTS = "statements"
_MARKED = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", re.DOTALL)


def filled(page: str, folder: Path = FOLDER) -> str:
    """The page with every marked place written anew for which there are figures."""
    found = {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name in DISTRIBUTED
        if (path := folder / f"{name}.json").exists()
    }

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name == STATEMENTS and found:
            text = _statements(found)
        elif name in found:
            plot = f"![{found[name]['title']}]({FOLDER.name}/{name}.png)"
            text = f"{plot}\n\n{_totals(found[name]['totals'])}"
        else:
            return match[0]
        return f"<!-- {name} -->\n{text}\n<!-- /{name} -->"

    return _MARKED.sub(fill, page)


def _statements(found: dict[str, dict[str, Any]]) -> str:
    lines = ["| figure | statement | paper | here | |", "| --- | --- | --- | --- | --- |"]
    for name, experiment in found.items():
        figure = name.removeprefix("s4-").removeprefix("fig")
        for claim in experiment["claims"]:
            verdict = "*holds*" if claim["holds"] else "*does not hold*"
            cells = (figure, claim["claim"], claim["paper"], claim["ours"], verdict)
            lines.append("| " + " | ".join(cells) + " |")
    machine = next(iter(found.values()))["machine"]
    on = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}"
    return "\n".join([*lines, "", f"Measured on: {on}."])


def _totals(totals: list[dict[str, Any]]) -> str:
    lines = [
        "| series | results in the run | stopped | moves | moved | pushes "
        "| left for the clean-up | clean-up |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for t in totals:
        stopped = t["stopped_at_minute"]
        cells = (
            t["series"],
            f"{t['results_run']:,}",
            "–" if stopped is None else f"minute {stopped:.1f}",
            str(t["moves"]),
            f"{t['moved_bytes'] / 1e6:.1f} MB" if t["moves"] else "–",
            _by_processor(t["pushes_by_processor"], "{}") if t["pushes"] else "0",
            _left(t),
            _cleanup(t),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _left(total: dict[str, Any]) -> str:
    whole = f"{total['results_left']:,}"
    if "left_by_processor" not in total:
        return whole
    return f"{whole}: {_by_processor(total['left_by_processor'], '{:,}')}"


def _cleanup(total: dict[str, Any]) -> str:
    if not total["results_left"]:
        return "–"
    if "cleanup_ms_by_processor" in total:
        each = _by_processor(total["cleanup_ms_by_processor"], "{:,.0f} ms")
        return f"{each}; together {total['cleanup_together_ms']:,.0f} ms"
    return f"{total['cleanup_ms']:,.0f} ms"


def _by_processor(values: dict[str, Any], form: str) -> str:
    return ", ".join(f"{p} {form.format(v)}" for p, v in sorted(values.items()))
