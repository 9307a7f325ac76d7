"""Which stores a clean-up is about, and where the results of each run go.

A place is a store or a folder of stores, as a day's runs of several queries leave them. Stores of
one run, one per processor of a cluster, are cleaned up together; rows of different runs never meet.

    one run          OUTPUT/phase=cleanup/part-….parquet
    several runs     OUTPUT/<query>/<store>/phase=cleanup/part-….parquet
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail_pipeline.cleanup.catalog import open_catalog
from dovetail_proto.errors import ConfigError, SpillError
from dovetail_proto.spill_format import SpillStore, open_storage, place_above, place_below
from dovetail_proto.spill_format.records import QUERY_FILE

CLEANUP_PHASE = "phase=cleanup"
"""The folder, below a run's output, of what its clean-up produced."""


@dataclass(frozen=True, slots=True)
class RunCleanup:
    """One run to clean up."""

    stores: tuple[SpillStore, ...]  # one per processor
    output: str | None  # the folder of its own that its results go to; None only counts them

    @property
    def query(self) -> str:
        """The name of the run's query."""
        return self.stores[0].plan.name

    @property
    def place(self) -> str:
        """Where its stores are: the one, or the folder of them."""
        first = self.stores[0].root
        return first if len(self.stores) == 1 else place_above(first)[0]


def find_cleanups(
    places: Sequence[str],
    *,
    query: str | None = None,
    run: str | None = None,
    output: str | None = None,
    trusted: bool = True,
) -> list[RunCleanup]:
    """What to clean up at these places, in their order, then by name.

    `query` takes only the stores of the query with this name, `run` those of this run.
    `output` None is each run's own output; "none" only counts. SpillError if there is no store at
    a place, ConfigError if none is left or a run's output is not known. `trusted` is False where
    others than the caller may have written the stores: then no output is taken from them.
    """
    stores = [store for place in places for store in _stores_at(place)]
    chosen = [s for s in stores if query in (None, s.plan.name) and run in (None, s.run)]
    if not chosen:
        names = ", ".join(sorted({s.plan.name for s in stores}))
        raise ConfigError(
            f"no spill store of query {query!r} at {', '.join(places)}",
            remedy=f"there are stores of: {names}",
        )
    runs: dict[str, list[SpillStore]] = {}
    for store in chosen:
        runs.setdefault(store.run, []).append(store)
    return [
        RunCleanup(tuple(s), _output_of(s, output, alone=len(runs) == 1, trusted=trusted))
        for s in runs.values()
    ]


def below(output: str) -> str:
    """Where the results of a clean-up go, given a run's output."""
    return place_below(output, CLEANUP_PHASE)


def _stores_at(place: str) -> list[SpillStore]:
    storage = open_storage(place)
    try:
        if not storage.exists(QUERY_FILE):
            names = [n for n in storage.names("") if storage.exists(f"{n}/{QUERY_FILE}")]
            if names:
                return [SpillStore.open(place_below(place, n)) for n in names]
    except OSError as e:
        raise SpillError(f"spill store {place}: cannot be read: {e}", remedy="check it") from e
    return [SpillStore.open(place)]  # which says what is wrong if this is no store either


def _output_of(
    stores: Sequence[SpillStore], output: str | None, *, alone: bool, trusted: bool
) -> str | None:
    if output == "none":
        return None
    store = stores[0]
    if output is None:
        catalog = open_catalog(stores)
        recorded = catalog.records[0].output if trusted else None
        if recorded is None:
            if not catalog.groups.size:
                return None  # nothing is owed: no place is needed
            raise ConfigError(
                f"the run of {store.root!r} only counted its results",
                remedy="name a folder for the owed ones with --output, or --output none",
            )
        return below(recorded)
    if alone:
        return below(output)
    first = min(place_above(s.root)[1] for s in stores)  # whatever order they were given in
    return below(place_below(output, store.plan.name, first))
