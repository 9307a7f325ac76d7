"""The manager's store, simulated: it keeps what is written, and looks at what that says."""

from __future__ import annotations

import json

from dovetail_manager.journal import Write
from dovetail_manager.membership import MemberState
from dovetail_manager.records import End
from dovetail_proto.assignment import Phase
from dovetail_proto.ids import Epoch
from dovetail_proto.partition_map import map_from_json
from kit.sim_world import Violation


class SimStore:
    """A linearizable store: an epoch, a revision and entries; it never fails itself."""

    def __init__(self) -> None:
        self.epoch = 0
        self.revision = 0
        self.entries: dict[str, str] = {}
        self.closing_s: dict[str, float] = {}  # when it was written down that a query closes
        self.failed: set[str] = set()  # queries
        self.died: set[str] = set()  # processors
        self.open_moves: set[str] = set()

    def acquire(self) -> tuple[Epoch, int, dict[str, str]]:
        """Let a new manager lead."""
        self.epoch += 1
        return Epoch(self.epoch), self.revision, dict(self.entries)

    def write(self, w: Write, now_s: float) -> str:
        """`ok`, `fenced` or `stale`; the same write twice is done once."""
        if w.epoch != self.epoch:
            return "fenced"
        if w.revision == self.revision:
            return "ok"
        if w.revision != self.revision + 1:
            return "stale"
        self._check_maps(w)
        for key, value in w.puts.items():
            if value is None:
                self.entries.pop(key, None)
                self.open_moves.discard(key.removeprefix("move/"))
            else:
                self.entries[key] = value
                self._note(key, value, now_s)
        self.revision = w.revision
        return "ok"

    def _note(self, key: str, value: str, now_s: float) -> None:
        kind, _, name = key.partition("/")
        if kind == "query":
            record = json.loads(value)
            if record["phase"] == Phase.CLOSING:
                self.closing_s.setdefault(name, now_s)
            if record["end"] == End.FAILED:
                self.failed.add(name)
        elif kind == "move":
            over = json.loads(value)["outcome"] is not None
            (self.open_moves.discard if over else self.open_moves.add)(name)
        elif kind == "member" and json.loads(value)["state"] == MemberState.DEAD:
            self.died.add(name)

    def _check_maps(self, w: Write) -> None:
        """One owner per group and version: a map follows its predecessor by a version.

        Or it is of the same version, and has forgotten a processor that owns nothing.
        """
        for key, value in w.puts.items():
            if key.startswith("map/") and key in self.entries and value is not None:
                old, new = map_from_json(self.entries[key]), map_from_json(value)
                owners = [[m.processors[o] for o in m.owners] for m in (old, new)]
                same = new.version == old.version and owners[0] == owners[1]
                if new.version != old.version + 1 and not same:
                    raise Violation(f"map version {new.version} follows {old.version}")
