"""constraints.txt lists every library that pyproject.toml asks for, by version and hash."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
REMEDY = "constraints.txt is out of date with pyproject.toml; run `make lock`, then `make test`"
LINE = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)"
)


def pins() -> dict[str, str]:
    """Name to version; a line that is anything but name, version and hashes is an error."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").replace(" \\\n   ", "")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, f"not a library by version and hash: {line}"
            found[match["name"]] = match["version"]
    return found


def test_every_library_of_pyproject_is_pinned_to_a_version_that_satisfies_it() -> None:
    """To run, for every extra, to develop and to build."""
    command = [sys.executable, ROOT / "deploy/requirements.py"]
    asked = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    pinned = pins()
    wrong = [
        f"{one}: {pinned.get(canonicalize_name(one.name), 'not listed')}"
        for one in map(Requirement, asked)
        if not one.specifier.contains(pinned.get(canonicalize_name(one.name), ""), prereleases=True)
    ]
    assert len(asked) > 30
    assert not wrong, REMEDY


def test_these_tests_run_with_the_versions_that_are_pinned() -> None:
    """Else the file would list what nobody has tried; and what a library asks for is listed too."""
    pinned = pins()
    installed = {canonicalize_name(one.name): one.version for one in distributions()}
    installed.pop("dovetail", None)
    wrong = {name: v for name, v in installed.items() if name in pinned and pinned[name] != v}
    assert not wrong, "the environment differs from constraints.txt; run `make setup`"
    unlisted = {
        need.name
        for one in distributions()
        if canonicalize_name(one.name) in pinned
        for need in map(Requirement, one.requires or ())
        if (need.marker is None or need.marker.evaluate({"extra": ""}))
        and canonicalize_name(need.name) not in pinned
    }
    assert not unlisted, REMEDY
