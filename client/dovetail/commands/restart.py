"""`dovetail restart`: a process of the cluster that `dovetail up` started here, again."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.commands.up import Config, DataDir
from dovetail_proto.errors import Domain, DovetailError, Refusal

if TYPE_CHECKING:
    from dovetail.admin_calls import AdminCalls
    from dovetail.upkeep import LeftCluster

POLL_S = 0.1


def restart(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A processor such as p2, or manager.")
    ],
    *,
    data_dir: DataDir = None,
    config: Config = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="For a processor that runs to leave.")
    ] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Start a process of `dovetail up` again, with the settings that it had.

    A manager may be restarted at any time: it goes on from its store. A processor that has died
    comes back without what it held in memory; one that runs is asked to leave first, so that
    nothing is lost.

    Example: dovetail restart p2
    """
    from dovetail.processes import end_processes
    from dovetail.settings import load
    from dovetail.upkeep import MANAGER, known_cluster

    left = known_cluster(load({"data_dir": data_dir}, config=config).settings)
    former = left.process(name)
    if name in left.running:
        if name != MANAGER:
            _let_leave(left, name, timeout)
        end_processes([(former.pid, former.started_s)])
    left.start([name])
    if as_json:
        print(json.dumps({"started": name, "pid": left.process(name).pid}))
    else:
        print(f"{name} was started again")


def _let_leave(left: LeftCluster, name: str, timeout_s: float) -> None:
    """Have the cluster take over what a processor holds; returns when it holds nothing."""
    until_s = time.monotonic() + timeout_s
    with left.admin() as admin:
        if _state(admin, name) not in ("alive", "leaving"):
            return  # the cluster goes on without it already
        admin.leave(name)
        while _state(admin, name) == "leaving":
            if time.monotonic() > until_s:
                raise Refusal(
                    Domain.MEMBER,
                    f"processor {name!r} has not left after {timeout_s:g} s",
                    remedy="it goes on leaving, and `dovetail status` shows its groups; ask again "
                    "later",
                    reason="busy",
                )
            time.sleep(POLL_S)


def _state(admin: AdminCalls, name: str) -> str:
    from dovetail_proto.admin import processor_state

    try:
        return processor_state(admin.get_cluster().processors, name)
    except DovetailError as e:
        raise Refusal(
            Domain.MEMBER,
            f"processor {name!r} runs, and what it holds is not known: {e.message}",
            remedy="`dovetail restart manager` first",
            reason="state",
        ) from e
