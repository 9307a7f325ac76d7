"""What a clean-up has planned and finished, in the store, so that it can be stopped at any byte.

    cleanup/<output>/plan.json          the bins, written before any result
    cleanup/<output>/part-00003.json    bin 3 is done: these files, rows and checksum
    cleanup/<output>/lock               held by the process at work (local stores)

A bin's files are in place, durably, before its marker is; so a bin without marker is done again
from nothing, and one with it never. Each output has its own folder here: cleaning up into another
place is another clean-up.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_pipeline.cleanup.bins import Bin, bin_from_json
from dovetail_pipeline.cleanup.catalog import Catalog
from dovetail_pipeline.cleanup.planning import CleanupPlan
from dovetail_processor.sinks import prepare_output
from dovetail_proto.errors import OutputError, SpillError
from dovetail_proto.spill_format import LocalStorage, Storage, open_storage
from dovetail_proto.spill_format.sealed import Fields, hex32, hex64, refuse, seal, unseal

PLAN_FILE = "plan.json"


@dataclass(frozen=True, slots=True)
class BinResult:
    """What a finished bin produced."""

    index: int
    combinations: int  # owed combinations, before residual conditions
    rows: int  # results written
    checksum: int  # order-free, uint64
    files: tuple[tuple[str, int], ...]  # names in the output folder, with their sizes in bytes
    bytes_read: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "index": self.index,
            "combinations": self.combinations,
            "rows": self.rows,
            "checksum": hex64(self.checksum),
            "files": [list(f) for f in self.files],
            "bytes_read": self.bytes_read,
            "milliseconds": int(self.seconds * 1000),
        }


def result_from_json(raw: Any, place: str) -> BinResult:
    """Check and read what `BinResult.to_json` wrote."""
    fields = Fields(raw, place)
    files = []
    for item in fields.items("files"):
        if not (isinstance(item, list) and [type(x) for x in item] == [str, int]):
            fields.refuse("files", "pairs of name and size", item)
        if Path(item[0]).name != item[0]:
            fields.refuse("files", "names without folders", item[0])
        files.append((item[0], item[1]))
    result = BinResult(
        index=fields.integer("index"),
        combinations=fields.integer("combinations"),
        rows=fields.integer("rows"),
        checksum=fields.hex64("checksum"),
        files=tuple(files),
        bytes_read=fields.integer("bytes_read"),
        seconds=fields.integer("milliseconds") / 1000,
    )
    fields.done()
    return result


class Ledger:
    """The record of one clean-up: of these stores into this output."""

    def __init__(self, catalog: Catalog, output: str | None) -> None:
        self._storage = catalog.stores[0].storage
        self._output = output
        self.output: Storage | None = None if output is None else open_storage(output)
        self._stores = {s.id: [hex32(p.crc32) for p in s.pushes()] for s in catalog.stores}
        name = "count" if output is None else hashlib.sha256(output.encode()).hexdigest()[:16]
        self._folder = f"cleanup/{name}"

    def plan(self) -> CleanupPlan | None:
        """The plan, if the clean-up was begun; SpillError if its stores have changed since."""
        fields = self._read(PLAN_FILE, "cleanup-plan")
        if fields is None:
            return None
        output = fields.optional_text("output")
        stores = fields.take("stores")
        owed = fields.optional_text("owed")
        raw = fields.items("bins")
        fields.done()
        if output != self._output or stores != self._stores:
            raise SpillError(
                f"{fields.place}: was made for other spilled state or another output",
                remedy=f"delete {self._storage.uri}/{self._folder} and the results to start again",
            )
        try:
            bins = tuple(bin_from_json(b) for b in raw)
            return CleanupPlan(bins, None if owed is None else int(owed))
        except (KeyError, TypeError, ValueError) as e:
            refuse(fields.place, f"holds a bin that cannot be read: {e}")

    def begin(self, plan: CleanupPlan) -> None:
        """Record the plan; OutputError if the output folder already holds something."""
        self._claim_output()
        body = {
            "output": self._output,
            "stores": self._stores,
            # As text: it may have more digits than other readers' integers.
            "owed": None if plan.owed is None else str(plan.owed),
            "bins": [b.to_json() for b in plan.bins],
        }
        self._write(PLAN_FILE, "cleanup-plan", body)

    def done(self, bins: Sequence[Bin]) -> dict[int, BinResult]:
        """The finished bins whose files are all there."""
        found = {}
        for b in bins:
            name = f"{b.name}.json"
            fields = self._read(name, "cleanup-bin")
            if fields is None:
                continue
            result = result_from_json(fields.take("result"), fields.place)
            fields.done()
            if result.index == b.index and self._has_files(result):
                found[b.index] = result
        return found

    def finish(self, b: Bin, result: BinResult) -> None:
        """Record that a bin's files are in place: the bin's commit."""
        self._write(f"{b.name}.json", "cleanup-bin", {"result": result.to_json()})

    def clear(self, bins: Sequence[Bin]) -> None:
        """Delete what unfinished bins left in the output."""
        names = {b.name for b in bins}
        for b in bins:
            self._storage.remove(f"{self._folder}/{b.name}.json")
        if isinstance(self.output, LocalStorage):
            # Whatever is there, also under the temporary names that `names` leaves out.
            root = self.output.root
            left = [p.name for p in root.iterdir()] if root.is_dir() else []
        else:
            left = [] if self.output is None else self.output.names("")
        for name in left:
            if self.output is not None and name.lstrip(".").rpartition("-")[0] in names:
                self.output.remove(name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes on this machine from working on the same clean-up."""
        if not isinstance(self._storage, LocalStorage):
            yield
            return
        path = self._storage.root / self._folder / "lock"
        self._storage.make_folder(path.parent)
        with open(path, "a+b") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SpillError(
                    f"{self._storage.uri}: another process is cleaning up this store",
                    remedy="wait for it to end, or stop it; what it finished is kept",
                ) from None
            yield

    def _claim_output(self) -> None:
        if self.output is None:
            return
        if isinstance(self.output, LocalStorage):
            prepare_output(self.output.root)
            return
        try:
            found = self.output.names("")
        except OSError as e:
            raise OutputError(
                f"output {self.output.uri} cannot be looked at: {e}",
                remedy="see whether the service answers, and what the URI and the credentials say",
            ) from e
        if found:
            raise OutputError(
                f"output {self.output.uri} is not empty: it holds {found[0]!r}",
                remedy="empty it or name another; results are never mixed with what is there",
            )

    def _has_files(self, result: BinResult) -> bool:
        if self.output is None:
            return not result.files
        for name, size in result.files:
            try:
                file = self.output.open(name)
            except FileNotFoundError:
                return False
            file.close()
            if file.size != size:
                return False
        return True

    def _read(self, name: str, kind: str) -> Fields | None:
        place = f"{self._storage.uri}/{self._folder}/{name}"
        try:
            return unseal(kind, self._storage.read(f"{self._folder}/{name}"), place)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise SpillError(f"{place}: cannot be read: {e}", remedy="check the disk") from e

    def _write(self, name: str, kind: str, body: dict[str, Any]) -> None:
        try:
            self._storage.write(f"{self._folder}/{name}", seal(kind, body))
        except OSError as e:
            raise SpillError(
                f"{self._storage.uri}/{self._folder}/{name}: cannot be written: {e}",
                remedy="free space there and clean up again; what is finished is kept",
            ) from e


def output_place(output: str | Path | None) -> str | None:
    """The output as it is recorded: an absolute path or a URI; OutputError if it is neither."""
    if output is None:
        return None
    try:
        return open_storage(str(output)).uri
    except SpillError as e:
        raise OutputError(
            f"output {str(output)!r}: no file system serves it",
            remedy="give a local path or a URI that pyarrow.fs knows, such as s3://bucket/path",
        ) from e
