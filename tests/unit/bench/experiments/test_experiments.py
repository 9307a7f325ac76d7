"""The experiments run, tell and draw what they promise; here with a fraction of the rows."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from dovetail_bench import experiments
from dovetail_bench.experiments import disk_runs
from dovetail_proto.errors import ConfigError


@pytest.mark.parametrize("name", sorted(experiments.NAMES.keys() - experiments.DISTRIBUTED))
def test_an_experiment_tells_its_series_and_draws_them(name: str, tmp_path: Path) -> None:
    """Rows of every series, totals that add up to the same join, claims, a PNG."""
    module = experiments.find(name)
    with (
        patch.object(disk_runs, "ROWS", 6_000),
        patch.object(disk_runs, "ROWS_PER_S", 100_000),
        patch.object(disk_runs, "LIMIT_BYTES", 6 << 20),
        patch.object(disk_runs, "SPILL_ABOVE_RATIO", 0.2),
    ):
        found = module.run()
    module.plot(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    told = found.to_dict()
    assert told["name"] == name
    assert {r["series"] for r in told["rows"]} == {t["series"] for t in told["totals"]}
    assert len({t["results_run"] + t["results_left"] for t in told["totals"]}) == 1
    assert told["settings"]["times_the_papers_rate"] >= 1000
    assert all(c["bar"] for c in told["claims"])
    pushed = [t["pushes"] for t in told["totals"] if not t["series"].startswith("0%")]
    assert min(pushed) > 0


def test_an_unknown_experiment_is_refused_with_the_known_ones() -> None:
    """The remedy lists them."""
    with pytest.raises(ConfigError, match="no experiment 's4-fig99'") as e:
        experiments.find("s4-fig99")
    assert "s4-fig11" in e.value.remedy
