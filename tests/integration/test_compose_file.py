"""What belongs to the compose cluster and can be checked without Docker."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kit.cli import dovetail

ROOT = Path(__file__).resolve().parents[2]


def test_every_metric_of_the_dashboard_exists() -> None:
    """A renamed metric would leave an empty panel that nobody notices."""
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/dovetail.json").read_text())
    source = (ROOT / "manager/dovetail_manager/admin/metrics.py").read_text()
    used = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"dovetail_\w+", target["expr"])
    }
    assert used
    short = {re.sub(r"^dovetail_(processor_|query_|stream_)?|_total$", "", n) for n in used}
    assert {n for n in short if n not in source} == set()


def test_redis_of_the_compose_file_keeps_what_it_confirms() -> None:
    """The settings that docs/store.md demands are the ones it is started with."""
    text = (ROOT / "docker-compose.yml").read_text()
    for flag in (
        "--appendonly yes",
        "--appendfsync always",
        "--no-appendfsync-on-rewrite no",
        "--maxmemory-policy noeviction",
    ):
        assert f"- {flag}\n" in text


@pytest.mark.parametrize("count", ["0", "-1"])
def test_scaling_below_one_is_refused(count: str) -> None:
    """Before anybody is asked."""
    refused = dovetail("scale", "--", count)
    assert refused.code == 2
    assert "keep at least one" in refused.err


def test_scaling_without_an_engine_says_what_to_do_instead() -> None:
    """Clusters without Docker have processors, too."""
    refused = dovetail("scale", "2", environment={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert refused.code == 2
    assert "no Docker engine answers" in refused.err
    assert "dovetail leave" in refused.err
