"""Which format a file is of: by its extension and by its first bytes, which must agree."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dovetail_processor.sources.csv_files import CsvFiles
from dovetail_processor.sources.file_format import FileFormat
from dovetail_processor.sources.ipc_files import FILE_MAGIC, STREAM_MAGIC, IpcFiles
from dovetail_processor.sources.json_lines import JsonLines
from dovetail_processor.sources.parquet_files import ParquetFiles
from dovetail_processor.sources.text_files import is_packed, open_text
from dovetail_proto.errors import InputError

_PARQUET: FileFormat = ParquetFiles()
_CSV: FileFormat = CsvFiles()
_JSON: FileFormat = JsonLines()
_IPC: FileFormat = IpcFiles()
_FORMATS = (_PARQUET, _CSV, _JSON, _IPC)

_MAGIC = ((b"PAR1", _PARQUET), (FILE_MAGIC, _IPC), (STREAM_MAGIC, _IPC))
_FEATHER_1 = b"FEA1"
_HEAD_BYTES = 64


def format_of(path: Path) -> FileFormat:
    """The format of the file at `path`, one object per format.

    Raises InputError if it is not a file, empty, of no known format or of another than its
    extension says.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # reading a pipe could wait for ever
        raise InputError("is not a file", remedy="give a regular file or a folder of them")
    if status.st_size == 0:
        raise InputError("is empty", remedy="check what was to write it")
    with open_text(path) as stream:
        head: bytes = stream.read(_HEAD_BYTES)
    named, binary = _by_extension(path), _by_magic(head)
    if binary is not None:
        return _binary_format(path, named, binary)
    if named in (_PARQUET, _IPC):
        raise InputError(
            f"is not {named.name if named else ''}, although it is called so",
            remedy="check what wrote it, or give it the extension of its format",
        )
    if named is None and head.lstrip().startswith(b"{"):
        return _JSON
    if named is None:
        extensions = ", ".join(e for f in _FORMATS for e in f.extensions)
        raise InputError(
            "is of no format that is known",
            remedy=f"name files by their format: {extensions}; text also with .gz",
        )
    return named


def _binary_format(path: Path, named: FileFormat | None, binary: FileFormat) -> FileFormat:
    if named not in (None, binary):
        raise InputError(
            f"is {binary.name}, although it is called otherwise",
            remedy=f"name it {path.stem}{binary.extensions[0]}",
        )
    if is_packed(path):
        raise InputError(f"is {binary.name} inside gzip", remedy="unpack it with gunzip")
    return binary


def _by_extension(path: Path) -> FileFormat | None:
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return next((f for f in _FORMATS if last in f.extensions), None)


def _by_magic(head: bytes) -> FileFormat | None:
    if head.startswith(_FEATHER_1):
        raise InputError("is Feather version 1", remedy="write it again as Arrow IPC")
    return next((known for magic, known in _MAGIC if head.startswith(magic)), None)
