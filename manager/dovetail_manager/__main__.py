"""`python -m dovetail_manager`: one manager as a process, until SIGTERM or SIGINT.

It ends with 0 when it was asked to, and with the exit code of its cause when another manager took
office or the store is damaged: whoever supervises it starts it again, and it goes on.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.transport import Security

log = structlog.get_logger()


def main(words: Sequence[str] | None = None) -> int:
    """Run a manager; the exit code."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    args = _arguments().parse_args(words)
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    try:
        manager = ManagerServer(_settings(args))
        manager.start()
    except DovetailError as e:
        log.error("manager cannot start", error=e.message, remedy=e.remedy, code=e.code)
        return e.exit_code
    if args.address_file:
        _announce(args.address_file, manager.address)
    while not asked.is_set() and not manager.wait(0):
        asked.wait(0.2)
    manager.stop()
    if not asked.is_set() and manager.cause is not None:
        return manager.cause.exit_code
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m dovetail_manager", description="Run a manager of a Dovetail cluster."
    )
    add = parser.add_argument
    store = os.environ.get("DOVETAIL_STORE")
    add("--store", default=store, required=store is None, help="sqlite:<path> or redis://…")
    add("--listen", default="127.0.0.1:7070", help="host:port of gRPC (%(default)s)")
    add("--rest", help="host:port of REST; none without it")
    add("--name", help="who holds the office, for people")
    add("--token-file", type=Path, help="a file with the token; or set DOVETAIL_TOKEN")
    add("--read-token-file", type=Path, help="a file with the token of those who may only look")
    add("--certificate", type=Path, help="PEM, for TLS")
    add("--key", type=Path, help="PEM, of the certificate")
    add("--authority", type=Path, help="PEM, who signs the others' certificates")
    add("--mutual", action="store_true", help="ask callers for a certificate")
    add("--spill-root", help="folder or URI for spilled state")
    add("--dead-after-s", type=float, default=10.0, help="silence that is death (%(default)s)")
    add("--address-file", type=Path, help="write the address here once it answers")
    return parser


def _settings(args: argparse.Namespace) -> ManagerSettings:
    security = Security(
        token=_secret(args.token_file) or os.environ.get("DOVETAIL_TOKEN", ""),
        authority=args.authority,
        certificate=args.certificate,
        key=args.key,
        mutual=args.mutual,
    )
    named = {"name": args.name} if args.name else {}
    return ManagerSettings(
        store=args.store,
        listen=args.listen,
        rest=args.rest,
        security=security,
        read_token=_secret(args.read_token_file) or os.environ.get("DOVETAIL_READ_TOKEN", ""),
        spill_root=args.spill_root,
        dead_after_s=args.dead_after_s,
        **named,
    )


def _secret(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"token file {str(path)!r} cannot be read: {e}") from e


def _announce(path: Path, address: str) -> None:
    """Whole or not at all: somebody waits for the file."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(address + "\n", encoding="utf-8")
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
