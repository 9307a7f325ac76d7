"""Experiments of the papers, one file per figure, on this implementation.

Every experiment is a module with `TITLE`, `run() -> Experiment` and `plot(experiment, path)`. The
papers' plots are not at hand: what is compared is what their text states.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dovetail_proto.errors import ConfigError

NAMES = {
    "s4-fig9": "s4_fig09",
    "s4-fig10": "s4_fig10",
    "s4-fig11": "s4_fig11",
    "s4-fig12": "s4_fig12",
}
"""Experiments by what a user calls them; the module is below this package."""


def find(name: str) -> Any:
    """The module of an experiment; ConfigError if there is none of this name."""
    if name not in NAMES:
        raise ConfigError(f"no experiment {name!r}", remedy=f"there are {', '.join(NAMES)}")
    return import_module(f"{__name__}.{NAMES[name]}")
