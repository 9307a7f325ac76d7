"""The folder that results go to: ours alone, so that nobody's files are mixed or lost."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail_proto.errors import OutputError


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
