"""A spill store: the state that a query pushed out of memory, and how its run ended.

    query.json                        the query, written first
    pushes/000001/input-00.parquet    one file per input per push
    pushes/000001/manifest.json       written last: a push without it does not exist, nor does one
                                      that the manifest of a later push says it replaces
    closed.json                       the run ended, these are its pushes and counters
    cleanup/…                         what the clean-up has finished

Read `storage` for how names appear, `writer` for a push, `merging` for how many become one,
`reader` for reading one back. While a run writes to its store, no manifest is kept in memory: what
is known of each push is a line.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dovetail_proto.errors import SpillError
from dovetail_proto.query import QueryPlan, plan_from_json
from dovetail_proto.spill_format import merging
from dovetail_proto.spill_format.layout import input_layout
from dovetail_proto.spill_format.reader import InputFile
from dovetail_proto.spill_format.records import (
    CLOSED_FILE,
    MANIFEST_FILE,
    PUSHES_FOLDER,
    PUSHES_MAX,
    QUERY_FILE,
    PushManifest,
    RunRecord,
    check_store_id,
    manifest_from_fields,
    push_folder,
    record_from_fields,
)
from dovetail_proto.spill_format.sealed import Fields, hex32, refuse, seal, unseal
from dovetail_proto.spill_format.storage import Storage, open_storage
from dovetail_proto.spill_format.writer import PushWriter

_PUSH_NAME = re.compile(r"[0-9]{6}")


def run_at(storage: Storage) -> str | None:
    """The run of the store at a place, whatever else is wrong with it; None if there is none."""
    query = _read(storage, "query", QUERY_FILE)
    return None if query is None else query[0].text("run")


def require_empty(storage: Storage) -> None:
    """SpillError unless nothing is there yet."""
    try:
        taken = bool(storage.names(""))
    except OSError as e:
        raise SpillError(
            f"spill store {storage.uri}: cannot be created: {e}",
            remedy="give a folder that can be written",
        ) from e
    if taken:
        raise SpillError(
            f"spill store {storage.uri}: the folder is not empty",
            remedy="give an empty or new folder, or clean up what is there first",
            taken=True,
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a store remembers of a committed push."""

    push: int
    crc32: int  # of its manifest
    bytes: int  # of its files
    files: tuple[str, ...]  # without the manifest
    level: int  # how often its rows were merged


