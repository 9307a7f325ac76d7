"""The spilled files that a process has open, the least recently used closed first."""

from __future__ import annotations

from collections import OrderedDict

from dovetail_pipeline.cleanup.catalog import Catalog
from dovetail_proto.spill_format import InputFile

FILES_OPEN_MAX = 256
"""A quarter of the 1 024 handles that a process may usually have."""

FOOTER_FACTOR = 8
"""A parsed Parquet footer takes about so many times its size in the file."""

FOOTERS_BYTES_MAX = 16 << 20
"""Parsed footers held at once; one of 300 groups and five columns takes 1 MB."""


class OpenFiles:
    """Opens a catalog's files on demand; a context manager that closes them."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._open: OrderedDict[int, InputFile] = OrderedDict()
        self._footer_bytes = 0  # of `_open`, parsed

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._open:
            self._close_oldest()

    def file(self, number: int, index: int) -> InputFile:
        """File `number` of the catalog, which holds rows of input `index`."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        listed = self._catalog.files[number]
        size = FOOTER_FACTOR * listed.entry.footer_bytes
        while self._open and (
            len(self._open) >= FILES_OPEN_MAX or self._footer_bytes + size > FOOTERS_BYTES_MAX
        ):
            self._close_oldest()
        layout = listed.store.layouts[index]
        self._open[number] = InputFile(listed.store.storage, listed.entry, layout)
        self._footer_bytes += size
        return self._open[number]

    def _close_oldest(self) -> None:
        number, file = self._open.popitem(last=False)
        file.close()
        self._footer_bytes -= FOOTER_FACTOR * self._catalog.files[number].entry.footer_bytes
