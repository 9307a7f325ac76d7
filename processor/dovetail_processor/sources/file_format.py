"""What a file format has to offer to be a source, and how its failures are told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from dovetail_processor.sources.bounds import Bounds
from dovetail_proto.errors import InputError

PART_ROWS = 128 << 10
"""Of a part, about. Two batches of rows of numbers: they take ten times as long as opening a file
again."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What is known of a file before its rows are read."""

    schema: pa.Schema  # as the format delivers it, not yet plain
    rows: int | None  # None where only reading all of it would tell
    types_known: bool = True  # False: no row to tell types by, the names alone count


@dataclass(frozen=True, slots=True)
class FilePart:
    """Rows of a file that follow each other."""

    first_row: int
    read: Callable[[], Iterator[pa.RecordBatch]]


class FileFormat(ABC):
    """One format. Its methods raise whatever pyarrow raises; `reading` turns that into InputError.

    No method may hold more of a file in memory than a few pages, blocks or batches of it.
    """

    name: ClassVar[str]  # as in "is not Parquet"
    extensions: ClassVar[tuple[str, ...]]  # lower case, with the dot

    @abstractmethod
    def inspect(self, path: Path) -> FileInfo:
        """The file's schema."""

    @abstractmethod
    def read(
        self, path: Path, schema: pa.Schema, columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        """The rows in order, of `columns` in that order, in pieces of about `bounds` or less.

        `schema` is that of the source, not yet plain. Pieces need not be valid.
        """

    def parts(
        self, path: Path, schema: pa.Schema, columns: Sequence[str], bounds: Bounds
    ) -> list[FilePart]:
        """As `read`, in parts that may be read at the same time; in order they are all rows."""
        return [FilePart(0, partial(self.read, path, schema, columns, bounds))]

    def agree(self, schema: pa.Schema, other: pa.Schema) -> bool:
        """Whether a file of schema `other` can be read as one of `schema`."""
        return bool(schema.equals(other))


def check_names(names: Sequence[str]) -> None:
    """Refuse names of columns that do not tell them apart."""
    repeated = {n for n in names if names.count(n) > 1}
    if repeated:
        raise InputError(
            f"has several columns named {min(repeated)!r}", remedy="give each its own name"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong with the file at `path` into InputError that names it; never nested."""
    try:
        yield
    except InputError as e:
        raise InputError(f"{path}: {e.message}", remedy=e.remedy) from e
    except FileNotFoundError as e:
        raise InputError(f"{path}: there is no such file", remedy="check the path") from e
    except PermissionError as e:
        raise InputError(f"{path}: may not be read", remedy="check its permissions") from e
    except (OSError, ValueError, MemoryError, pa.ArrowException) as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        raise InputError(
            f"{path}: damaged or incomplete: {reason[:_REASON_CHARS_MAX]}",
            remedy="restore the file from where it came",
        ) from e


_REASON_CHARS_MAX = 300
"""pyarrow quotes values of the file, which may be of any length."""
