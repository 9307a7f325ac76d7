"""lock.py: write constraints.txt, the exact libraries that are installed, by version and hash.

pip itself says which versions satisfy pyproject.toml together, and which files its package index
has of each. The file is good for every machine that Dovetail runs on, not only for this one:

- It names what any CPython from 3.11 on, on Linux or macOS, asks for, not only what this one does:
  the conditions of requirements (`; python_version < "3.12"`) are tried for all of `MACHINES`.
- It has the hashes of every file of a version that such a machine may choose.

It holds names, versions and hashes, and no address: where files come from is pip's own setting.
Listing an index's files is the one thing that pip has no command for; `hashes_of` borrows its code.
"""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._internal.commands.download import DownloadCommand
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "constraints.txt"
# Installed by `make setup` beside what pyproject.toml asks for: pip, what builds an sdist, and what
# hatchling asks for when it makes an editable installation.
TOOLS = ("pip", "setuptools", "editables")
PYTHONS = ("3.11.0", "3.11.14", "3.12.12", "3.13.11", "3.14.2")
SYSTEMS = (
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "x86_64"),
    ("darwin", "Darwin", "arm64"),
)
MACHINES = [
    {
        "implementation_name": "cpython",
        "implementation_version": python,
        "platform_python_implementation": "CPython",
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "os_name": "posix",
        "sys_platform": sys_platform,
        "platform_system": system,
        "platform_machine": machine,
        "platform_release": "",
        "platform_version": "",
    }
    for python, (sys_platform, system, machine) in itertools.product(PYTHONS, SYSTEMS)
]
HEADER = """\
# The libraries that Dovetail was tested with: pip's constraints, made by `make lock`.
# `make setup` and the images install these and refuse files with other hashes.
"""


def wanted() -> list[str]:
    """What pyproject.toml asks for: to run, for extras, to develop and to build."""
    command = [sys.executable, ROOT / "deploy/requirements.py"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def resolve(requirements: list[str]) -> list[dict[str, Any]]:
    """The metadata of all that pip would install here for `requirements`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(requirements), encoding="utf-8")
        words = ["install", "--quiet", "--quiet", "--dry-run", "--ignore-installed"]
        command = [sys.executable, "-m", "pip", *words, "--report", report, "--requirement", listed]
        subprocess.run(command, check=True)
        return [one["metadata"] for one in json.loads(report.read_text())["install"]]


def holds_somewhere(requirement: Requirement, extra: str) -> bool:
    """Whether one of `MACHINES` needs `requirement` of a library that is wanted with `extra`."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**one, "extra": extra}) for one in MACHINES)


def missing_from(packages: dict[str, dict[str, Any]], top: list[str]) -> list[str]:
    """What machines other than this one need for `top` and is not among `packages`."""
    missing: dict[str, str] = {}
    todo = [(Requirement(text), "") for text in top]
    seen = set()
    while todo:
        requirement, extra = todo.pop()
        name = canonicalize_name(requirement.name)
        if not holds_somewhere(requirement, extra):
            continue
        if name not in packages:
            missing[name] = f"{requirement.name}{requirement.specifier}"
            continue
        needs = [Requirement(text) for text in packages[name].get("requires_dist", ())]
        for its_extra in {"", *requirement.extras}:
            if (name, its_extra) not in seen:
                seen.add((name, its_extra))
                todo += [(need, its_extra) for need in needs]
    return list(missing.values())


def closed(requirements: list[str]) -> dict[str, str]:
    """Name to version of all that `requirements` need, here and on the other machines."""
    while True:
        packages = {canonicalize_name(one["name"]): one for one in resolve(requirements)}
        missing = missing_from(packages, requirements)
        if not missing:
            return {name: one["version"] for name, one in packages.items()}
        print("lock: other machines need", *missing)
        requirements = [*requirements, *missing]


def runs_here(tag: Tag) -> bool:
    """Whether a wheel with `tag` may be installed by one of `MACHINES`."""
    if not tag.platform.startswith(("any", "linux", "manylinux", "musllinux", "macosx")):
        return False
    if not tag.interpreter.startswith("cp"):
        return tag.interpreter.startswith("py3")
    number = tag.interpreter.removeprefix("cp3")
    return tag.abi in ("abi3", "none") or (tag.abi == tag.interpreter and int(number or 0) >= 11)


def usable(filename: str, version: str) -> bool:
    """Whether `filename` is of `version` and for one of `MACHINES`; an sdist is for all."""
    try:
        if filename.endswith(".whl"):
            _, its, _, tags = parse_wheel_filename(filename)
            return str(its) == version and any(runs_here(tag) for tag in tags)
        return filename.endswith((".tar.gz", ".zip")) and (
            str(parse_sdist_filename(filename)[1]) == version
        )
    except ValueError:  # a name from before there were rules for names
        return False


def hashes_of(versions: dict[str, str]) -> Iterable[tuple[str, str, list[str]]]:
    """For every name: its version and the hashes of its usable files, from pip's own index."""
    command = DownloadCommand("download", "")
    options, _ = command.parse_args([])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        for name, version in sorted(versions.items()):
            pages = [
                finder._link_collector.fetch_response(Link(address))
                for address in finder.search_scope.get_index_urls_locations(name)
            ]
            links = [link for page in pages if page is not None for link in parse_links(page)]
            hashes = {
                f"{link.hash_name}:{link.hash}"
                for link in links
                if link.hash and not link.is_yanked and usable(link.filename, version)
            }
            if not hashes:
                raise SystemExit(f"lock: the index gives no hash for {name} {version}")
            yield name, version, sorted(hashes)


def main() -> None:
    """Resolve, list, write."""
    logging.disable(logging.WARNING)
    blocks = [
        " \\\n    ".join([f"{name}=={version}", *(f"--hash={one}" for one in hashes)])
        for name, version, hashes in hashes_of(closed([*wanted(), *TOOLS]))
    ]
    TARGET.write_text(HEADER + "\n".join(blocks) + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {len(blocks)} libraries")


if __name__ == "__main__":
    main()
