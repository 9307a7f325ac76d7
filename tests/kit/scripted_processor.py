"""A processor that only talks: attaches to a real manager, reports, remembers what it hears."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, TypeVar

import grpc

from dovetail_proto.assignment import Assignment, assignment_from_json
from dovetail_proto.ids import ProcessorId, QueryName
from dovetail_proto.messages import (
    Assign,
    ControlMessage,
    Heartbeat,
    Join,
    QueryLoad,
    QueryStopped,
    Stage,
    StopQuery,
    StreamLoad,
)
from dovetail_proto.transport import Security, call_metadata, open_channel, raised
from dovetail_proto.wire import control as wire

PATIENCE_S = 120.0
"""Far longer than anything takes here; only a failure waits for it."""

BEAT_S = 0.05

HOST = "127.0.0.1:9"  # where it says that it answers

T = TypeVar("T")


class ScriptedProcessor:
    """One attachment. It acknowledges assignments and stops queries unless told not to."""

    def __init__(
        self,
        address: str,
        name: str,
        *,
        token: str = "",
        incarnation: int = 1,
        running: str | None = None,
        acknowledge: bool = True,
    ) -> None:
        self.name = ProcessorId(name)
        self.incarnation = incarnation
        self.acknowledge = acknowledge
        self.loads: dict[str, QueryLoad] = {}  # what it reports; filled from assignments
        self.streams: dict[str, StreamLoad] = {}
        self.heard: list[ControlMessage] = []
        self.error: Exception | None = None  # why the stream ended
        self._assigned = 0
        self._changed = threading.Condition()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._over = threading.Event()
        security = Security(token=token)
        self._channel = open_channel(address, security)
        call = self._channel.stream_stream("/dovetail.v1.Control/Attach")
        self._call = call(self._requests(), metadata=call_metadata(security))
        version_ = running if running is not None else version("dovetail")
        self.say(Join(self.name, incarnation, version_, 1 << 20, HOST))
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._beat, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def say(self, message: ControlMessage) -> None:
        """Send a message."""
        self.say_bytes(wire.encode(self.name, message))

    def say_bytes(self, data: bytes) -> None:
        """Send an envelope as it is."""
        self._outgoing.put(data)

    def wait(self, kind: type[T], such: Callable[[T], bool] = lambda m: True) -> T:
        """The first message of a kind for which `such` holds, heard already or yet to come."""

        def found() -> list[Any]:
            return [m for m in self.heard if isinstance(m, kind) and such(m)]

        self._until(lambda: bool(found()), f"no {kind.__name__} came; heard {self.heard}")
        first: T = found()[0]
        return first

    def assignment(self, such: Callable[[Assignment], bool] = lambda a: True) -> Assignment:
        """The newest assignment, once one came for which `such` holds."""

        def newest() -> Assignment | None:
            documents = [m.document for m in self.heard if isinstance(m, Assign)]
            return assignment_from_json(documents[-1]) if documents else None

        def fits() -> bool:
            seen = newest()
            return seen is not None and such(seen)

        self._until(fits, f"no such assignment came; the last was {newest()}")
        seen = newest()
        assert seen is not None
        return seen

    def ended(self) -> Exception:
        """Wait until the manager has ended the stream; the error it ended with."""
        self._until(lambda: self.error is not None, "the stream goes on")
        assert self.error is not None
        return self.error

    def close(self) -> None:
        """Let go of the manager, without a word."""
        self._over.set()
        self._outgoing.put(None)
        self._call.cancel()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._channel.close()

    def _until(self, true: Callable[[], bool], otherwise: str) -> None:
        with self._changed:
            assert self._changed.wait_for(true, PATIENCE_S), f"{self.name}: {otherwise}"

    def _requests(self) -> Iterator[bytes]:
        while (data := self._outgoing.get()) is not None:
            yield data

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            self.say(
                Heartbeat(
                    self.name,
                    self.incarnation,
                    100,
                    tuple(self.loads.values()),
                    False,
                    assigned=self._assigned,
                    streams=tuple(self.streams.values()),
                    rss_bytes=1000,
                    peak_rss_bytes=2000,
                    cpu_share=0.5,
                )
            )

    def _listen(self) -> None:
        try:
            for data in self._call:
                _, message = wire.decode(data)
                self._take(message)
            error: Exception = EOFError("the manager ended the stream")
        except grpc.RpcError as e:
            error = raised(e)
        with self._changed:
            self.error = error
            self._changed.notify_all()

    def _take(self, message: ControlMessage) -> None:
        if isinstance(message, Assign) and self.acknowledge:
            self._carry_out(assignment_from_json(message.document))
            self._assigned = message.version
        elif isinstance(message, StopQuery):
            self.loads.pop(message.query, None)
            self.say(QueryStopped(message.query, message.epoch))
        with self._changed:
            self.heard.append(message)
            self._changed.notify_all()

    def _carry_out(self, assignment: Assignment) -> None:
        """Report every query that is to run, and nothing of those that are not."""
        tasks = {q.name: q for q in assignment.queries}
        for gone in set(self.loads) - set(tasks):
            del self.loads[gone]
        for name, task in tasks.items():
            groups = len(task.map.groups_of(self.name))
            self.loads.setdefault(name, QueryLoad(name, groups, 0, 0, 0))


def load(query: str, stage: Stage = Stage.RUNNING, **fields: Any) -> QueryLoad:
    """A report."""
    given = {"groups": 2, "held_bytes": 10, "spilled_bytes": 5, "produced": 100, **fields}
    return QueryLoad(QueryName(query), stage=stage, **given)
