"""The pages name what there is: methods and parameters of Python, paths and methods of REST."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import dovetail
from dovetail.cluster import Cluster
from dovetail.local_cluster import LocalCluster
from dovetail.queries import Query
from dovetail.streams import Stream
from kit.rest_server import running

DOCS = Path(__file__).resolve().parents[2] / "docs"
SECTIONS = {"Cluster": Cluster, "Stream": Stream, "Query": Query}
OTHERS = (Query, dovetail.Results, dovetail)
"""Whose calls a section also names: what its own methods return."""

CALL = re.compile(r"`(?:\w+\.)?([a-z_]+)\(([^`]*)\)`")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_call_of_the_python_page_exists_with_its_parameters(section: str) -> None:
    """A name in `code(…)` is a method of the section's class, each `word=` a parameter of it."""
    page = (DOCS / "python.md").read_text()
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    calls = CALL.findall(text)
    assert len(calls) >= 3
    for name, arguments in calls:
        owners = (SECTIONS[section], *OTHERS)
        method = next((getattr(o, name) for o in owners if hasattr(o, name)), None)
        assert method is not None, f"{name}() is no method"
        parameters = inspect.signature(method).parameters
        for word in re.findall(r"([a-z_]+)=", arguments):
            assert word in parameters, f"{name}() has no parameter {word!r}"


def test_the_parameters_that_the_python_page_lists_for_submit_exist() -> None:
    """They stand in one sentence."""
    page = (DOCS / "python.md").read_text()
    sentence = page.split("`submit` also takes ")[1].split("; see")[0]
    listed = {re.match(r"\w+", code)[0] for code in re.findall(r"`([^`]+)`", sentence)}  # type: ignore[index]
    assert listed <= set(inspect.signature(Cluster.submit).parameters)
    assert {"results", "spill", "policy"} <= listed


def test_the_local_cluster_of_the_python_page_takes_its_parameters() -> None:
    """In the example of a cluster that can be hurt."""
    page = (DOCS / "python.md").read_text()
    [call] = re.findall(r"LocalCluster\(([^)]+)\)", page)
    assert set(re.findall(r"(\w+)=", call)) <= set(inspect.signature(LocalCluster).parameters)


def test_the_admin_page_lists_the_paths_of_rest() -> None:
    """All of them, with their methods."""
    with running() as rest:
        described = rest.http.get("/openapi.json").json()["paths"]
    there = {(m.upper(), path) for path, methods in described.items() for m in methods}
    listed: set[tuple[str, str]] = set()
    for cell in re.findall(r"^\| (`[A-Z].*?`) \|", (DOCS / "admin.md").read_text(), re.MULTILINE):
        methods, stem = ["GET"], ""
        for code in re.findall(r"`([^`]+)`", cell):
            words = re.findall(r"[A-Z]+(?=[ ,])", code)
            methods = words or methods
            path = code.split()[-1]
            if path.startswith(("/v1", "/healthz", "/readyz", "/metrics")):
                stem = path.rpartition("/")[0]
            else:
                path = stem + path
            listed |= {(m, path) for m in methods}
    assert listed - there == set()
    assert {p for p in there - listed if p[1].startswith("/v1")} == set()
