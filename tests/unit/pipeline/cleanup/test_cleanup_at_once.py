"""Two clean-ups of one store at once, where no lock keeps them apart: on an object store."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from dovetail_pipeline.cleanup import CleanupResult, OpenFiles, conduct
from dovetail_pipeline.cleanup.conducting import work_on, worker_settings
from dovetail_proto.errors import DovetailError, Interrupted, OutputError
from dovetail_proto.spill_format import SpillStore
from kit.object_store import ObjectStore
from kit.spills import Spilled, make_plan, owed_results, read_bag, spill

OUTPUT = "objects://out"
SEEDS = range(6)


def spilled_store(root: Path, seed: int = 1) -> Spilled:
    """A closed store that owes about a hundred results."""
    rng = np.random.default_rng(seed)
    rows = 80
    tables = [
        pa.table({"k": rng.integers(0, rows // 2, rows), "n": np.arange(rows)}) for _ in range(3)
    ]
    plan = make_plan([t.schema for t in tables])
    epochs = [np.sort(rng.integers(0, 3, rows)) for _ in tables]
    return spill(root, plan, tables, epochs)


@pytest.fixture(scope="module")
def spilled(tmp_path_factory: pytest.TempPathFactory) -> Spilled:
    """What all tests clean up, each in a copy of its own."""
    return spilled_store(tmp_path_factory.mktemp("at_once") / "spill")


@pytest.fixture
def far(spilled: Spilled) -> Iterator[ObjectStore]:
    """An object store with the spilled state in it; small work makes several bins."""
    store = ObjectStore()
    store.upload(Path(spilled.store.root), "spill")
    with (
        patch("dovetail_pipeline.cleanup.ledger.open_storage", store.storage),
        patch.multiple("dovetail_pipeline.cleanup.bins", BIN_COST_MIN=20, FILE_COST=0),
    ):
        yield store


class Alone:
    """Does jobs one by one; says that it is `count`, which decides how many bins are planned."""

    def __init__(self, count: int, work: Any) -> None:
        self.count = count
        self._work = work

    def run(self, jobs: Any, done: Any, progress: Any) -> None:
        """As `Workers` has it."""
        for job in jobs:
            done(job, self._work(job, lambda results, bytes_read: None))


def clean(
    far: ObjectStore, count: int, *, spill: str = "objects://spill", output: str = OUTPUT
) -> CleanupResult:
    """One clean-up, of `count` workers by its own account."""

    @contextmanager
    def hands(catalog: Any, expected: Any, place: str | None) -> Iterator[Alone]:
        settings = worker_settings(catalog, place, 16 << 20)
        with OpenFiles(catalog, 16 << 20) as files:
            yield Alone(count, work_on(catalog, files, settings))

    return conduct(SpillStore.open_in(far.storage(spill)), output, hands)


def pass_on(verb: str, path: str) -> None:
    """Let a request pass."""


def die() -> None:
    """End a clean-up where it is."""
    raise KeyboardInterrupt


def at_request(number: int, act: Callable[[], None]) -> Callable[[str, str], None]:
    """Call `act` before this request of a clean-up for files of its own."""
    left = itertools.repeat(None, number - 1)

    def before(verb: str, path: str) -> None:
        if is_ours(path) and next(left, act) is act:
            act()

    return before


def is_ours(path: str) -> bool:
    """Whether a clean-up's own files are asked for, not the spilled state."""
    return path.startswith(("out", "spill/cleanup"))


def outcome(far: ObjectStore, count: int, **where: str) -> CleanupResult | DovetailError:
    """What a clean-up returned or raised."""
    try:
        return clean(far, count, **where)
    except DovetailError as e:
        return e


