"""Who owns which group: one versioned map per query, and patches that carry it to the splits.

    version 7   group   0   1   2   3        moved([1, 3], "p2")        version 8
                owner   p1  p1  p2  p1   ─────────────────────────▶     p1  p2  p2  p2
                since   1   1   7   1                                   1   8   7   8

A map is immutable; the manager's store holds the true one. `since` remembers at which version a
group got its owner, so a patch between any two versions is one comparison, and a split that is
several versions behind catches up with one message. Invariant: every group has exactly one owner
at every version, and versions grow by one per committed change.

As text, owners and `since` are packed, for neighbours mostly have both in common: a byte for many
groups as they are dealt, and 6 bytes for each if all have moved one by one.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail_proto.errors import ConfigError, Domain, Refusal
from dovetail_proto.ids import OWNER, GroupId, MapVersion, ProcessorId, QueryName
from dovetail_proto.query import PARTITIONS_MAX

PROCESSORS_MAX = 1 << 15
"""Far more machines than a manager can hear once a second; keeps an owner in two bytes."""


@dataclass(frozen=True, slots=True)
class MapPatch:
    """The change between two versions of one query's map; empty if nothing changed."""

    query: QueryName
    from_version: MapVersion
    to_version: MapVersion
    changes: tuple[tuple[GroupId, ProcessorId], ...]  # by group, each group once


