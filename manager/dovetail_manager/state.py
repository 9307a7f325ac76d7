"""All that the manager of one epoch knows, and the effects of the event that it handles.

Functions of `members`, `streams`, `queries`, `moves` and `adaptation` change it; `controller` calls
them. Whatever must survive goes through `write`: what follows from it is done when it is durable.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from itertools import count

from dovetail_manager.adaptation.admission import Admission
from dovetail_manager.adaptation.policies import policy
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_manager.assignments import Assignments
from dovetail_manager.effects import Effect, LogEvent, Send
from dovetail_manager.journal import Entry, Journal
from dovetail_manager.load import LoadTracker
from dovetail_manager.membership import Membership
from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.placement import Placement
from dovetail_manager.moves.steps import MoveSettings
from dovetail_manager.query import Query
from dovetail_manager.records import QueryRecord, StreamRecord
from dovetail_manager.refusals import unknown
from dovetail_manager.removals import Removal
from dovetail_proto.errors import Domain
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import ControlMessage
from dovetail_proto.partition_map import PartitionMap


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Everything that the controller is started with."""

    version: str = "0"
    adaptation: AdaptationSettings = field(default_factory=AdaptationSettings)
    moves: MoveSettings = field(default_factory=MoveSettings)
    sample_s: float = 1.0
    """Between two looks at the load; processors report as often."""

    dead_after_s: float = 10.0
    """A silent processor is declared dead: ten missed heartbeats."""


@dataclass(slots=True, eq=False)
class Stream:
    """One declared stream."""

    record: StreamRecord | None = None  # as decided; None: dropped
    durable: StreamRecord | None = None  # as the store has it; None: it is not there (any more)
    frozen_version: int = 0  # of the first assignment with which its home takes nothing more in
    rehomed_version: int = 0  # of the first assignment with its new home; both 0: not known


class State:
    """See the module."""

    def __init__(self, epoch: Epoch, revision: int, settings: ControllerSettings) -> None:
        self.epoch = epoch
        self.settings = settings
        self.now_s = 0.0  # of the event that is being handled
        self.effects: list[Effect] = []  # of it, in order
        self.journal = Journal(epoch, revision)
        self.membership = Membership(settings.version, settings.dead_after_s)
        self.load = LoadTracker()
        self.assignments = Assignments(epoch)
        self.streams: dict[StreamName, Stream] = {}
        self.queries: dict[QueryName, Query] = {}
        self.removals: dict[str, Removal] = {}  # by run; of dropped queries only
        self.move_numbers = count(1)  # of this epoch's moves, whichever query's
        self.orders_given = 0  # forced pushes of this epoch; numbers the next one
        self.sampled_s = float("-inf")  # when the load was last looked at

    # What happens to others -----------------------------------------------------------------------

    def send(self, to: ProcessorId, message: ControlMessage) -> None:
        """Send a message."""
        self.effects.append(Send(to, message))

    def write(self, entry: Entry) -> None:
        """Write down, after all that was written before."""
        self.effects += self.journal.append(entry)

    def log(self, kind: str, **about: str) -> None:
        """Tell people."""
        self.effects.append(LogEvent(kind, **about))

    # What there is --------------------------------------------------------------------------------

    def declared(self) -> dict[StreamName, StreamRecord]:
        """All streams, as decided."""
        return {name: s.record for name, s in self.streams.items() if s.record is not None}

    def stream(self, name: str) -> StreamRecord:
        """A stream by its name; Refusal if there is none."""
        found = self.streams.get(StreamName(name))
        if found is None or found.record is None:
            raise unknown(Domain.STREAM, f"stream {name!r} is unknown", "create it first")
        return found.record

    def query(self, name: str) -> Query:
        """A query by its name; Refusal if there is none."""
        found = self.queries.get(QueryName(name))
        if found is None:
            raise unknown(Domain.QUERY, f"query {name!r} is unknown")
        return found

    def add_query(self, record: QueryRecord, current: PartitionMap) -> Query:
        """Take a query in, with machines of its own."""
        placement = Placement(current, record.split_hosts)
        moves = Coordinator(
            record.name, self.epoch, placement, self.settings.moves, numbers=self.move_numbers
        )
        shared = self.settings.adaptation
        own = {n: v for n, v in asdict(record.disk).items() if hasattr(shared, n)}
        admission = Admission(policy(record.policy), replace(shared, **own))
        admission.forced_bytes = record.forced_bytes
        query = self.queries[record.name] = Query(record, None, placement, moves, admission)
        return query

    def readers(self, stream: StreamName) -> list[Query]:
        """Queries that read a stream and have not ended."""
        return [
            q for q in self.queries.values() if not q.record.end and q.record.inputs_from(stream)
        ]

    def inputs(self, record: QueryRecord) -> dict[StreamName, StreamRecord]:
        """The streams that a query reads, each once."""
        read = [self.stream(i.stream) for i in record.plan.inputs]
        return {s.name: s for s in read}

    def check(self) -> None:
        """Assert every invariant of the parts."""
        for query in self.queries.values():
            query.check()
        for stream in self.streams.values():
            assert stream.record is not None or stream.durable is not None, "a stream that is gone"
