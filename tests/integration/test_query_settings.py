"""θ_m, θ_t, what is kept: the query's own; where it says nothing, the manager's or the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

import dovetail
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_proto.admin import Submit
from dovetail_proto.transport import call_metadata, open_channel
from dovetail_proto.wire import admin as wire
from kit.cli import dovetail as run_command
from kit.clusters import small_cluster

SQL = "SELECT a.k FROM s a JOIN s b ON a.k = b.k"
MANAGERS = {
    "push_fraction": 0.2,
    "spill_above_ratio": 0.5,
    "inactive_after_s": 7.0,
    "productivity_half_life_s": 3.0,
    "keep_results_s": 7200.0,
    "keep_results_bytes": 6_000_000,
}
OWN: dict[str, Any] = {
    "push_fraction": 0.4,
    "spill_above_ratio": 0.6,
    "inactive_after_s": 0.0,
    "productivity_half_life_s": 0.0,
    "keep_results_s": 0.0,
    "keep_results_bytes": 0,
}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in OWN.items()]


def test_a_query_has_its_own_settings_and_else_the_managers(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Whoever submits, by whichever face, and whatever the submitter's own settings are."""
    (tmp_path / "q.sql").write_text(SQL)
    monkeypatch.setenv("DOVETAIL_PUSH_FRACTION", "90%")
    monkeypatch.setenv("DOVETAIL_SPILL_ABOVE_RATIO", "95%")
    kept = {name: value for name, value in MANAGERS.items() if name.startswith("keep")}
    settings = AdaptationSettings(**{n: v for n, v in MANAGERS.items() if n not in kept})
    with small_cluster(processors=1, here="manager", adaptation=settings, **kept) as local:
        cluster = local.cluster
        cluster.stream("s", pa.schema([("k", pa.int64())]))
        monkeypatch.setenv("DOVETAIL_URL", local.url)
        monkeypatch.setenv("DOVETAIL_TOKEN", local.token)

        cluster.submit(SQL, name="local-python")
        cluster.submit(SQL, name="local-python-own", **OWN)
        with dovetail.connect() as elsewhere:
            elsewhere.submit(SQL, name="python")
        head = {"Authorization": f"Bearer {local.token}"}
        for name, given in {"rest": {}, "rest-own": OWN}.items():
            body = {"name": name, "sql": SQL, **given}
            httpx.post(
                f"{local.url}/v1/queries", json=body, headers=head, timeout=60
            ).raise_for_status()
        with open_channel(local.address, local.security) as channel:
            submit = channel.unary_unary("/dovetail.v1.Admin/Submit")
            for name, given in {"grpc": {}, "grpc-own": OWN}.items():
                asked = wire.encode(Submit(name, SQL, **given))
                submit(asked, metadata=call_metadata(local.security))
        for name, flags in {"shell": [], "shell-own": FLAGS}.items():
            done = run_command("submit", tmp_path / "q.sql", "--name", name, *flags)
            assert done.code == 0, done.err

        queries = {q.name: q for q in cluster.queries()}
        assert len(queries) == 9
        for name, status in queries.items():
            wanted = OWN if name.endswith("-own") else MANAGERS
            assert {n: getattr(status, n) for n in wanted} == wanted, name
        shown = run_command("status", "shell").out
        assert "for 7200 s, 6.0 MB of each log" in shown
        assert "of each log" not in run_command("status", "shell-own").out
        counted = cluster.submit(SQL, name="counted", counting=True).status()
        assert (counted.keep_results_s, counted.keep_results_bytes) == (0, 0)
