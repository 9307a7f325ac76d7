"""Where a spill store rests: a local folder, or any file system that `pyarrow.fs` speaks.

The one thing asked of a storage is that a published name holds either all of its bytes or does not
exist, also after the process is killed at any byte:

    local      write to `<name>.….tmp`, fsync, rename, fsync the folder
    HDFS, …    write to `<name>.….tmp`, close, rename
    S3, …      an object appears when its upload ends; there is no rename and none is needed

The syncs of a local disk are for the case that the machine dies. What nobody will read then is
published without them (`durable=False`), and `make_durable` makes up for it.

A temporary name is used once: two processes that write the same name meet only in the rename.

Large files are first written as a *scratch* file on a local disk, so that their checksums can be
taken from what the disk holds, and then published.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from dovetail_proto.errors import SpillError

TMP_SUFFIX = ".tmp"
"""Ends every name that is not published; such files are never read and may be deleted."""

COPY_BYTES = 4 << 20
"""One read or write when a scratch file is copied to a remote storage: enough to fill a pipe."""

OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
"""File systems (`type_name`) where an object appears whole and a rename would be a copy."""


class RandomReader(Protocol):
    """A published file, open for reading."""

    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only at the end of the file."""

    def close(self) -> None:
        """Give the handle back."""


class Storage(Protocol):
    """Names are relative, parts joined by '/'. Every method may raise OSError."""

    uri: str

    def read(self, name: str) -> bytes:
        """Return all bytes of a small file; FileNotFoundError if it does not exist."""

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Publish a small file with these bytes; folders are made as needed."""

    def scratch(self, name: str) -> str:
        """Return a local path to write the later content of `name` to."""

    def publish(self, scratch: str, name: str, *, durable: bool = True) -> None:
        """Make a finished scratch file appear as `name`."""

    def make_durable(self, names: Iterable[str]) -> None:
        """Return when these published files are on the disk."""

    def open(self, name: str) -> RandomReader:
        """Open a published file; FileNotFoundError if it does not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted, without temporary ones; [] if there is none."""

    def discard(self, path: str) -> None:
        """Delete a scratch file if it exists."""

    def remove(self, name: str) -> None:
        """Delete a file or a folder with all that it holds, if it exists."""

    def exists(self, name: str) -> bool:
        """Whether something was published under this name."""


def open_storage(root: str) -> Storage:
    """The storage for a local path or a URI; SpillError if no file system serves it."""
    if "://" not in root:
        return LocalStorage(root)
    if "#" in root:  # file systems ignore a fragment: places below this one would be this one
        raise SpillError(
            f"spill store {root!r}: a URI of a place has no '#'",
            remedy="write %23 for a '#' in a name",
        )
    try:
        fs, path = pafs.FileSystem.from_uri(root)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, ValueError) as e:
        raise SpillError(
            f"spill store {root!r}: no file system for it: {e}",
            remedy="give a local path or a URI that pyarrow.fs knows, such as s3://bucket/path",
        ) from e
    if fs.type_name == "local":
        return LocalStorage(path)
    return RemoteStorage(fs, path, uri=root)


def place_below(place: str, *names: str) -> str:
    """A path or URI further down; what a URI says of its service stays behind its path.

    `s3://b/run?region=eu` and `p1` are `s3://b/run/p1?region=eu`.
    """
    path, options = _parted(place)
    return "/".join([path.rstrip("/"), *names]) + options


def place_above(place: str) -> tuple[str, str]:
    """The place that a path or URI lies in, and its own name there."""
    path, options = _parted(place)
    above, _, name = path.rstrip("/").rpartition("/")
    return above + options, name


def _parted(place: str) -> tuple[str, str]:
    """Path and options; only URIs have any."""
    path, mark, options = place.partition("?") if "://" in place else (place, "", "")
    return path, mark + options


def _temporary(name: str) -> str:
    return f"{name}.{secrets.token_hex(4)}{TMP_SUFFIX}"


class LocalStorage:
    """A folder on this machine. Subclasses may override the few calls that change the disk."""

    def __init__(self, root: str) -> None:
        self.root = Path(root).absolute()
        self.uri = str(self.root)
        self._made: set[Path] = set()  # folders whose own names may not be on the disk yet

    def read(self, name: str) -> bytes:
        """Return all bytes of a small file; FileNotFoundError if it does not exist."""
        return (self.root / name).read_bytes()

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Publish a small file with these bytes; folders are made as needed."""
        scratch = self.scratch(name)
        try:
            with self.create(scratch) as f:
                f.write(data)
            self.publish(scratch, name, durable=durable)
        except OSError:
            with contextlib.suppress(OSError):
                self.discard(scratch)
            raise

    def scratch(self, name: str) -> str:
        """Return the path beside the final one, so that publishing is a rename."""
        path = self.root / _temporary(name)
        if not path.parent.is_dir():
            self.make_folder(path.parent)
        return str(path)

    def publish(self, scratch: str, name: str, *, durable: bool = True) -> None:
        """Sync the scratch file, rename it to `name`, sync the folder."""
        path = self.root / name
        if durable:
            self.sync_at(scratch)
        self.rename(scratch, str(path))
        if durable:
            self.sync_folder(path.parent)

    def make_durable(self, names: Iterable[str]) -> None:
        """Return when these published files are on the disk."""
        paths = [self.root / name for name in names]
        for path in paths:
            self.sync_at(str(path))
        for folder in {path.parent for path in paths}:
            self.sync_folder(folder)

    def open(self, name: str) -> RandomReader:
        """Open a published file; FileNotFoundError if it does not exist."""
        return _LocalReader(str(self.root / name))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted, without temporary ones; [] if there is none."""
        try:
            found = os.listdir(self.root / folder)
        except FileNotFoundError:
            return []
        return sorted(n for n in found if not n.endswith(TMP_SUFFIX))

    def discard(self, path: str) -> None:
        """Delete a scratch file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove(self, name: str) -> None:
        """Delete a file or a folder with all that it holds, if it exists."""
        path = self.root / name
        self._made.discard(path)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Whether something was published under this name."""
        return (self.root / name).exists()

    def make_folder(self, path: Path) -> None:
        """Make a folder and its parents."""
        self._made.update(p for p in (path, *path.parents) if not p.exists())
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: str) -> IO[bytes]:
        """Open a new file for writing."""
        return open(path, "wb")

    def sync(self, fd: int) -> None:
        """Return when what was written to `fd` is on the disk."""
        os.fsync(fd)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk, and its own name with them."""
        self.sync_at(str(path))
        if path in self._made:
            self.sync_folder(path.parent)
            self._made.discard(path)

    def sync_at(self, path: str) -> None:
        """Return when what was written to a file or a folder is on the disk."""
        fd = os.open(path, os.O_RDONLY)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """Give a file its final name, in one step."""
        os.replace(old, new)


