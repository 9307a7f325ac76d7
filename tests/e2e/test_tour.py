"""docs/tour.md does what it says: its commands are run as they stand on the page, in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cli import dovetail
from kit.cluster_faults import until

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""What a reader types. Blocks without `sh` are what this test has done already: the set-up."""

FREE_PORTS = {"DOVETAIL_LISTEN": "127.0.0.1:0", "DOVETAIL_REST": "127.0.0.1:0"}
"""Somebody may have a cluster on the usual ones."""

BLOCK_TIMEOUT_S = 600
"""A block has several commands, each of which takes seconds on a busy machine."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working folder with the examples; a cluster that is left in it is ended."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    yield tmp_path
    if (tmp_path / ".dovetail").exists():
        dovetail("down", "--force", cwd=tmp_path)


def test_the_tour_moves_spills_cleans_up_and_is_exact(folder: Path) -> None:
    """Every block of the page ends well, and what the page promises is in its output."""
    said: dict[str, str] = {}
    for block in BLOCK.findall((ROOT / "docs" / "tour.md").read_text(encoding="utf-8")):
        said[block] = _run(block, folder)
        if "dovetail moves" in block:
            until(lambda b=block: "completed" in _run(b, folder), "the manager evened out")

    def output_of(command: str) -> str:
        return next(text for block, text in said.items() if command in block)

    assert "went to disk" in output_of("dovetail close")
    assert re.search(r"[1-9][\d,]* results of [1-9]", output_of("dovetail cleanup"))
    assert "missing here: 0; surplus here: 0" in output_of("check_with_duckdb")
    assert "ended: p1, p2, p3, manager" in output_of("dovetail down")


def _run(block: str, folder: Path) -> str:
    """What a block prints; fails if a command of it fails."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=folder,
        env={**os.environ, **FREE_PORTS, "PATH": programs, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=BLOCK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout
