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
from dataclasses import dataclass, field
from pathlib import Path

from dovetail_proto.errors import OutputError, SpillError
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import SpillStore

RUN_PHASE = "phase=run"
CLEANUP_PHASE = "phase=cleanup"


@dataclass(slots=True)
class Places:
    """The folders of one run.

    `claimed` folders were found empty, so all that is in them is the run's; `made` folders were
    not there before, outermost first. Nothing outside these two lists is ever removed.
    """

    output: Path | None
    store: SpillStore | None  # None: nothing can be pushed, or the store is removed
    spill_dir: str | None  # where `store` is
    temporary_store: bool
    claimed: list[Path] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)

    @classmethod
    def claim(
        cls, output: Path | None, spill_dir: Path | None, plan: QueryPlan, policy: str
    ) -> Places:
        """Make the folders; OutputError or SpillError if one is taken or cannot be made."""
        places = cls(output, None, None, temporary_store=spill_dir is None)
        try:
            if output is not None:
                places._claim_folder(output, OutputError, "output folder")
            if policy != "none":
                if spill_dir is None:
                    spill_dir = _temporary_folder(output)
                    places.made.append(spill_dir)
                    places.claimed.append(spill_dir)
                else:
                    places._claim_folder(spill_dir, SpillError, "spill folder")
                places.spill_dir = str(spill_dir)
                places.store = SpillStore.create(str(spill_dir), plan)
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
        return None if self.output is None else self.output / CLEANUP_PHASE

    def drop_temporary_store(self) -> None:
        """Remove the spill store if nobody asked for it to be kept."""
        if self.temporary_store and self.spill_dir is not None:
            shutil.rmtree(self.spill_dir, ignore_errors=True)
            self.store = self.spill_dir = None

    def give_back(self) -> None:
        """Leave everything as it was before `claim`; for runs that failed."""
        for folder in self.claimed:
            for entry in folder.iterdir() if folder.is_dir() else ():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self.store = self.spill_dir = None

    def _claim_folder(self, folder: Path, error: type[OutputError | SpillError], what: str) -> None:
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        try:
            for part in reversed(missing):
                part.mkdir(exist_ok=True)
                self.made.append(part)
            taken = any(folder.iterdir())
        except OSError as e:
            raise error(
                f"{what} {str(folder)!r} cannot be used: {e.strerror}",
                remedy="name a folder that can be made and written",
            ) from e
        if taken:
            raise error(
                f"{what} {str(folder)!r} is not empty",
                remedy="name a new folder, or empty this one",
            )
        self.claimed.append(folder)


def _temporary_folder(output: Path | None) -> Path:
    """Beside the output, which is on a disk meant for data; a system's /tmp may be in memory."""
    beside = None if output is None else output.resolve().parent
    try:
        return Path(tempfile.mkdtemp(prefix="dovetail-spill-", dir=beside))
    except OSError as e:
        raise SpillError(
            f"no temporary folder for pushed state: {e.strerror}",
            remedy="name a folder with --spill-dir",
        ) from e