@dataclass(frozen=True, slots=True, eq=False)
class PartitionMap:
    """The owners of all groups of `query` at `version`."""

    query: QueryName
    version: MapVersion
    processors: tuple[ProcessorId, ...]  # every owner of some group, and former ones but `without`
    owners: npt.NDArray[np.int32]  # per group: index into `processors`; read-only
    since: npt.NDArray[np.int64]  # per group: version at which it got its owner; read-only

    @classmethod
    def initial(cls, query: QueryName, owners: Sequence[ProcessorId]) -> PartitionMap:
        """Version 1, in which group g is owned by `owners[g]`."""
        names, index = np.unique(np.array(owners, dtype=object).astype(str), return_inverse=True)
        made = cls(
            query,
            MapVersion(1),
            tuple(ProcessorId(str(n)) for n in names),
            _frozen(index.astype(np.int32)),
            _frozen(np.ones(len(owners), dtype=np.int64)),
        )
        made.validate()
        return made

    @property
    def partitions(self) -> int:
        """How many groups there are."""
        return len(self.owners)

    def owner(self, group: GroupId) -> ProcessorId:
        """Who owns `group`; Refusal if there is no such group."""
        if not 0 <= group < len(self.owners):
            raise Refusal(
                Domain.GROUP,
                f"group {group} does not exist in query {self.query!r}: "
                f"it has groups 0 to {len(self.owners) - 1}",
                group=group,
            )
        return self.processors[int(self.owners[group])]

    def groups_of(self, processor: ProcessorId) -> npt.NDArray[np.int64]:
        """The groups that `processor` owns, ascending; empty if it owns none."""
        if processor not in self.processors:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.owners == self.processors.index(processor))

    def moved(self, groups: Sequence[GroupId], to: ProcessorId) -> PartitionMap:
        """The next version, in which `groups` are owned by `to`."""
        return self._changed([(g, to) for g in groups], MapVersion(self.version + 1))

    def without(self, former: ProcessorId) -> PartitionMap:
        """The same version, with nothing left of a processor that owns no group."""
        if former not in self.processors:
            return self
        assert not len(self.groups_of(former)), f"{former} owns groups"
        gone = self.processors.index(former)
        processors = self.processors[:gone] + self.processors[gone + 1 :]
        owners = self.owners - (self.owners > gone).astype(np.int32)
        return PartitionMap(self.query, self.version, processors, _frozen(owners), self.since)

    def patch_since(self, version: MapVersion) -> MapPatch:
        """What a holder of `version` must apply to hold this version."""
        if not 0 < version <= self.version:
            raise Refusal(
                Domain.MAP,
                f"no patch from map version {version} of query {self.query!r}: "
                f"known are 1 to {self.version}",
                version=version,
            )
        changed = np.flatnonzero(self.since > version)
        return MapPatch(
            self.query,
            version,
            self.version,
            tuple((GroupId(int(g)), self.processors[self.owners[g]]) for g in changed),
        )

    def applied(self, patch: MapPatch) -> PartitionMap:
        """The map after `patch`; itself if the patch brings nothing newer.

        Refusal if the patch starts after this version (versions would be skipped), ends before it
        starts, or names a group or owner that cannot be.
        """
        if patch.query != self.query:
            raise Refusal(
                Domain.QUERY, f"map patch of query {patch.query!r} does not fit {self.query!r}"
            )
        if patch.from_version > self.version or patch.to_version < patch.from_version:
            raise Refusal(
                Domain.MAP,
                f"map patch {patch.from_version}→{patch.to_version} of query {self.query!r} "
                f"does not follow version {self.version}",
                remedy=f"send a patch from version {self.version}",
                version=self.version,
            )
        if patch.to_version <= self.version:
            return self
        return self._changed(patch.changes, patch.to_version)

    def diff(self, newer: PartitionMap) -> tuple[tuple[GroupId, ProcessorId, ProcessorId], ...]:
        """(group, owner here, owner there) wherever the owners differ."""
        return tuple(
            (GroupId(g), self.owner(GroupId(g)), newer.owner(GroupId(g)))
            for g in range(self.partitions)
            if self.owner(GroupId(g)) != newer.owner(GroupId(g))
        )

    def validate(self) -> None:
        """Raise ConfigError unless every group has one known owner and versions make sense."""
        problem = ""
        if not 0 < len(self.owners) <= PARTITIONS_MAX or len(self.since) != len(self.owners):
            problem = f"{len(self.owners)} owners and {len(self.since)} versions of groups"
        elif not 0 < len(self.processors) <= PROCESSORS_MAX:
            problem = f"{len(self.processors)} processors"
        elif len(set(self.processors)) != len(self.processors):
            problem = "a processor is listed twice"
        elif bad := [p for p in self.processors if not OWNER.fullmatch(p)]:
            problem = f"processor name {bad[0]!r}"
        elif self.owners.min() < 0 or self.owners.max() >= len(self.processors):
            problem = "an owner that is not listed"
        elif self.version < 1 or self.since.min() < 1 or self.since.max() > self.version:
            problem = f"a group's version is outside 1 to {self.version}"
        if problem:
            raise ConfigError(f"partition map of query {self.query!r} is not valid: {problem}")

    def to_json(self) -> str:
        """The map as text for the store; `map_from_json` reads it back."""
        return json.dumps(
            {
                "query": self.query,
                "version": self.version,
                "processors": self.processors,
                "owners": _packed(self.owners.astype("<i4")),
                "since": _packed(self.since.astype("<i8")),
            }
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PartitionMap)
            and (self.query, self.version) == (other.query, other.version)
            and self.partitions == other.partitions
            and all(
                self.owner(GroupId(g)) == other.owner(GroupId(g)) for g in range(self.partitions)
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def _changed(
        self, changes: Sequence[tuple[GroupId, ProcessorId]], version: MapVersion
    ) -> PartitionMap:
        for group, to in changes:
            self.owner(group)  # refuses a group that does not exist
            if not OWNER.fullmatch(to):
                raise Refusal(Domain.MEMBER, f"group {group} cannot be owned by {to!r}")
        processors = (*self.processors, *sorted({p for _, p in changes} - set(self.processors)))
        groups = [g for g, _ in changes]
        owners = self.owners.copy()
        since = self.since.copy()
        owners[groups] = [processors.index(p) for _, p in changes]
        since[groups] = version
        return PartitionMap(self.query, version, processors, _frozen(owners), _frozen(since))


def map_from_json(text: str) -> PartitionMap:
    """Read what `PartitionMap.to_json` wrote; ConfigError if it is anything else."""
    try:
        raw: dict[str, Any] = json.loads(text)
        made = PartitionMap(
            QueryName(raw["query"]),
            MapVersion(raw["version"]),
            tuple(ProcessorId(p) for p in raw["processors"]),
            _frozen(_unpacked(raw["owners"], "<i4").astype(np.int32)),
            _frozen(_unpacked(raw["since"], "<i8").astype(np.int64)),
        )
        made.validate()
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as e:
        raise ConfigError(f"not a partition map: {e}", remedy="restore the manager's store") from e
    return made


def _packed(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(array.tobytes())).decode()


def _unpacked(text: str, kind: str) -> npt.NDArray[Any]:
    """What `_packed` made, of at most PARTITIONS_MAX groups: a forged text cannot swell."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(text), PARTITIONS_MAX * np.dtype(kind).itemsize)
    if not unpacker.eof:
        raise ValueError(f"packed groups are cut short or more than {PARTITIONS_MAX}")
    return np.frombuffer(data, dtype=kind)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array
