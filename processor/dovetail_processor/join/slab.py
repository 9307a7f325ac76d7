"""The arena that a processor's join state lives in: pages, known to the byte.

One anonymous mapping, so that untouched memory costs nothing and no allocator stands between us
and the pages. Only the thread that runs the join allocates and frees. Memory that was touched stays
real until `trim` gives it back: other queries' arenas want it.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from dovetail_processor.join.kernels import index, pages
from dovetail_proto.errors import ConfigError, MemoryLimitError

ARENA_BYTES_MAX = 16 << 30
"""Rows are addressed by 32-bit numbers of 4-byte words."""

SPARE_SUPERPAGES = 1 + pages.PAGE_CLASSES * 2
"""Beyond the limit: the one never handed out, and per class the superpage being filled and the one
being emptied. More would be touched, and be real memory, without ever counting as used."""

TRIM_BYTES = 4 << 20
"""Less beyond the limit stays real: giving back and touching anew cost a fault per page."""

_ALL_FREE = np.array([(1 << (pages.SUPERPAGE_WORDS // w)) - 1 for w in pages.PAGE_WORDS], np.uint64)
"""By class: the bits of a superpage that is wholly free."""


class Slab:
    """An arena of at most `limit_bytes` in pages. The arrays are what kernels take."""

    def __init__(self, limit_bytes: int) -> None:
        superpages = limit_bytes // pages.SUPERPAGE_BYTES + SPARE_SUPERPAGES
        if superpages * pages.SUPERPAGE_BYTES > ARENA_BYTES_MAX:
            raise ConfigError(
                f"memory of {limit_bytes} bytes is more than one processor can address",
                remedy="give one processor at most 12 GiB and run several",
            )
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # private: shared memory gets no huge pages
        try:
            arena = mmap.mmap(-1, superpages * pages.SUPERPAGE_BYTES, flags=flags)
        except OSError as e:
            raise MemoryLimitError(
                f"memory of {limit_bytes:,} bytes for the join's state cannot be had: {e.strerror}",
                remedy="give the processor less memory than the machine has, or run fewer queries",
            ) from e
        if hasattr(mmap, "MADV_HUGEPAGE"):
            arena.madvise(mmap.MADV_HUGEPAGE)
        self._map = arena
        self._touched_bytes = 0  # the most in use since the last trim
        self.raw = np.frombuffer(arena, np.uint8)
        self.words = self.raw.view(np.uint32)
        self.header = np.zeros(pages.SLAB_FIELDS, np.int64)
        self.header[pages.PARTIAL : pages.PARTIAL + pages.PAGE_CLASSES] = -1
        self.header[pages.FREE] = -1
        self.header[pages.BUMP] = 1
        self.header[pages.SUPERPAGES] = superpages
        self.header[pages.LIMIT] = limit_bytes
        self.bits = np.zeros(superpages, np.uint64)
        self.links = np.zeros((superpages, pages.LINK_FIELDS), np.int32)
        nothing = self.words[:0]
        self.arena = self.memory(nothing, nothing, 1, 0)
        """`Memory` for kernels that look at no group."""

    def memory(
        self, groups: NDArray[np.uint32], parts: NDArray[np.uint32], inputs: int, keyed: int
    ) -> tuple[int, ...]:
        """What kernels take as `Memory`; good as long as the slab and both arrays live."""
        arrays = (self.words, self.header, self.bits, self.links, groups, parts)
        slot_words = 2 + keyed + inputs
        slots = [(pages.PAGE_WORDS[c] - index.HEADER_WORDS) // slot_words for c in (0, 1)]
        return (*(a.ctypes.data for a in arrays), inputs, keyed, slot_words, *slots)

    @property
    def used_bytes(self) -> int:
        """Bytes in pages handed out."""
        return int(self.header[pages.USED])

    def limit(self, limit_bytes: int) -> None:
        """Hand out no page beyond `limit_bytes` from now on; what is handed out stays."""
        self.header[pages.LIMIT] = limit_bytes

    def give_back(self) -> None:
        """Give all of it back to the system: nobody reads or writes it any more."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def trim(self, limit_bytes: int) -> None:
        """Give wholly free superpages back to the system, if much beyond `limit_bytes` was touched.

        They can be handed out again like any other; nothing is read from a page before it is
        written.
        """
        used = self.used_bytes
        self._touched_bytes = max(self._touched_bytes, used)
        if self._touched_bytes - max(used, limit_bytes) < TRIM_BYTES:
            return
        self._touched_bytes = used
        seen = int(self.header[pages.BUMP])
        free = self.bits[:seen] == _ALL_FREE[self.links[:seen, pages.CLASS]]
        edges = np.flatnonzero(np.diff(free, prepend=False, append=False)) * pages.SUPERPAGE_BYTES
        for start, end in edges.reshape(-1, 2).tolist():
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
