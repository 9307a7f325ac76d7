"""What a worker needs of the world outside it. No method blocks, none calls back at once.

Three shells have it: the process (`shell.server`: gRPC, threads, files), one program that runs a
query by itself (`shell.local`), and the tests' simulator, on virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dovetail_processor.jobs import Lanes
from dovetail_processor.operators.links import Item
from dovetail_processor.sinks import Sink
from dovetail_processor.sources.file_source import FileSource
from dovetail_proto.assignment import DroppedRun, QueryTask, StreamTask
from dovetail_proto.errors import DovetailError
from dovetail_proto.feeds import LinkAck
from dovetail_proto.ids import ProcessorId, SplitId
from dovetail_proto.messages import ControlMessage, ReceivePartitions
from dovetail_proto.spill_format import SpillStore


class Files(Protocol):
    """What jobs open: called on lanes, may take long, and raise DovetailError."""

    def open_stream(self, task: StreamTask) -> FileSource:
        """The file that a stream is read from; InputError if it is not as declared."""

    def open_sink(self, task: QueryTask, row_group_bytes: int) -> Sink:
        """Where a query's results go."""

    def open_store(self, task: QueryTask) -> SpillStore | None:
        """Where a query's state may go; None if it has no place on disk."""

    def remove(self, dropped: Sequence[DroppedRun]) -> None:
        """Take what dropped queries wrote out of the way: a query of the same name may follow."""


class Shell(Lanes, Protocol):
    """See the module."""

    @property
    def files(self) -> Files:
        """For jobs."""

    def tell_manager(self, message: ControlMessage) -> None:
        """Send, or lose it."""

    def send_frame(self, to: ProcessorId, split: SplitId, number: int, item: Item | None) -> None:
        """Send a frame of a link to another processor's join, or lose it."""

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """Tell a split on another processor how far its join here is, or lose it."""

    def send_groups(
        self, to: ProcessorId, message: ReceivePartitions, ended: Callable[[], None]
    ) -> None:
        """Send state, or lose it; `ended` is an event when that is over."""

    def beat(self) -> None:
        """Something changed that the manager should hear of: send a heartbeat soon."""

    def wake(self) -> None:
        """Have the worker take a step soon: a neighbour is short of memory. From any thread."""

    def give_up(self, error: DovetailError) -> None:
        """The worker cannot go on."""
