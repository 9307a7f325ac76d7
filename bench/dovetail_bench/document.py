"""Puts measured figures into docs/benchmarks.md: `python -m dovetail_bench.document`.

Reads the JSON files of full runs in .benchmarks/ and rewrites what stands between the page's
`<!-- name -->` and `<!-- /name -->` marks; the words around them are written by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dovetail_bench.report import FOLDER, show_value

PAGE = Path("docs/benchmarks.md")
_MARKED = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.DOTALL)


def main() -> None:
    """Fill in every marked place for which there are figures."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_MARKED.sub(_filled, page), encoding="utf-8")


def _filled(match: re.Match[str]) -> str:
    name = match[1]
    if name == "machine":
        text = _machine()
    else:
        path = FOLDER / f"{name}.json"
        text = _tables(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    return match[0] if text is None else f"<!-- {name} -->\n{text}\n<!-- /{name} -->"


def _machine() -> str | None:
    measured = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(FOLDER.glob("*.json"))]
    full = [m for m in measured if m["full"]]
    if not full:
        return None
    on = full[0]["machine"]
    packages = ", ".join(f"{name} {found}" for name, found in on["packages"].items())
    days = sorted({m["measured_at"][:10] for m in full})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return (
        f"{on['processor']}, {on['cores']} cores, {on['memory_bytes'] / 1e9:.0f} GB of memory, "
        f"{on['system']}, Python {on['python']}; {packages}. Measured {when}."
    )


def _tables(measured: dict[str, Any]) -> str:
    return "\n\n".join(_table(rows) for rows in (measured["rows"], measured["goals"]) if rows)


def _table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = [all(isinstance(r.get(c, 0), int | float) for r in rows) for c in columns]
    lines = [
        "| " + " | ".join(c.replace("_", " ") for c in columns) + " |",
        "| " + " | ".join("---:" if n else "---" for n in numeric) + " |",
    ]
    for row in rows:
        lines.append("| " + " | ".join(show_value(row.get(c, "")) for c in columns) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
