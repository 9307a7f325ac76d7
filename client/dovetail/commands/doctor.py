"""`dovetail doctor`: what Dovetail finds on this machine, and whether it can work with it."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from dovetail.quantities import format_bytes
from dovetail.tables import console, print_facts
from dovetail_proto.cores import usable_cores
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.ids import ProcessorId, process_of

PACKAGES = ("dovetail", "duckdb", "numba", "numpy", "pyarrow", "sqlglot", "pyspark")
OPTIONAL = frozenset({"pyspark"})
"""Without it clean-ups are done on this machine."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is there; None stands for absent."""

    python: str
    packages: dict[str, str | None]
    cores: int
    memory_bytes: int
    memory_free_bytes: int
    temporary_folder: str
    temporary_free_bytes: int
    kernel_cache: str
    kernel_cache_writable: bool
    java: str | None  # only the clean-up on Spark needs one
    java_remedy: str  # "" if there is one
    cluster: str | None  # the one that commands here would speak to, and how it is
    cluster_problems: list[str]  # empty if it is well, or if there is none

    def problems(self) -> list[str]:
        """What keeps Dovetail from working well, each with its remedy."""
        found = [
            f"package {name} is missing: run `make setup`"
            for name, there in self.packages.items()
            if there is None and name not in OPTIONAL
        ]
        if not self.kernel_cache_writable:
            found.append(
                f"{self.kernel_cache} cannot be written, so kernels are compiled at every start: "
                "set NUMBA_CACHE_DIR to a folder that can"
            )
        return [*found, *self.cluster_problems]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show interpreter, packages, memory, caches, Java and cluster; end with 1 on a problem."""
    findings = look()
    if as_json:
        print(json.dumps({**asdict(findings), "problems": findings.problems()}))
    else:
        _print(findings)
    if findings.problems():
        raise typer.Exit(1)


def look() -> Findings:
    """Look at this machine and this interpreter."""
    import psutil

    from dovetail_proto.kernel_cache import cache_folder

    memory = psutil.virtual_memory()
    folder = tempfile.gettempdir()
    cache = cache_folder()
    java, remedy = _java()
    cluster, cluster_problems = _cluster()
    return Findings(
        python=f"{platform.python_version()} at {sys.executable}",
        packages={name: _version(name) for name in PACKAGES},
        cores=usable_cores(),
        memory_bytes=int(memory.total),
        memory_free_bytes=int(memory.available),
        temporary_folder=folder,
        temporary_free_bytes=shutil.disk_usage(folder).free,
        kernel_cache=str(cache),
        kernel_cache_writable=writable(cache),
        java=java,
        java_remedy=remedy,
        cluster=cluster,
        cluster_problems=cluster_problems,
    )


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def writable(folder: Path) -> bool:
    """Whether files can be made there; the folder is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _java() -> tuple[str | None, str]:
    """The Java that Spark would use, or None and what to do; only Spark needs one."""
    from dovetail_pipeline.spark.java import find_java

    try:
        found = find_java()
    except ConfigError as e:
        return None, str(e)
    return f"{found.version} at {found.home} (from {found.origin})", ""


def _cluster() -> tuple[str | None, list[str]]:
    """The cluster that settings or this folder name, and what is wrong with it."""
    from dovetail.connecting import connect, is_known
    from dovetail.settings import load
    from dovetail.upkeep import MANAGER, left_cluster
    from dovetail_proto.admin import processor_state

    missing: list[str] = []
    try:
        if not is_known():
            return None, []
        loaded = load()
        left = None if loaded.origins["url"] != "default" else left_cluster(loaded.settings)
        missing = [] if left is None else left.missing
        with connect() as cluster:
            status, queries = cluster.status(), cluster.queries()
    except DovetailError as e:
        dead = "dead: its manager has ended" if MANAGER in missing else "does not answer"
        return f"{dead}, see below", [f"the cluster: {e}", *map(_ended, missing)]
    alive = sum(p.state == "alive" for p in status.processors)
    found = f"{cluster.url}, version {status.version}, {alive} processors alive"
    ours = _version("dovetail")
    problems = []
    if status.version != ours:
        problems.append(
            f"the cluster is of version {status.version}, this is {ours}: install the same"
        )
    problems += [
        f"processor {p.name} is dead: {p.cause}: "
        + (f"`dovetail restart {process}`" if process in missing else "start it again")
        + " brings it back, without what it held in memory"
        for p in status.processors
        for process in (process_of(ProcessorId(p.name)),)
        if p.state == "dead"
    ]
    problems += [
        _ended(name)
        for name in missing
        if processor_state(status.processors, name) not in ("dead", "left")
    ]
    problems += [
        f"query {q.name} has failed: {q.cause}: what it found so far stays (`dovetail results "
        f"{q.name}`); `dovetail drop {q.name}`, then submit it and feed its streams again"
        for q in queries
        if q.state == "failed"
    ]
    return found, problems


def _ended(name: str) -> str:
    """Of a process of `up` that has ended, as nobody asked it to."""
    return f"{name} has ended, see its log: `dovetail restart {name}` starts it again"


def _print(findings: Findings) -> None:
    cache = "writable" if findings.kernel_cache_writable else "cannot be written"
    memory, free = format_bytes(findings.memory_bytes), format_bytes(findings.memory_free_bytes)
    facts = {
        "python": findings.python,
        "packages": ", ".join(f"{n} {v or 'absent'}" for n, v in findings.packages.items()),
        "cores": str(findings.cores),
        "memory": f"{memory}, {free} free",
        "temporary folder": f"{findings.temporary_folder}, "
        f"{format_bytes(findings.temporary_free_bytes)} free",
        "kernel cache": f"{findings.kernel_cache}, {cache}",
        "java": findings.java or f"none: {findings.java_remedy}",
        "cluster": findings.cluster or "none here: `dovetail up` starts one",
    }
    print_facts(facts)
    out = console()
    for problem in findings.problems():
        out.print(f"problem: {problem}", style="bold red")
    if not findings.problems():
        out.print("all is well", style="green")
