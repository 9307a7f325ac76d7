"""A manager or a processor as the process that it is: logs, signals, and an end with its parent.

`dovetail manager` and `dovetail processor` run one from settings; a local cluster starts
`python -m dovetail.services SPEC.json` for each of its own, where the spec is what `manager_spec`
and `processor_spec` write. With `--tethered` any of them ends when its standard input or its parent
does: the parent holds the other end of that pipe, so nothing is left whatever becomes of it.
(Linux's own means, PR_SET_PDEATHSIG, would end children with the thread that started them.)

SIGTERM and SIGINT ask a processor to leave, so that what it holds goes to others; a second one, or
END_NOW, ends it at once.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dovetail.logs import set_up_logs
from dovetail_proto.errors import DovetailError
from dovetail_proto.transport import Security

if TYPE_CHECKING:
    from dovetail_manager.server import ManagerSettings
    from dovetail_processor.shell.processor_settings import ProcessorSettings

TOKEN_VARIABLES = ("DOVETAIL_TOKEN", "DOVETAIL_READ_TOKEN")
"""Specs are files; secrets go by the environment."""

END_NOW = signal.SIGQUIT
"""Ends a processor without leaving: the whole cluster goes, or its parent is gone."""

END_GRACE_S = 10.0
"""What a process gets to end by itself once its parent is gone."""

PARENT_CHECK_S = 1.0
"""How often: a port is free again a second after the parent has gone."""


def run_manager(settings: ManagerSettings) -> None:
    """A manager in this process until a signal; raises why it ended by itself."""
    from dovetail_manager.server import ManagerServer

    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, END_NOW):
        signal.signal(number, lambda *_: asked.set())
    with ManagerServer(settings) as manager:
        while not asked.is_set() and not manager.wait(0):
            asked.wait(0.1)
        if not asked.is_set() and manager.cause is not None:
            raise manager.cause


def run_processor(settings: ProcessorSettings) -> None:
    """A processor in this process until it has left; signals have it leave, or end at once.

    Its workers leave together. One that cannot go on ends the process: raises why.
    """
    from dovetail_processor.shell.process import Processor

    processor = Processor(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: processor.leave())
    signal.signal(END_NOW, lambda *_: processor.over())
    processor.run()


def end_process(code: int = 0) -> NoReturn:
    """End a process whose server has stopped, without taking the interpreter down first.

    Threads of gRPC and of the REST server are still there. One that the interpreter stops while it
    holds the lock of a call would make it wait for ever, once it collects that call.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def manager_spec(settings: ManagerSettings) -> dict[str, Any]:
    """A manager's settings as JSON, without its secrets."""
    return {"kind": "manager", **_plain(asdict(replace(settings, read_token="")))}


def processor_spec(settings: ProcessorSettings) -> dict[str, Any]:
    """A processor's settings as JSON, without its secrets."""
    return {"kind": "processor", **_plain(asdict(settings))}


def main() -> int:
    """The program of a local cluster's processes; the exit code."""
    if "--tethered" in sys.argv[2:]:
        tether()
    set_up_logs()
    import structlog

    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        if spec.pop("kind") == "manager":
            run_manager(_manager_settings(spec))
        else:
            run_processor(_processor_settings(spec))
    except DovetailError as e:
        structlog.get_logger().error("ends", cause=e.message, remedy=e.remedy, code=e.code)
        return e.exit_code
    return 0


def _manager_settings(spec: dict[str, Any]) -> ManagerSettings:
    from dovetail_manager.adaptation.snapshot import AdaptationSettings
    from dovetail_manager.moves.steps import MoveSettings
    from dovetail_manager.server import ManagerSettings

    return ManagerSettings(
        **{
            **spec,
            "security": _security(spec["security"]),
            "read_token": os.environ.get("DOVETAIL_READ_TOKEN", ""),
            "spark_masters": tuple(spec["spark_masters"]),
            "adaptation": AdaptationSettings(**spec["adaptation"]),
            "moves": MoveSettings(**spec["moves"]),
            "roots": tuple(spec["roots"]),
        }
    )


def _processor_settings(spec: dict[str, Any]) -> ProcessorSettings:
    from dovetail_processor.shell.processor_settings import ProcessorSettings

    return ProcessorSettings(
        **{
            **spec,
            "data_dir": Path(spec["data_dir"]),
            "security": _security(spec["security"]),
            "roots": tuple(spec["roots"]),
        }
    )


def _security(fields: dict[str, Any]) -> Security:
    files = {n: Path(fields[n]) for n in ("authority", "certificate", "key") if fields[n]}
    return Security(os.environ.get("DOVETAIL_TOKEN", ""), mutual=fields["mutual"], **files)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """As JSON takes it: paths as text, the token left out."""
    security = {k: str(v) if isinstance(v, Path) else v for k, v in fields["security"].items()}
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}
    return {**plain, "security": {**security, "token": ""}}


def tether() -> None:
    """Have this process end when its standard input does, or its parent."""
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), name="tether", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:  # a child of the parent may hold the pipe's other end as well
        if select.select([0], [], [], PARENT_CHECK_S)[0] and not os.read(0, 1 << 10):
            break
    os.kill(os.getpid(), END_NOW)
    threading.Event().wait(END_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    end_process(main())
