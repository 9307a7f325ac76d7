"""The streams at home on one processor, and which queries' splits listen to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dovetail_processor.cluster.ingress import Ingress, Sent, not_here
from dovetail_processor.cluster.query_run import QueryRun
from dovetail_proto.assignment import StreamTask
from dovetail_proto.errors import DovetailError
from dovetail_proto.ids import QueryName, SplitId, StreamName, input_of
from dovetail_proto.messages import StreamLoad
from dovetail_proto.roots import Roots

BATCH_SHARE = 16
"""A batch read from a file is at most this part of the memory limit, for all streams together."""

BATCH_BYTES_MAX = 2 << 20
"""64 K rows of 32 bytes, the batch that the join's kernels are measured with."""


class Streams:
    """See the module. `runs` is the worker's: all queries here, by name."""

    def __init__(
        self,
        runs: Mapping[QueryName, QueryRun],
        roots: Roots,
        clock: Callable[[], float],
    ) -> None:
        self._roots = roots  # files of streams lie below these
        self._runs = runs
        self._clock = clock
        self._streams: dict[StreamName, Ingress] = {}

    def all(self) -> list[Ingress]:
        """Every stream."""
        return list(self._streams.values())

    def get(self, name: StreamName) -> Ingress:
        """One stream; Refusal if its home is elsewhere."""
        stream = self._streams.get(name)
        if stream is None:
            raise not_here(name)
        return stream

    def set_tasks(self, tasks: Iterable[StreamTask], memory_bytes: int) -> None:
        """These streams are at home here from now on, and no others."""
        wanted = {t.name: t for t in tasks}
        for name, stream in list(self._streams.items()):
            if name not in wanted or _another(stream.task, wanted[name]):
                self._streams.pop(name).drop()
        for name, task in wanted.items():
            if name in self._streams:
                self._streams[name].task = task
            else:
                share = memory_bytes // BATCH_SHARE // len(wanted)
                batch_bytes = min(max(1, share), BATCH_BYTES_MAX)
                self._streams[name] = Ingress(task, batch_bytes, self._roots, self._clock)

    def listen(self) -> None:
        """Queries may have come, or begun to close.

        Files that somebody listens to are read from now on.
        """
        for stream in self.all():
            readers = self._readers(stream)
            stream.keep_closing({split for _, split in readers})
            for run, split in readers:
                run.splits.splits[split].rows += stream.inherited.get(run.task.name, 0)
                if run.closes:
                    stream.closes(split)
            stream.inherited.clear()
            listeners = self._listeners(stream)
            if listeners:
                needed = {c for run, split in listeners for c in run.splits.splits[split].reads}
                try:
                    stream.listened(needed)
                except DovetailError as e:
                    listeners[-1][0].fail(str(e))

    def accept(self, name: StreamName, sent: Sent) -> None:
        """A source sent a batch; raises InputError or Refusal."""
        stream = self.get(name)
        stream.accept(sent, len(self._queries(stream)))

    def waiting(self, run: QueryRun) -> dict[SplitId, tuple[int, int]]:
        """Batches, and their rows, that a query has yet to take in, per split."""
        return {
            split: stream.owes(split) if run.closes else stream.waiting
            for stream in self.all()
            for reader, split in self._readers(stream)
            if reader is run
        }

    def owes(self, run: QueryRun) -> bool:
        """Whether something waits that was accepted for a query which closes."""
        return any(stream.owes(s)[0] for stream in self.all() for s in run.splits.splits)

    @property
    def flow(self) -> bool:
        """Whether `route` would get on."""
        return any(map(self._flows, self.all()))

    def route(self) -> None:
        """One batch of a stream whose listeners all have room; of each in its turn."""
        for name, stream in self._streams.items():
            if self._flows(stream):
                self._route(stream)
                self._streams[name] = self._streams.pop(name)  # to the end of the row
                return

    def close(self) -> None:
        """Stop reading files."""
        for stream in self.all():
            stream.close()

    def left(self, stream: Ingress) -> bool:
        """Whether a stream that gets another home has been left: all that came is joined."""
        return stream.idle and all(run.splits.drained(s) for run, s in self._listeners(stream))

    def load(self, stream: Ingress) -> StreamLoad:
        """What the manager hears of a stream."""
        handover = ""
        if stream.task.leaves and self.left(stream):
            taken = {r.task.name: r.splits.splits[s].rows for r, s in self._listeners(stream)}
            handover = stream.handover(taken).to_json()
        return StreamLoad(stream.name, stream.rows, stream.ended, handover, stream.rows_left)

    def _listeners(self, stream: Ingress) -> list[tuple[QueryRun, SplitId]]:
        return [(run, split) for run, split in self._readers(stream) if run.listens]

    def _readers(self, stream: Ingress) -> list[tuple[QueryRun, SplitId]]:
        return [
            (run, split)
            for run in self._runs.values()
            for split in run.splits.splits
            if run.task.plan.inputs[input_of(split)].stream == stream.name
        ]

    def _queries(self, stream: Ingress) -> set[QueryName]:
        return {run.task.name for run, _ in self._listeners(stream)}

    def _closing(self, stream: Ingress) -> list[tuple[QueryRun, SplitId]]:
        """Queries that close, have something to take in, and have room for it."""
        readers = self._readers(stream)
        return [(run, s) for run, s in readers if run.closes and stream.owes(s)[0] and run.takes]

    def _flows(self, stream: Ingress) -> bool:
        return bool(self._closing(stream)) or self._all_take(stream)

    def _all_take(self, stream: Ingress) -> bool:
        readers = self._readers(stream)
        if not stream.ready or any(run.closes and stream.awaits(s) for run, s in readers):
            return False
        listeners = self._listeners(stream)
        if not listeners:
            return stream.task.path is None
        return all(run.takes for run, _ in listeners)

    def _route(self, stream: Ingress) -> None:
        for run, split in self._closing(stream):
            run.take(split, stream.next_for(split))
            run.follow_up()
        if not self._all_take(stream):
            return
        listeners = self._listeners(stream)
        try:
            taken = stream.next()
        except DovetailError as e:
            stream.close()
            for run, _ in listeners:
                run.fail(str(e))
            return
        if taken is None:
            return
        batch, routed = taken
        for run, split in listeners:
            run.take(split, batch)
            run.follow_up()
        if routed is not None:
            routed(stream.rows, len(self._queries(stream)))


def _another(known: StreamTask, task: StreamTask) -> bool:
    """Whether it was dropped and made anew, or was elsewhere meanwhile."""
    returned = task.handover not in ("", known.handover)
    return task.created_s != known.created_s or returned