class SpillStore:
    """An open store. Make one with `create` or `open`; instances share nothing but the files."""

    def __init__(self, storage: Storage, plan: QueryPlan, store_id: str, run: str = "") -> None:
        self.storage = storage
        self.plan = plan
        self.id = store_id  # 32 hexadecimal digits, given when the store was created
        self.run = run or store_id  # the same in the stores that several processors fill in one run
        self.layouts = tuple(input_layout(i) for i in plan.inputs)
        self._kept: list[_Kept] = []  # committed and not replaced, by number
        self._read: list[PushManifest] | None = None  # of `_kept`; None once something is written
        self._last = 0  # the highest number that a push has had
        self._writing = False

    @classmethod
    def create(cls, root: str, plan: QueryPlan, *, run: str = "", store_id: str = "") -> SpillStore:
        """Start an empty store for `plan` at a path or URI; SpillError if something is there.

        `run` names a run that has a store on each of several processors; empty: this one alone.
        `store_id` is 32 hexadecimal digits that no other store has; empty: drawn.
        """
        return cls.create_in(open_storage(root), plan, run=run, store_id=store_id)

    @classmethod
    def create_in(
        cls, storage: Storage, plan: QueryPlan, *, run: str = "", store_id: str = ""
    ) -> SpillStore:
        """As `create`, in a storage that is already open."""
        store = cls(storage, plan, store_id or uuid.uuid4().hex, run)
        require_empty(storage)
        try:
            body = {"store": store.id, "run": store.run, "plan": json.loads(plan.to_json())}
            storage.write(QUERY_FILE, seal("query", body))
        except OSError as e:
            raise SpillError(
                f"spill store {storage.uri}: cannot be created: {e}",
                remedy="give a folder that can be written",
            ) from e
        return store

    @classmethod
    def open(cls, root: str) -> SpillStore:
        """Open a store at a path or URI and check every manifest; SpillError names what is bad."""
        return cls.open_in(open_storage(root))

    @classmethod
    def open_in(cls, storage: Storage) -> SpillStore:
        """As `open`, in a storage that is already open."""
        query = _read(storage, "query", QUERY_FILE)
        if query is None:
            raise SpillError(
                f"spill store {storage.uri}: there is no {QUERY_FILE}",
                remedy="give the folder that a run used as --spill-dir",
            )
        fields = query[0]
        store_id = check_store_id(fields.text("store"), fields.place)
        run = fields.text("run")
        try:
            plan = plan_from_json(json.dumps(fields.take("plan")))
        except SpillError as e:
            raise SpillError(f"{fields.place}: {e.message}", remedy=e.remedy) from e
        fields.done()
        store = cls(storage, plan, store_id, run)
        numbers = _push_numbers(storage)
        store._last = max(numbers, default=0)
        store._read = store._manifests(numbers)
        store._kept = [_kept(m, level=0) for m in store._read]
        _check_generations(store.root, plan.partitions, store._read)
        if store.closed:
            store.run_record()
        return store

    @property
    def root(self) -> str:
        """The path or URI that `open` takes."""
        return self.storage.uri

    @property
    def closed(self) -> bool:
        """Whether the run ended in order, so that every row that can owe a result is here."""
        return self.storage.exists(CLOSED_FILE)

    def begin_push(self) -> PushWriter:
        """Start a push; ValueError while another one is under way or after `close_run`."""
        if self._writing or self.closed:
            raise ValueError("a push is under way, or the run is closed")
        push = self._last + 1
        if push > PUSHES_MAX:
            raise SpillError(
                f"spill store {self.root}: {PUSHES_MAX} pushes is the most it can hold",
                remedy="raise the memory limit or the share that one push takes",
            )
        self._writing = True
        self._last = push
        return PushWriter(
            self.storage,
            self.layouts,
            key_types=self.plan.key_types,
            store_id=self.id,
            push=push,
            ended=self._ended,
        )

    def pushes(self) -> list[PushManifest]:
        """The manifests of the committed pushes, oldest first; read anew while a run writes."""
        return self._manifests([k.push for k in self._kept]) if self._read is None else self._read

    def to_merge(self, *, closing: bool = False) -> list[int]:
        """Which pushes `merge` should make one of, by number; [] if they are few or large.

        `closing` leaves fewer: no more will come.
        """
        chosen = merging.choose([(k.level, k.bytes) for k in self._kept], closing=closing)
        return [self._kept[c].push for c in chosen]

    def merge(self, pushes: list[int], given_up: Callable[[], bool] = lambda: False) -> None:
        """Make one push of several. The rows keep their groups and generations.

        SpillError if it fails or is `given_up`, and then the store is as it was.
        """
        old = [k for k in self._kept if k.push in pushes]
        manifests = self._manifests(pushes)
        manifest = merging.merge(self, manifests, self.begin_push(), given_up)
        self._kept = [k for k in self._kept if k not in old and k.push != manifest.push]
        self._kept.append(_kept(manifest, level=1 + max(k.level for k in old)))
        for k in old:  # the manifest first: what cannot be deleted after it is never read
            for name in (f"{push_folder(k.push)}/{MANIFEST_FILE}", push_folder(k.push)):
                with contextlib.suppress(OSError):
                    self.storage.remove(name)

    def open_input(self, push: PushManifest, index: int) -> InputFile | None:
        """One input's file of a push, its footer checked; None if the push has no such rows."""
        entry = push.inputs[index]
        return None if entry is None else InputFile(self.storage, entry, self.layouts[index])

    def close_run(self, record: RunRecord) -> None:
        """Record that the run ended: all its state that owes results is pushed, and on the disk."""
        if self._writing:
            raise ValueError("a push is under way")
        pushes = [{"push": k.push, "manifest_crc32": hex32(k.crc32)} for k in self._kept]
        body = {"store": self.id, **record.body(), "pushes": pushes}
        try:
            for k in self._kept:
                self.storage.make_durable([*k.files, f"{push_folder(k.push)}/{MANIFEST_FILE}"])
            self.storage.write(CLOSED_FILE, seal("closed", body))
        except OSError as e:
            raise SpillError(
                f"spill store {self.root}: the end of the run cannot be recorded: {e}",
                remedy="free space there",
                errno=e.errno,
            ) from e

    def run_record(self) -> RunRecord:
        """How the run ended, checked against the pushes; SpillError if it has not ended."""
        found = _read(self.storage, "closed", CLOSED_FILE)
        if found is None:
            raise SpillError(
                f"spill store {self.root}: its run was not closed (there is no {CLOSED_FILE}), "
                "so rows that were in memory are lost and what is owed is unknown",
                remedy="run the query again with another --spill-dir",
            )
        fields = found[0]
        if fields.text("store") != self.id:
            refuse(fields.place, "belongs to another spill store")
        record = record_from_fields(fields, self.plan)
        listed = {}
        for i, raw in enumerate(fields.items("pushes")):
            push = Fields(raw, f"{fields.place}: push {i}")
            listed[push.integer("push", 1, PUSHES_MAX)] = push.hex32("manifest_crc32")
            push.done()
        fields.done()
        present = {k.push: k.crc32 for k in self._kept}
        for number in sorted(listed.keys() | present.keys()):
            place = f"{self.root}/{push_folder(number)}/{MANIFEST_FILE}"
            if number not in present:
                refuse(place, "is missing, though the run committed this push")
            if present[number] != listed.get(number):
                refuse(place, "is not the manifest that the run committed")
        return record

    def _ended(self, committed: PushManifest | None) -> None:
        self._writing = False
        if committed is not None:
            self._read = None
            self._kept.append(_kept(committed, level=0))

    def _manifests(self, numbers: list[int]) -> list[PushManifest]:
        """Those that exist, by number. The newest are read first: they tell whom they replace."""
        found: list[PushManifest] = []
        replaced: set[int] = set()
        for number in sorted(numbers, reverse=True):
            if number not in replaced and (manifest := self._manifest(number)) is not None:
                found.append(manifest)
                replaced.update(manifest.replaces.tolist())
        return found[::-1]

    def _manifest(self, push: int) -> PushManifest | None:
        found = _read(self.storage, "manifest", f"{push_folder(push)}/{MANIFEST_FILE}")
        if found is None:
            return None  # never committed
        fields, crc32 = found
        return manifest_from_fields(
            fields, plan=self.plan, store_id=self.id, push=push, crc32=crc32
        )


