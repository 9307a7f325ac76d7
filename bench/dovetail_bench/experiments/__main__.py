"""Runs the distributed experiments in order: `python -m dovetail_bench.experiments [NAME …]`.

Each leaves its JSON and its plot in docs/experiments/, and its figures in docs/experiments.md. All
of them take about half an hour on an idle machine; without names all are run. `--page` runs none
and only writes the page anew from the JSON files.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from dovetail_bench.experiments import DISTRIBUTED, find
from dovetail_bench.experiments.page import FOLDER, PAGE, filled


def main(arguments: list[str]) -> int:
    """Run, write, and say what holds."""
    names = [] if arguments == ["--page"] else arguments or list(DISTRIBUTED)
    modules = {name: find(name) for name in names}  # a slip is refused before anything runs
    for name, module in modules.items():
        began = time.monotonic()
        print(f"{name}: {module.TITLE}", flush=True)
        found = module.run()
        FOLDER.mkdir(parents=True, exist_ok=True)
        module.plot(found, FOLDER / f"{name}.png")
        text = json.dumps(found.to_dict())
        Path(FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        for claim in found.claims:
            print(f"  {'holds' if claim.holds else 'does not hold'}: {claim.claim}: {claim.ours}")
        print(f"  took {time.monotonic() - began:.0f} s", flush=True)
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if not names:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
