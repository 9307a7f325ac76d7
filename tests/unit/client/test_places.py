"""A run's folders: claimed before the first row, taken back if the run fails, never another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.generator import UniformWorkload
from dovetail.places import Places
from dovetail_bench.kernel_join import join_plan
from dovetail_proto.errors import OutputError, SpillError

PLAN = join_plan(UniformWorkload())
ONE = ("local",)


def test_folders_are_made_with_their_parents_and_given_back(tmp_path: Path) -> None:
    """All that was made goes, with whatever the run put in it."""
    output, spill = tmp_path / "a" / "b" / "out", tmp_path / "a" / "spill"
    places = Places.claim(output, str(spill), PLAN, may_push=True, workers=ONE)
    assert places.run_results is not None
    places.run_results.mkdir()
    (places.run_results / "x.parquet").write_bytes(b"half")
    assert (spill / "query.json").exists()
    places.give_back()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_that_was_there_stays_and_is_emptied(tmp_path: Path) -> None:
    """It is the user's; what is in it is not."""
    output = tmp_path / "out"
    output.mkdir()
    places = Places.claim(output, None, PLAN, may_push=True, workers=ONE)
    (output / "phase=run").mkdir()
    places.give_back()
    assert list(tmp_path.iterdir()) == [output]
    assert list(output.iterdir()) == []


def test_a_filled_output_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    """Also when the refusal is followed by giving back."""
    (tmp_path / "precious").write_text("years of work")
    with pytest.raises(OutputError, match="not empty"):
        Places.claim(tmp_path, None, PLAN, may_push=True, workers=ONE)
    assert (tmp_path / "precious").read_text() == "years of work"


def test_a_filled_spill_folder_is_refused_and_the_output_given_back(tmp_path: Path) -> None:
    """The output folder was made a moment before; it goes again."""
    spill = tmp_path / "spill"
    spill.mkdir()
    (spill / "precious").write_text("years of work")
    with pytest.raises(SpillError, match="not empty"):
        Places.claim(tmp_path / "out", str(spill), PLAN, may_push=True, workers=ONE)
    assert (spill / "precious").read_text() == "years of work"
    assert not (tmp_path / "out").exists()


def test_a_temporary_store_lies_beside_the_output_and_is_dropped(tmp_path: Path) -> None:
    """On the disk that is meant for data; a named one stays."""
    places = Places.claim(tmp_path / "out", None, PLAN, may_push=True, workers=ONE)
    assert places.spill_dir is not None
    assert Path(places.spill_dir).parent == tmp_path
    places.drop_temporary_store()
    assert {p.name for p in tmp_path.iterdir()} == {"out"}
    assert places.spill_dir is None

    named = Places.claim(None, str(tmp_path / "spill"), PLAN, may_push=True, workers=ONE)
    named.drop_temporary_store()
    assert (tmp_path / "spill" / "query.json").exists()


def test_every_worker_has_a_store_of_the_run(tmp_path: Path) -> None:
    """Below the folder that is named; a clean-up finds all of them."""
    names = ("local.0", "local.1")
    places = Places.claim(None, str(tmp_path / "spill"), PLAN, may_push=True, workers=names)
    assert [Path(s.root).name for s in places.worker_stores] == list(names)
    assert len({s.run for s in places.worker_stores}) == 1
    assert {s.id for s in places.stores()} == {s.id for s in places.worker_stores}


def test_without_pushes_there_is_no_store(tmp_path: Path) -> None:
    """And with `--output none` no folder at all."""
    places = Places.claim(None, None, PLAN, may_push=False, workers=ONE)
    assert places.worker_stores == ()
    assert places.run_results is None
    assert places.cleanup_results is None
    assert list(tmp_path.iterdir()) == []
