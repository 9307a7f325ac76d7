"""Experiments of the papers, one file per figure, on this implementation, and one of our own.

Every experiment is a module with `TITLE`, `run() -> Experiment` and `plot(experiment, path)`. The
papers' plots are not at hand: what is compared is what their text states.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dovetail_proto.errors import ConfigError

NAMES = {
    "s4-fig6": "s4_fig06",
    "s4-fig7": "s4_fig07",
    "s4-fig9": "s4_fig09",
    "s4-fig10": "s4_fig10",
    "s4-fig11": "s4_fig11",
    "s4-fig12": "s4_fig12",
    "half-life": "half_life",
    "s4-fig14": "s4_fig14",
    "s4-fig15": "s4_fig15",
    "s4-fig16": "s4_fig16",
    "s4-fig17": "s4_fig17",
    "s4-fig20": "s4_fig20",
    "s4-fig21": "s4_fig21",
    "s4-cleanup": "s4_cleanup",
}
"""Experiments by what a user calls them; the module is below this package."""

DISTRIBUTED = (
    "s4-fig6",
    "s4-fig7",
    "s4-fig14",
    "s4-fig15",
    "s4-fig16",
    "s4-fig17",
    "s4-fig20",
    "s4-fig21",
    "s4-cleanup",
)
"""Those that start a cluster of processes; the others run in this one."""


def find(name: str) -> Any:
    """The module of an experiment; ConfigError if there is none of this name."""
    if name not in NAMES:
        raise ConfigError(f"no experiment {name!r}", remedy=f"there are {', '.join(NAMES)}")
    return import_module(f"{__name__}.{NAMES[name]}")