def _kept(manifest: PushManifest, level: int) -> _Kept:
    files = tuple(e.name for e in manifest.inputs if e is not None)
    return _Kept(manifest.push, manifest.crc32, manifest.bytes, files, level)


def _check_generations(root: str, groups: int, manifests: list[PushManifest]) -> None:
    """Refuse a generation of a group that two pushes hold."""
    if not manifests:
        return
    pushes = np.repeat([p.push for p in manifests], [p.group.size for p in manifests])
    pairs = np.concatenate([p.generation * groups + p.group for p in manifests])
    order = np.argsort(pairs, kind="stable")
    twice = np.flatnonzero(pairs[order][1:] == pairs[order][:-1])
    if twice.size:
        first, again = pushes[order[twice[0]]], pushes[order[twice[0] + 1]]
        generation, group = divmod(int(pairs[order[twice[0]]]), groups)
        refuse(
            f"{root}/{push_folder(again)}/{MANIFEST_FILE}",
            f"group {group} has generation {generation} in push {first} too",
        )


def _push_numbers(storage: Storage) -> list[int]:
    """Every push folder, committed or not, so that a new push never meets old remains."""
    return [int(n) for n in storage.names(PUSHES_FOLDER) if _PUSH_NAME.fullmatch(n)]


def _read(storage: Storage, kind: str, name: str) -> tuple[Fields, int] | None:
    """A sealed file's fields and its CRC-32; None if it does not exist."""
    place = f"{storage.uri}/{name}"
    try:
        data = storage.read(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise SpillError(f"{place}: cannot be read: {e}", remedy="check the disk") from e
    return unseal(kind, data, place), zlib.crc32(data)
