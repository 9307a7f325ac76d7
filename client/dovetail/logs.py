"""Logs of every process: events with their ids on standard error."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

from dovetail_proto.errors import without_credentials

LogFormat = Literal["console", "json"]


def set_up_logs(level: str = "info", form: LogFormat = "json") -> None:
    """Events with their ids on standard error, for people or for programs."""
    last: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_credentials,
            *([structlog.processors.format_exc_info] if form == "json" else []),
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=_Stderr,
    )


def _without_credentials(_: object, __: str, event: Any) -> Any:
    """No log shows what a URI carries to be let in."""
    return {k: without_credentials(v) if isinstance(v, str) else v for k, v in event.items()}


class _Stderr:
    """Writes to whatever standard error is at the time; a program may have replaced it."""

    def __init__(self, *_: object) -> None: ...

    def msg(self, message: str) -> None:
        """A line."""
        sys.stderr.write(message + "\n")
        sys.stderr.flush()

    debug = info = warning = warn = error = critical = exception = fatal = log = msg
