"""What a clean-up has planned and finished, in the store, so that it can be stopped at any byte.

    cleanup/<output>/attempt.json       which attempt works on it: the one that began last
    cleanup/<output>/plan.json          the bins, written before any result
    cleanup/<output>/part-00003-<plan>-<attempt>.json
                                        bin 3 is done: these files, rows and checksum
    cleanup/<output>/lock               held by the process at work (local stores)

A bin's files are in place, durably, before its marker is; so a bin without marker is done again
from nothing, and one with it never. Each output has its own folder here: cleaning up into another
place is another clean-up.

Object stores have no lock, so there a later attempt takes over. Names carry the attempt: two at
once never write the same one. An attempt writes a marker and then looks whether it is still the
last to have begun; a new one first says that it begins and then reads the plan and the markers. So
either the old one sees the new one and stops, or the new one sees all that the old one finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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

ATTEMPT_FILE = "attempt.json"
PLAN_FILE = "plan.json"
RESULT_NAME = re.compile(r"\.?part-[0-9]{5,}-([0-9a-f]{8})[0-9a-f]{8}-")
"""How names of results begin, temporary ones too: bin, then attempt, which begins with the run."""


class CleanupBusy(SpillError):  # noqa: N818 - an outcome, not a fault
    """Another process works on the same clean-up."""


@dataclass(frozen=True, slots=True)
class BinResult:
    """What a finished bin produced."""

    index: int
    combinations: int  # owed combinations, before residual conditions
    rows: int  # results written
    checksum: int  # order-free, uint64
    files: tuple[tuple[str, int], ...]  # names in the output folder, with their sizes in bytes
    shared: tuple[tuple[int, int], ...]  # per group: combinations that the run has produced
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
            "shared": [list(s) for s in self.shared],
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
        shared=tuple(fields.int_pairs("shared")),
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
        self._run = hashlib.sha256(catalog.stores[0].run.encode()).hexdigest()[:8]
        self._held = ExitStack()  # locks

    def claim(self) -> str:
        """Begin an attempt and return its id; whoever worked on this clean-up will stop.

        CleanupBusy if a clean-up of other stores works on the same local folder.
        """
        self._lock_output()
        attempt = self._run + secrets.token_hex(4)
        self._write(ATTEMPT_FILE, "cleanup-attempt", {"attempt": attempt})
        return attempt

    def require(self, attempt: str) -> None:
        """SpillError if another attempt has begun since."""
        fields = self._read(ATTEMPT_FILE, "cleanup-attempt")
        if fields is None or fields.text("attempt") != attempt:
            raise SpillError(
                f"{self._storage.uri}: another clean-up of this store has begun and took over",
                remedy="let that one end: it keeps what this one finished; if it was stopped, "
                "clean up again",
            )

    def plan(self) -> CleanupPlan | None:
        """The plan, if the clean-up was begun; SpillError if its stores have changed since."""
        fields = self._read(PLAN_FILE, "cleanup-plan")
        if fields is None:
            return None
        output = fields.optional_text("output")
        stores = fields.take("stores")
        owed = fields.optional_text("owed")
        counted = tuple(fields.ints("counted").tolist())
        raw = fields.items("bins")
        fields.done()
        if output != self._output or stores != self._stores:
            raise SpillError(
                f"{fields.place}: was made for other spilled state or another output",
                remedy=f"delete {self._storage.uri}/{self._folder} and the results to start again",
            )
        try:
            bins = tuple(bin_from_json(b) for b in raw)
            return CleanupPlan(bins, None if owed is None else int(owed), counted)
        except (KeyError, TypeError, ValueError) as e:
            refuse(fields.place, f"holds a bin that cannot be read: {e}")

    def begin(self, plan: CleanupPlan, attempt: str) -> None:
        """Record the plan; OutputError if the output folder already holds something."""
        try:
            self._claim_output()
        finally:
            self.require(attempt)  # comes first: what is in the output may be a later attempt's
        body = {
            "output": self._output,
            "stores": self._stores,
            # As text: it may have more digits than other readers' integers.
            "owed": None if plan.owed is None else str(plan.owed),
            "counted": list(plan.counted),
            "bins": [b.to_json() for b in plan.bins],
        }
        self._write(PLAN_FILE, "cleanup-plan", body)
        self.require(attempt)

    def done(self, plan: CleanupPlan) -> dict[int, BinResult]:
        """The finished bins whose files are all there."""
        bins = {f"{b.name}-{plan.id}": b.index for b in plan.bins}
        found: dict[int, BinResult] = {}
        try:
            names = self._storage.names(self._folder)
        except OSError as e:
            raise SpillError(
                f"{self._storage.uri}/{self._folder}: cannot be read: {e}", remedy="check the disk"
            ) from e
        for name in names:
            index = bins.get(name.rpartition("-")[0])
            fields = self._read(name, "cleanup-bin") if index is not None else None
            if fields is None:
                continue
            result = result_from_json(fields.take("result"), fields.place)
            fields.done()
            if result.index == index and self._has_files(result):
                found[index] = result
        return found

    def finish(self, b: Bin, result: BinResult, plan_id: str, attempt: str) -> None:
        """Record that a bin's files are in place: the bin's commit.

        SpillError if another attempt has begun; the bin is then that one's to do or to keep.
        """
        marker = f"{b.name}-{plan_id}-{attempt}.json"
        try:
            self.require(attempt)
        except SpillError:
            # Without a marker (which a twin of this task may have written) nobody counts on them.
            if self.output is not None and not self._storage.exists(f"{self._folder}/{marker}"):
                for name, _ in result.files:
                    self.output.remove(name)
            raise
        self._write(marker, "cleanup-bin", {"result": result.to_json()})
        self.require(attempt)

    def strays(self, finished: Iterable[BinResult]) -> list[str]:
        """Results of this run in the output that no finished bin names: stopped attempts'.

        OutputError if there are results of another run too.
        """
        if self.output is None:
            return []
        if isinstance(self.output, LocalStorage):
            # Whatever is there, also under the temporary names that `names` leaves out.
            root = self.output.root
            names = [p.name for p in root.iterdir()] if root.is_dir() else []
        else:
            names = self._output_names(self.output)
        kept = {name for r in finished for name, _ in r.files}
        found = {name: m[1] for name in names if (m := RESULT_NAME.match(name))}
        others = [name for name, run in found.items() if run != self._run]
        if others:
            raise OutputError(
                f"output {self.output.uri} holds results of another run: {others[0]!r}",
                remedy="two clean-ups were given one output at once: empty it, then clean up each "
                "into a place of its own",
            )
        return [name for name in found if name not in kept]

    def sweep(self, finished: Iterable[BinResult], attempt: str) -> None:
        """Delete the strays; SpillError if another attempt has begun, whose results they may be."""
        found = self.strays(finished)
        self.require(attempt)  # so whoever begins from now on has written none of those found
        for name in found:
            assert self.output is not None
            self.output.remove(name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes on this machine from working on the same clean-up."""
        with self._held:
            if isinstance(self._storage, LocalStorage):
                path = self._storage.root / self._folder / "lock"
                self._storage.make_folder(path.parent)
                what = f"{self._storage.uri}: another process is cleaning up this store"
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                self._held.callback(os.close, handle)
                _lock(handle, what)
            yield

    def _lock_output(self) -> None:
        if not isinstance(self.output, LocalStorage):
            return
        root = self.output.root
        with suppress(OSError):  # whoever writes there will say what is wrong with it
            root.mkdir(parents=True, exist_ok=True)
            folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            self._held.callback(os.close, folder)
            _lock(folder, f"output {str(root)!r}: another process is cleaning up into this folder")

    def _claim_output(self) -> None:
        if self.output is None:
            return
        if isinstance(self.output, LocalStorage):
            prepare_output(self.output.root)
            return
        found = self._output_names(self.output)
        if found:
            raise OutputError(
                f"output {self.output.uri} is not empty: it holds {found[0]!r}",
                remedy="empty it or name another; results are never mixed with what is there",
            )

    def _output_names(self, output: Storage) -> list[str]:
        try:
            return output.names("")
        except OSError as e:
            raise OutputError(
                f"output {output.uri} cannot be looked at: {e}",
                remedy="see whether the service answers, and what the URI and the credentials say",
            ) from e

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


def _lock(handle: int, what: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CleanupBusy(
            what, remedy="wait for it to end, or stop it; what it finished is kept"
        ) from None


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
