"""The spilled files that a process has open.

Every part of the work goes through all files, in the same order. So when there are too many to
keep open, the ones that were opened first stay: closing the least recently used would close each
just before it is needed.
"""

from __future__ import annotations

from dovetail_pipeline.cleanup.catalog import Catalog
from dovetail_proto.spill_format import InputFile

FILES_OPEN_MAX = 256
"""A quarter of the 1 024 handles that a process may usually have."""

FOOTER_FACTOR = 13
"""A parsed Parquet footer takes about so many times its size in the file (measured)."""

FOOTERS_SHARE = 4
"""Parsed footers may take the memory divided by this; one of 300 groups and five columns takes
1.2 MB."""


class OpenFiles:
    """Opens a catalog's files on demand; a context manager that closes them."""

    def __init__(self, catalog: Catalog, memory_bytes: int) -> None:
        self._catalog = catalog
        self._footer_bytes_max = memory_bytes // FOOTERS_SHARE
        self._open: dict[int, InputFile] = {}  # in the order of opening
        self._footer_bytes = 0  # of `_open`, parsed

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._open:
            self._close_newest()

    def file(self, number: int, index: int) -> InputFile:
        """File `number` of the catalog, which holds rows of input `index`."""
        if number in self._open:
            return self._open[number]
        listed = self._catalog.files[number]
        size = FOOTER_FACTOR * listed.entry.footer_bytes
        while self._open and (
            len(self._open) >= FILES_OPEN_MAX or self._footer_bytes + size > self._footer_bytes_max
        ):
            self._close_newest()
        layout = listed.store.layouts[index]
        self._open[number] = InputFile(listed.store.storage, listed.entry, layout)
        self._footer_bytes += size
        return self._open[number]

    def _close_newest(self) -> None:
        number, file = self._open.popitem()
        file.close()
        self._footer_bytes -= FOOTER_FACTOR * self._catalog.files[number].entry.footer_bytes
