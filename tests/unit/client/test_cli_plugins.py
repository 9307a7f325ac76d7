"""Commands that other packages add to the command line."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dovetail import cli

ROOT = Path(__file__).resolve().parents[3]


def declared() -> list[EntryPoint]:
    """What pyproject.toml has; what is installed may be older."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = document["project"]["entry-points"][cli.PLUGINS]
    return [EntryPoint(name, value, cli.PLUGINS) for name, value in found.items()]


def test_the_experiments_are_a_command_that_bench_adds(capsys: pytest.CaptureFixture[str]) -> None:
    """Added twice it is there once, and it runs like every other command."""
    cli.add_plugins(declared())
    cli.add_plugins(declared())
    assert [g.name for g in cli.app.registered_groups].count("experiments") == 1
    assert cli.run_command(["experiments", "list", "--json"]) == 0
    assert "s4-fig11" in json.loads(capsys.readouterr().out)
    assert cli.run_command(["experiments", "run", "no-such"]) == 2
    assert "no experiment" in capsys.readouterr().err
