"""Stops a process exactly at a named step, by wrapping the functions that every step goes through.

A test writes a fault into the file of a process; the process that comes to that point removes the
file and sends itself the signal. So the moment is exact, and the product has no code for it.

    before hears SendPartitions    a processor is about to look at that message; the manager too
    after says Received            it was handed to gRPC, which may or may not have sent it
    before writes commit           of the store: planned, chosen, commit, ended
    before marks · after marks     a split host sends End-of-Moved-Partitions
    before sees marker             … and the sender meets it behind the last row
    before ships · after ships     the sender's ReceivePartitions
    before hands over              a leaver sends a piece of its result log
    before writes left             of the store: a leaver is let go
    before writes leaves home      … a stream's home takes nothing more in
    before writes rehomed          … a stream has another home; `settled`: and everyone knows
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import uvicorn  # noqa: F401 - a fresh process has everything at hand

from dovetail.services import run_manager, run_processor  # noqa: F401 - likewise
from dovetail_manager.admin.rest import app  # noqa: F401 - likewise
from dovetail_manager.control_server import Outgoing
from dovetail_manager.controller import Controller
from dovetail_manager.journal import Write
from dovetail_manager.server import ManagerServer  # noqa: F401 - likewise
from dovetail_manager.store.sqlite_store import SqliteStore
from dovetail_processor.group_moves import GroupMoves
from dovetail_processor.operators.links import Links
from dovetail_processor.shell.peers import Peers
from dovetail_processor.shell.server import ProcessorServer
from dovetail_processor.worker import Worker


def put_in(name: str, folder: Path) -> None:
    """Have this process look for faults of its name in `folder`."""
    armed = folder / name

    def point(step: str) -> None:
        try:
            signal_name, wanted = armed.read_text().split(" ", 1)
        except (OSError, ValueError):
            return
        if wanted == step:
            armed.rename(folder / f"{name}.met")
            # To this thread: one that is sent to the process may find it steps further on.
            signal.pthread_kill(threading.get_ident(), getattr(signal, signal_name))

    def wrap(owner: type, method: str, step: Callable[..., str]) -> None:
        inner = getattr(owner, method)

        @wraps(inner)
        def around(*args: Any, **words: Any) -> Any:
            named = step(*args)
            point(f"before {named}")
            result = inner(*args, **words)
            point(f"after {named}")
            return result

        setattr(owner, method, around)

    wrap(Worker, "control", lambda _, m, *rest: f"hears {_kind(m)}")
    wrap(ProcessorServer, "tell_manager", lambda _, m: f"says {_kind(m)}")
    wrap(Links, "mark", lambda *_: "marks")
    wrap(GroupMoves, "marker", lambda *_: "sees marker")
    wrap(Peers, "send_groups", lambda *_: "ships")
    wrap(Peers, "send_log", lambda *_: "hands over")
    wrap(Controller, "handle", lambda _, source, m, now_s: f"hears {_kind(m)}")
    wrap(Outgoing, "send", lambda _, m: f"says {_kind(m)}")
    wrap(SqliteStore, "write", lambda _, w: f"writes {_written(w)}")


def _kind(message: object) -> str:
    return type(message).__name__


def _written(write: Write) -> str:
    """Which write of a move, of a leaver or of its streams it is; empty for all others."""
    for key, text in write.puts.items():
        if key.startswith("stream/") and text:
            stream = json.loads(text)
            if stream["next_home"]:
                return "leaves home"
            return "rehomed" if stream["handover"] else "settled"
        if key.startswith("member/") and text and json.loads(text)["state"] == "left":
            return "left"
        if key.startswith("move/") and text:
            record = json.loads(text)
            if record["outcome"]:
                return "ended"
            if any(k.startswith("map/") for k in write.puts):
                return "commit"
            return "chosen" if record["chunks"] else "planned"
    return ""
