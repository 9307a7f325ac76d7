"""Puts what the experiments found into docs/experiments.md.

Reads docs/experiments/*.json and rewrites what stands between the page's `<!-- name -->` and
`<!-- /name -->` marks: `statements-one` and `statements-cluster` are the tables of the paper's
statements, the name of an experiment its plot and totals. Words stay as they are, and so do places
whose experiment was not run yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail_bench.experiments import DISTRIBUTED, NAMES
from dovetail_bench.experiments.stored import FOLDER, LOAD, load, ranged, verdict

PAGE = Path("docs/experiments.md")
SCALE = "minute_of_the_paper_s"
_MARKED = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", re.DOTALL)


def filled(page: str, folder: Path = FOLDER) -> str:
    """The page with every marked place written anew for which there are figures."""
    found = {name: one for name in NAMES if (one := load(name, folder)) is not None}
    tables = {
        "statements-one": [found[name] for name in found if name not in DISTRIBUTED],
        "statements-cluster": [found[name] for name in found if name in DISTRIBUTED],
    }

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if tables.get(name):
            text = _statements(tables[name])
        elif name in found:
            plot = f"![{found[name]['title']}]({FOLDER.name}/{name}.png)"
            text = f"{plot}\n\n{_totals(found[name]['runs'])}{_told(found[name]['settings'])}"
        else:
            return match[0]
        return f"<!-- {name} -->\n{text}\n<!-- /{name} -->"

    return _MARKED.sub(fill, page)


def _statements(found: list[dict[str, Any]]) -> str:
    lines = [_row("figure", "statement", "paper", "here", "bar", "runs", ""), _row(*["---"] * 7)]
    for experiment in found:
        figure = experiment["name"].removeprefix("s4-").removeprefix("fig")
        runs = experiment["runs"]
        for claims in zip(*(run["claims"] for run in runs), strict=True):
            one = claims[0]
            ours = ranged([c["ours"] for c in claims])
            cells = (figure, one["claim"], one["paper"], ours, one["bar"], str(len(runs)))
            lines.append(_row(*cells, verdict(claims)))
    machine = found[0]["machine"]
    on = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}"
    busiest = max(run[LOAD] for one in found for run in one["runs"])
    load = f" The machine's load before a figure was at most {busiest:.1f}." if busiest else ""
    scales = sorted({s for one in found if (s := one["settings"].get(SCALE)) is not None})
    scale = f" A minute of the paper took {', '.join(map(str, scales))} s." if scales else ""
    return "\n".join([*lines, "", f"Measured on: {on}.{load}{scale}"])


def _totals(runs: list[dict[str, Any]]) -> str:
    columns = [_cells(totals) for totals in zip(*(run["totals"] for run in runs), strict=True)]
    lines = [_row(*columns[0]), _row("---", *["---:"] * (len(columns[0]) - 1))]
    return "\n".join([*lines, *(_row(*one.values()) for one in columns)])


def _told(settings: dict[str, Any]) -> str:
    told = settings.get("m_query_bytes") or {}
    each = [f"{series} {size / 1e6:.1f} MB" for series, size in told.items()]
    return f"\n\nM_query, as it was told: {', '.join(each)}." if each else ""


def _cells(totals: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Header to cell of one line, with the ranges of all runs."""
    each = [_cluster_cells(t) if "moves" in t else _disk_cells(t) for t in totals]
    series = each[0]["series"]
    return {head: ranged([one[head] for one in each]) for head in each[0]} | {"series": series}


def _disk_cells(total: dict[str, Any]) -> dict[str, str]:
    return {
        "series": total["series"],
        "results in the run": f"{total['results_run']:,}",
        "run": f"{total['run_s']:.1f} s",
        "pushes": str(total["pushes"]),
        "peak memory": f"{total['peak_held_bytes'] / 1e6:.1f} MB",
        "left for the clean-up": f"{total['results_left']:,}",
        "clean-up": f"{total['cleanup_ms']:,.0f} ms" if total["results_left"] else "–",
    }


def _cluster_cells(total: dict[str, Any]) -> dict[str, str]:
    stopped = total["stopped_at_minute"]
    return {
        "series": total["series"],
        "results in the run": f"{total['results_run']:,}",
        "stopped": "–" if stopped is None else f"minute {stopped:.1f}",
        "moves": str(total["moves"]),
        "moved": f"{total['moved_bytes'] / 1e6:.1f} MB" if total["moves"] else "–",
        "pushes": _by_processor(total["pushes_by_processor"], "{}") if total["pushes"] else "0",
        "left for the clean-up": _left(total),
        "clean-up": _cleanup(total),
    }


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


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
