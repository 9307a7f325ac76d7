"""A local storage whose process is killed at the n-th call that changes the disk."""

from __future__ import annotations

from typing import IO

from dovetail_proto.spill_format import LocalStorage


class Killed(BaseException):
    """The process is gone: nothing after this happens."""


class DyingStorage(LocalStorage):
    """A disk that is lost at the n-th call that changes it, in the middle of a write or before."""

    def __init__(self, root: str, calls: int) -> None:
        super().__init__(root)
        self.left = calls
        self.dead = False

    def _live(self) -> None:
        if self.dead or self.left == 0:
            self.dead = True
            raise Killed
        self.left -= 1

    def create(self, path: str) -> IO[bytes]:
        """Die before, or after half of the bytes."""
        self._live()
        storage = self

        class Half:
            def __enter__(self) -> Half:
                self._file = open(path, "wb")
                return self

            def write(self, data: bytes) -> None:
                self._file.write(data[: len(data) // 2])
                self._file.flush()
                storage._live()
                self._file.write(data[len(data) // 2 :])

            def __exit__(self, *exc: object) -> None:
                self._file.close()

        return Half()  # type: ignore[return-value]

    def scratch(self, name: str) -> str:
        """Die before a large file."""
        self._live()
        return super().scratch(name)

    def sync(self, fd: int) -> None:
        """Die before a sync; what was written may be there all the same."""
        self._live()
        super().sync(fd)

    def rename(self, old: str, new: str) -> None:
        """Die before or after a rename."""
        self._live()
        super().rename(old, new)
        self._live()

    def discard(self, path: str) -> None:
        """A dead process cleans nothing up."""
        self._live()
        super().discard(path)

    def remove(self, name: str) -> None:
        """A dead process cleans nothing up."""
        self._live()
        super().remove(name)
