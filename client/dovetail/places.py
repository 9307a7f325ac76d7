"""Where a run writes: the output folder and the spill store, claimed before the first row is read.

Both must be new or empty, so whatever is found in them later is the run's own and may be taken
back if it fails. An output folder looks like this:

    results/phase=run/….parquet        found while input arrived
    results/phase=cleanup/….parquet    owed by pushed state, produced afterwards
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dovetail_processor.sinks import prepare_output
from dovetail_proto.errors import SpillError
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import SpillStore, open_storage, place_below, require_empty

RUN_PHASE = "phase=run"


@dataclass(slots=True)
class Places:
    """The folders of one run.

    `claimed` folders were found empty, so all that is in them is the run's; `made` folders were
    not there before, outermost first. Nothing outside these two lists is ever removed.
    """

    output: Path | None  # None: results are only counted
    worker_stores: tuple[SpillStore, ...] = ()  # of this process's workers, if they may push
    spill_dir: str | None = None  # where the store is, or the folder of the processors' stores
    temporary_store: bool = False
    claimed: list[Path] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)

    @classmethod
    def claim(
        cls,
        output: Path | None,
        spill_dir: str | None,
        plan: QueryPlan,
        *,
        may_push: bool,
        workers: Sequence[str],
    ) -> Places:
        """Make the folders; OutputError or SpillError if one is taken or cannot be made.

        Workers of this process get a store each; without any, processors make theirs themselves,
        in folders of their own.
        """
        places = cls(output)
        try:
            if output is not None:
                places.made += _missing(output)
                prepare_output(output)
                places.claimed.append(output)
            if may_push:
                places._create_stores(spill_dir, plan, workers)
        except BaseException:
            places.give_back()
            raise
        return places

    @property
    def run_results(self) -> Path | None:
        """The folder for results of the run."""
        return None if self.output is None else self.output / RUN_PHASE

    @property
    def cleanup_results(self) -> Path | None:
        """The folder for results of the clean-up."""
        from dovetail_pipeline.cleanup.stores import CLEANUP_PHASE

        return None if self.output is None else self.output / CLEANUP_PHASE

    def drop_temporary_store(self) -> None:
        """Remove the spill store if nobody asked for it to be kept."""
        if self.temporary_store and self.spill_dir is not None:
            shutil.rmtree(self.spill_dir, ignore_errors=True)
            self.worker_stores, self.spill_dir = (), None

    def stores(self) -> tuple[SpillStore, ...]:
        """The run's stores, one per worker or processor."""
        if self.spill_dir is None:
            return ()
        from dovetail_pipeline.cleanup.stores import find_cleanups

        (run,) = find_cleanups([self.spill_dir], output="none")
        return run.stores

    def give_back(self) -> None:
        """Leave everything as it was before `claim`; for runs that failed."""
        for folder in self.claimed:
            for entry in folder.iterdir() if folder.is_dir() else ():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):  # not made after all, or in use by somebody else
                folder.rmdir()
        self.worker_stores, self.spill_dir = (), None

    def _create_stores(
        self, spill_dir: str | None, plan: QueryPlan, workers: Sequence[str]
    ) -> None:
        self.temporary_store = spill_dir is None
        if spill_dir is None:
            spill_dir = _temporary_folder(self.output)
            self.made.append(Path(spill_dir))
        elif "://" not in spill_dir:
            self.made += _missing(Path(spill_dir))
        if len(workers) == 1:
            self.worker_stores = (SpillStore.create(spill_dir, plan),)
        else:
            require_empty(open_storage(spill_dir))
            run = uuid.uuid4().hex
            self.worker_stores = tuple(
                SpillStore.create(place_below(spill_dir, worker), plan, run=run)
                for worker in workers
            )
        self.spill_dir = spill_dir
        if "://" not in spill_dir:
            self.claimed.append(Path(spill_dir))


def _missing(folder: Path) -> list[Path]:
    """The folders that making `folder` will make, outermost first."""
    return [p for p in reversed((folder, *folder.parents)) if not p.exists()]


def _temporary_folder(output: Path | None) -> str:
    """Beside the output, which is on a disk meant for data; a system's /tmp may be in memory."""
    beside = None if output is None else output.resolve().parent
    try:
        return tempfile.mkdtemp(prefix="dovetail-spill-", dir=beside)
    except OSError as e:
        raise SpillError(
            f"no temporary folder for pushed state: {e.strerror}",
            remedy="name a folder with --spill-dir",
        ) from e
