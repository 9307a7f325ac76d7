"""Every refusal of Dovetail: what went wrong, whose fault it is, whether to retry, what to do.

A message names the thing and its value and what was expected; `remedy` says what to do next.
`code` is stable and safe to match on; `exit_code` is what the command line ends with.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, ClassVar

HIDDEN = "…"
"""Stands in a URI for what it carries to be let in."""

_CREDENTIALS = re.compile(
    r"(?<=://)[^/\s]*@|(?<=[?&])([^=&\s]*(?:secret|password|key|token)[^=&\s]*)=[^&\s'\"]*"
)


def without_credentials(text: str) -> str:
    """`text` as it may be shown: URIs in it lose what they carry to be let in."""
    return _CREDENTIALS.sub(lambda m: f"{m[1]}={HIDDEN}" if m[1] else f"{HIDDEN}@", text)


class Fault(StrEnum):
    """Who can put it right."""

    USER = "user"  # the request is wrong: it will fail again unchanged
    ENVIRONMENT = "environment"  # a disk, network or other service: it may work later
    DOVETAIL = "dovetail"  # a defect of ours


class DovetailError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a defect."""

    code: ClassVar[str] = "internal"
    fault: ClassVar[Fault] = Fault.DOVETAIL
    retry: ClassVar[bool] = False
    exit_code: int = 1  # of the command line

    def __init__(self, message: str, *, remedy: str = "", **details: Any) -> None:
        # Errors travel far: to callers who may only look, to logs, into the store.
        self.message = without_credentials(message)
        self.remedy = without_credentials(remedy)
        super().__init__(self.message)
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class ConfigError(DovetailError):
    """A setting, flag or name that cannot be worked with."""

    code = "config"
    fault = Fault.USER
    exit_code = 2


class QueryError(DovetailError):
    """SQL that does not parse, names something unknown or asks for what is not supported.

    `line` and `column` (both from 1; 0 if unknown) point into the SQL text.
    """

    code = "query"
    fault = Fault.USER
    exit_code = 2

    def __init__(self, message: str, *, line: int = 0, column: int = 0, remedy: str = "") -> None:
        place = f"line {line}, column {column}: " if line else ""
        super().__init__(place + message, remedy=remedy, line=line, column=column)


class InputError(DovetailError):
    """An input that is missing, damaged or not of its declared schema."""

    code = "input"
    fault = Fault.USER
    exit_code = 3


class OutputError(DovetailError):
    """An output place that cannot be written."""

    code = "output"
    fault = Fault.ENVIRONMENT
    exit_code = 4


class MemoryLimitError(DovetailError):
    """A memory limit too small for what was asked."""

    code = "memory-limit"
    fault = Fault.USER
    exit_code = 5


class SpillError(DovetailError):
    """A spill store that cannot be written, or that is damaged, incomplete or of another query."""

    code = "spill"
    fault = Fault.ENVIRONMENT
    exit_code = 6


class Unauthenticated(DovetailError):  # noqa: N818 - an answer, not a fault
    """A call without a token, or with one that nobody has."""

    code = "unauthenticated"
    fault = Fault.USER
    exit_code = 8


class Forbidden(DovetailError):  # noqa: N818 - an answer, not a fault
    """A call that the caller's role does not allow."""

    code = "forbidden"
    fault = Fault.USER
    exit_code = 8


class Domain(StrEnum):
    """Which rule of the protocols a refused message broke; stable, and sent over the wire."""

    MESSAGE = "message"  # a field is missing, malformed or out of its bounds
    EPOCH = "epoch"  # from a manager that has been replaced
    MEMBER = "member"  # an unknown, dead or wrong processor
    QUERY = "query"  # an unknown or ended query
    STREAM = "stream"  # an unknown or ended stream
    MOVE = "move"  # an unknown or ended move
    STEP = "step"  # a step that does not follow from where the move stands
    MAP = "map"  # a partition map that skips versions or names unknown owners
    GROUP = "group"  # a group that does not exist, or that the processor does not own
    MEMORY = "memory"  # a receiver without room
    BUSY = "busy"  # another adaptation runs on the processor


class RetryHint(StrEnum):
    """What the sender of a refused message should do."""

    NEVER = "never"  # the same message will always be refused
    LATER = "later"  # the same message may be accepted later
    REFRESH = "refresh"  # read the current state, then send a new message


_HINTS = {
    Domain.MAP: RetryHint.REFRESH,
    Domain.MEMORY: RetryHint.REFRESH,
    Domain.BUSY: RetryHint.LATER,
}


class Refusal(DovetailError):  # noqa: N818 - an answer, not a fault
    """A message that a machine of the protocols did not accept; its state is as it was before.

    `domain` says which rule was broken, `retry_hint` what to do about it; `details` name the
    offending value. A name that nobody has (`reason` is `unknown`) ends the command line as any
    other wrong name does.
    """

    code = "refused"
    fault = Fault.USER

    def __init__(self, domain: Domain, message: str, *, remedy: str = "", **details: Any) -> None:
        super().__init__(message, remedy=remedy, **details)
        self.domain = domain
        if details.get("reason") == "unknown":
            self.exit_code = ConfigError.exit_code
        self.retry_hint = _HINTS.get(domain, RetryHint.NEVER)


class Interrupted(DovetailError):  # noqa: N818 - an outcome, not a fault
    """The user stopped the run; what was read so far is closed and can be cleaned up."""

    code = "interrupted"
    fault = Fault.USER
    exit_code = 130
