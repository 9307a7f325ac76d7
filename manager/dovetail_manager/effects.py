"""What the controller has others do: its only output besides what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail_manager.journal import Write
from dovetail_proto.ids import MoveId, ProcessorId
from dovetail_proto.messages import ControlMessage

RECORDS_KEPT = 1000
"""Records of one history: a day of moves at the default interval is half of it."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to processor `to`; it may be lost, repeated or late."""

    to: ProcessorId
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class AppendHistory:
    """Put numbered records into a history of the store; then report `move`, if there is one."""

    history: str
    records: Mapping[int, str]
    keep: int = RECORDS_KEPT
    move: MoveId | None = None


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that people can follow; `kind` is one of `dovetail_proto.admin.EVENT_KINDS`."""

    kind: str
    query: str = ""
    stream: str = ""
    processor: str = ""
    move: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class StepDown:
    """Another manager leads: stop deciding, stop writing, start over as a stranger."""

    cause: str


Effect = Send | Write | AppendHistory | LogEvent | StepDown