class _LocalReader:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._fd).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0 and (part := os.pread(self._fd, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        os.close(self._fd)


class RemoteStorage:
    """A folder in a `pyarrow.fs` file system."""

    def __init__(self, fs: Any, path: str, *, uri: str) -> None:
        self._fs = fs
        self._path = path.rstrip("/")
        self._renames = fs.type_name not in OBJECT_STORES
        self.uri = uri.rstrip("/")

    def read(self, name: str) -> bytes:
        """Return all bytes of a small file; FileNotFoundError if it does not exist."""
        with self._fs.open_input_file(self._at(name)) as f:
            return bytes(f.readall())

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Publish a small file with these bytes; folders are made as needed."""
        self._put(name, iter((data,)))

    def scratch(self, name: str) -> str:
        """Return a new file in the machine's temporary folder."""
        fd, path = tempfile.mkstemp(prefix="dovetail-", suffix=TMP_SUFFIX)
        os.close(fd)
        return path

    def publish(self, scratch: str, name: str, *, durable: bool = True) -> None:
        """Upload the scratch file and delete it."""
        with open(scratch, "rb") as f:
            self._put(name, iter(lambda: f.read(COPY_BYTES), b""))
        self.discard(scratch)

    def make_durable(self, names: Iterable[str]) -> None:
        """Nothing to do: an upload that has ended is kept."""

    def open(self, name: str) -> RandomReader:
        """Open a published file; FileNotFoundError if it does not exist."""
        return _RemoteReader(self._fs.open_input_file(self._at(name)))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted, without temporary ones; [] if there is none."""
        found = self._fs.get_file_info(pafs.FileSelector(self._at(folder), allow_not_found=True))
        return sorted(i.base_name for i in found if not i.base_name.endswith(TMP_SUFFIX))

    def discard(self, path: str) -> None:
        """Delete a scratch file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove(self, name: str) -> None:
        """Delete a file or a folder with all that it holds, if it exists."""
        kind = self._fs.get_file_info(self._at(name)).type
        if kind == pafs.FileType.Directory:
            self._fs.delete_dir(self._at(name))
        elif kind != pafs.FileType.NotFound:
            self._fs.delete_file(self._at(name))

    def exists(self, name: str) -> bool:
        """Whether something was published under this name."""
        found = self._fs.get_file_info(self._at(name)).type
        return bool(found != pafs.FileType.NotFound)

    def _put(self, name: str, parts: Iterator[bytes]) -> None:
        final = self._at(name)
        first = _temporary(final) if self._renames else final
        if self._renames:
            self._fs.create_dir(final.rpartition("/")[0], recursive=True)
        with self._fs.open_output_stream(first) as out:
            for part in parts:
                out.write(part)
        if self._renames:
            self._fs.move(first, final)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path


class _RemoteReader:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = file.size()

    def read_at(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        return bytes(self._file.read(length))

    def close(self) -> None:
        self._file.close()
