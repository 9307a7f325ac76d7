"""The command line of a processor: flags and environment to settings, signals to an end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import structlog

from dovetail_processor.cluster.server import ProcessorServer, ProcessorSettings
from dovetail_proto.errors import DovetailError
from dovetail_proto.transport import Security

log = structlog.get_logger("processor")


def main() -> None:
    """Run a processor until it is told to end; exits with an error's code if it cannot go on."""
    settings = _settings(sys.argv[1:])
    try:
        run(settings)
    except DovetailError as e:
        log.error("ends", processor=settings.name, cause=str(e))
        sys.exit(e.exit_code)


def run(settings: ProcessorSettings) -> None:
    """A processor in this process, until SIGTERM or SIGINT, or until it has left."""
    server = ProcessorServer(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.over())
    server.start()
    log.info("listens", processor=settings.name, address=server.address)
    try:
        server.wait()
    finally:
        server.stop()


def _settings(words: list[str]) -> ProcessorSettings:
    from importlib.metadata import version

    parser = argparse.ArgumentParser(prog="dovetail_processor", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--manager", required=True, metavar="HOST:PORT")
    parser.add_argument("--memory-bytes", required=True, type=int)
    parser.add_argument("--data-dir", required=True, type=Path)
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--advertise", metavar="HOST", help="the host that others dial")
    parser.add_argument("--heartbeat-s", type=float, default=1.0)
    for name in ("authority", "certificate", "key"):
        parser.add_argument(f"--{name}", type=Path, help="PEM file, for TLS")
    parser.add_argument("--mutual", action="store_true", help="ask callers for certificates")
    a = parser.parse_args(words)
    return ProcessorSettings(
        name=a.name,
        manager=a.manager,
        memory_bytes=a.memory_bytes,
        data_dir=a.data_dir,
        version=version("dovetail"),
        listen=a.listen,
        advertise=a.advertise,
        security=Security(
            os.environ.get("DOVETAIL_TOKEN", ""), a.authority, a.certificate, a.key, a.mutual
        ),
        heartbeat_s=a.heartbeat_s,
    )
