"""The folder that results go to: ours alone, so that nobody's files are mixed or lost."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail_proto.errors import OutputError

RUN_MARK = ".run-"
"""Begins the name of a hidden file that says whose a folder is which several processors share."""


def claim_output(path: str | Path, run: str) -> Path:
    """Make `path` the folder of a run's files; every processor of the run claims it.

    OutputError if it is a file, holds anything else, or cannot be made or written.
    """
    folder = Path(path)
    mark = folder / f"{RUN_MARK}{run}"
    try:
        if not mark.exists():
            try:
                prepare_output(folder)
            except OutputError:
                if not mark.exists():  # else another processor of the run was faster
                    raise
            mark.touch()
        others = [f.name for f in folder.glob(f"{RUN_MARK}*") if f != mark]
    except OSError as e:
        raise OutputError(
            f"output folder {str(folder)!r} cannot be written: {e.strerror}",
            remedy="name a folder that you may write to",
        ) from e
    if others:
        raise OutputError(
            f"output folder {str(folder)!r} is another query's: it holds {others[0]!r}",
            remedy="name another; results are never mixed with what is there",
        )
    return folder


def prepare_output(path: str | Path) -> Path:
    """Make `path` an empty folder that can be written, with its parents, and return it.

    Raises OutputError if it is a file, holds anything, or cannot be made or written.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with os.scandir(folder) as entries:
            found = next((e.name for e in entries), None)
    except (FileExistsError, NotADirectoryError) as e:
        raise OutputError(
            f"output {str(folder)!r} is not a folder", remedy="name a folder that is new or empty"
        ) from e
    except OSError as e:
        raise OutputError(
            f"output folder {str(folder)!r} cannot be made: {e.strerror}",
            remedy="name a folder that you may write to",
        ) from e
    if found is not None:
        raise OutputError(
            f"output folder {str(folder)!r} is not empty: it holds {found!r}",
            remedy="empty it or name another; results are never mixed with what is there",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"output folder {str(folder)!r} cannot be written",
            remedy="name a folder that you may write to",
        )
    return folder
