"""Where the groups and the splits of one query are: as decided, and as the store has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail_proto.ids import MapVersion, ProcessorId, SplitId
from dovetail_proto.partition_map import PartitionMap

SplitHosts = Mapping[ProcessorId, tuple[SplitId, ...]]


@dataclass(slots=True)
class Placement:
    """Changed by the coordinator of the query's moves and by writes that are durable."""

    map: PartitionMap  # as the store has it
    split_hosts: SplitHosts  # likewise
    next_map: PartitionMap = field(init=False)  # as the store has it after all issued writes
    lost: set[ProcessorId] = field(default_factory=set)  # died without owning or hosting anything
    versions: dict[ProcessorId, MapVersion] = field(default_factory=dict)
    """A version of the map that each participant of a move surely has."""

    def __post_init__(self) -> None:
        self.next_map = self.map

    @property
    def splits(self) -> tuple[SplitId, ...]:
        """All splits of the query."""
        return tuple(sorted(s for splits in self.split_hosts.values() for s in splits))

    def owns_groups(self, processor: ProcessorId) -> bool:
        """Whether a group is at `processor`, or will be after the writes under way."""
        return len(self.next_map.groups_of(processor)) > 0

    def was_at(self, processor: ProcessorId) -> bool:
        """Whether `processor` owned a group since it came: results and state may be there."""
        return processor in self.next_map.processors

    def forget(self, processor: ProcessorId) -> PartitionMap | None:
        """A processor is gone and has left nothing unwritten: the map to write without it."""
        if not self.was_at(processor):
            return None
        self.next_map = self.next_map.without(processor)
        return self.next_map

    def regain(self, processor: ProcessorId) -> None:
        """A new incarnation of a processor that died is here, empty."""
        self.lost.discard(processor)
        self.versions.pop(processor, None)