@pytest.mark.parametrize(
    ("count", "lives"), [(2, 1_000), (1, 12)], ids=["ends, cut differently", "dies, cut alike"]
)
def test_a_clean_up_that_begins_at_any_request_of_another_takes_over(
    far: ObjectStore, spilled: Spilled, tmp_path: Path, count: int, lives: int
) -> None:
    """Whether it ends or dies after some requests, the results are there once in the end."""
    fresh = dict(far.objects)
    firsts: list[CleanupResult | DovetailError] = []
    for at in itertools.count(1):
        far.objects = dict(fresh)
        seconds: list[CleanupResult | DovetailError] = []

        def second(seconds: list[Any] = seconds) -> None:
            far.before = at_request(lives, die)
            seconds.append(outcome(far, count))
            far.before = pass_on

        far.before = at_request(at, second)
        firsts.append(outcome(far, 1))
        if not seconds:
            break  # the first came to its end before: every request has had its turn
        if isinstance(seconds[0], CleanupResult):
            names = {f.removeprefix("objects://") for f in seconds[0].files}
            assert names == {k for k in far.objects if k.startswith("out/")}, f"request {at}"
        else:
            assert isinstance(seconds[0], Interrupted)
            clean(far, 1)
        out = far.download("out", tmp_path / str(at))
        assert read_bag(out) == owed_results(spilled), f"request {at}"
    stopped = [str(e) for e in firsts if not isinstance(e, CleanupResult)]
    assert len(stopped) > len(firsts) // 2
    assert all("another clean-up of this store has begun and took over" in e for e in stopped)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_clean_ups_request_by_request_leave_the_results_once(
    far: ObjectStore, spilled: Spilled, tmp_path: Path, seed: int
) -> None:
    """In any order; one of them ends, and the other is told that it did not."""
    print(f"seed {seed}")
    turns = random.Random(seed)
    turn = threading.Condition()
    alive = [0, 1]
    holder = [turns.choice(alive)]
    me = threading.local()
    ends: list[object] = [None, None]

    def before(verb: str, path: str) -> None:
        if is_ours(path):
            with turn:
                holder[0] = turns.choice(alive)
                turn.notify_all()
                turn.wait_for(lambda: holder[0] == me.number)

    def run(number: int) -> None:
        me.number = number
        ends[number] = outcome(far, 1 + number)
        with turn:
            alive.remove(number)
            holder[0] = (alive or [number])[0]
            turn.notify_all()

    far.before = before
    threads = [threading.Thread(target=run, args=(n,)) for n in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert any(isinstance(e, CleanupResult) for e in ends), ends
    assert all("took over" in str(e) for e in ends if not isinstance(e, CleanupResult)), ends
    assert read_bag(far.download("out", tmp_path / "out")) == owed_results(spilled)


def test_results_of_an_attempt_that_died_are_removed_by_the_next_call(
    far: ObjectStore, spilled: Spilled, tmp_path: Path
) -> None:
    """Also when nothing was left to do: it was replaced, went on writing and was killed."""
    first = clean(far, 1)
    name = first.files[0].removeprefix("objects://")
    part, number, attempt, file = name.split("-")
    far.objects[f"{part}-{number}-{attempt[:8]}00000000-{file}"] = far.objects[name]
    assert clean(far, 1).files == first.files
    assert read_bag(far.download("out", tmp_path / "out")) == owed_results(spilled)


def test_clean_ups_of_two_runs_into_one_place_at_once_are_told(
    far: ObjectStore, tmp_path: Path
) -> None:
    """Neither deletes or replaces what the other wrote."""
    far.upload(Path(spilled_store(tmp_path / "other", seed=2).store.root), "other")
    seen: list[object] = []

    def before(verb: str, path: str) -> None:
        if verb == "put" and path.startswith("out/"):
            far.before = pass_on
            seen.append(outcome(far, 1, spill="objects://other"))

    far.before = before
    with pytest.raises(OutputError, match="holds results of another run"):
        clean(far, 1)
    (other,) = seen
    assert isinstance(other, CleanupResult)
    assert {f.removeprefix("objects://") for f in other.files} < far.objects.keys()


def test_clean_ups_of_two_runs_into_one_local_folder_at_once_are_refused(
    far: ObjectStore, spilled: Spilled, tmp_path: Path
) -> None:
    """Each has its own record, so the folder itself is locked."""
    far.upload(Path(spilled_store(tmp_path / "other", seed=2).store.root), "other")
    out = tmp_path / "out"
    seen: list[object] = []

    def second() -> None:
        far.before = pass_on
        seen.append(outcome(far, 1, spill="objects://other", output=str(out)))

    far.before = at_request(5, second)
    clean(far, 1, output=str(out))
    assert "another process is cleaning up into this folder" in str(seen[0])
    assert read_bag(out) == owed_results(spilled)
