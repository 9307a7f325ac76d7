"""An object store in memory, for `RemoteStorage`: like S3, it has no rename, no folders, no locks.

An object appears whole when its upload ends, and the last upload of a name wins; reads and listings
see every upload that has ended. `before(verb, path)` is called before each request.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from dovetail_proto.spill_format import LocalStorage, RemoteStorage, Storage

SCHEME = "objects://"


class ObjectStore:
    """Objects by path; what `RemoteStorage` asks of a `pyarrow.fs` file system."""

    type_name = "s3"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.before: Callable[[str, str], None] = lambda verb, path: None

    def storage(self, place: str) -> Storage:
        """The storage for a URI of this store, or for a local path."""
        if not place.startswith(SCHEME):
            return LocalStorage(place)
        return RemoteStorage(self, place.removeprefix(SCHEME), uri=place)

    def upload(self, folder: Path, to: str) -> None:
        """Put all files of a local folder below a path."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{to}/{path.relative_to(folder)}"] = path.read_bytes()

    def download(self, path: str, to: Path) -> Path:
        """Write the objects in a folder to a local one."""
        to.mkdir()
        for key, data in self.objects.items():
            if key.startswith(f"{path}/"):
                (to / key.removeprefix(f"{path}/")).write_bytes(data)
        return to

    def open_input_file(self, path: str) -> pa.NativeFile:
        """GET."""
        self.before("get", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.BufferReader(self.objects[path])

    def open_output_stream(self, path: str) -> io.BytesIO:
        """PUT, when it is closed."""
        store = self

        class Upload(io.BytesIO):
            def __exit__(self, kind: object, *rest: object) -> None:
                if kind is None:
                    store.before("put", path)
                    store.objects[path] = self.getvalue()

        return Upload()

    def get_file_info(self, what: str | pafs.FileSelector) -> object:
        """HEAD, or LIST of one level."""
        path = what if isinstance(what, str) else what.base_dir
        self.before("head" if isinstance(what, str) else "list", path)
        names = {k.removeprefix(f"{path}/").split("/")[0] for k in self.objects if below(k, path)}
        if isinstance(what, str):
            kind = pafs.FileType.Directory if names else pafs.FileType.NotFound
            return pafs.FileInfo(path, pafs.FileType.File if path in self.objects else kind)
        return [pafs.FileInfo(f"{path}/{name}", pafs.FileType.Unknown) for name in names]

    def delete_file(self, path: str) -> None:
        """DELETE."""
        self.before("delete", path)
        self.objects.pop(path, None)

    def delete_dir(self, path: str) -> None:
        """DELETE of each object in the folder."""
        for key in [k for k in self.objects if below(k, path)]:
            self.delete_file(key)


def below(key: str, path: str) -> bool:
    """Whether an object lies in the folder `path`."""
    return key.startswith(f"{path}/")
