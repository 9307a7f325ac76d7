"""The streams hosted on one worker, and the queries that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail_processor.operators.file_feed import FileFeed
from dovetail_processor.operators.home import Home, not_here
from dovetail_processor.process_memory import ProcessMemory
from dovetail_processor.query import Query
from dovetail_processor.shell.interface import Shell
from dovetail_proto.assignment import Phase, StreamTask
from dovetail_proto.errors import DovetailError
from dovetail_proto.ids import QueryName, SplitId, StreamName
from dovetail_proto.memory import BATCH_BYTES_MIN
from dovetail_proto.messages import StreamLoad

BATCH_SHARE = 32
"""A batch read from a file is at most this part of the memory limit, for all streams together."""

READERS_MAX = 4
"""Of one file: they decode some 4 GB of text a second, more than a machine's workers join."""


class Streams:
    """See the module. `queries` is the worker's; `forget` hears of streams that go.

    A file is read by as many lanes at once as the process has workers, if memory allows it.
    """

    def __init__(
        self,
        queries: Mapping[QueryName, Query],
        memory: ProcessMemory,
        shell: Shell,
        clock: Callable[[], float],
        forget: Callable[[str], None],
    ) -> None:
        self._queries = queries
        self._memory = memory
        self._shell = shell
        self._clock = clock
        self._forget = forget
        self.homes: dict[StreamName, Home] = {}

    def home(self, name: StreamName) -> Home:
        """A stream; Refusal if it is hosted elsewhere."""
        if name not in self.homes:
            raise not_here(name)
        return self.homes[name]

    def waits_for(self, query: Query, split: SplitId) -> tuple[int, int, int]:
        """What a split's reader takes next and up to which sequence, and the rows between."""
        home = self.homes.get(query.inputs.stream_of(split))
        if home is None or split not in home.readers:
            return 0, 0, 0
        return home.waits_for(split)

    def has_fed(self, query: Query, split: SplitId) -> bool:
        """Whether a split has taken all that it will get."""
        home = self.homes.get(query.inputs.stream_of(split))
        if home is None or split not in home.readers:
            return query.task.phase is Phase.CLOSING
        return home.has_fed(split)

    def let_go(self, query: Query) -> None:
        """A query reads nothing any more."""
        for split in query.inputs.readers:
            if (home := self.homes.get(query.inputs.stream_of(split))) is not None:
                home.remove_reader(split)

    def drop(self) -> None:
        """Host nothing any more."""
        for home in self.homes.values():
            home.drop()

    def set_tasks(self, wanted: Mapping[StreamName, StreamTask]) -> None:
        """These streams are hosted here from now on, and no others."""
        for name, home in list(self.homes.items()):
            if name not in wanted or _another(home.task, wanted[name]):
                self.homes.pop(name).drop()
                self._forget(name)
        for name, task in wanted.items():
            if name in self.homes:
                self.homes[name].set_task(task)
            else:
                self.homes[name] = self._home(task, len(wanted))

    def _home(self, task: StreamTask, streams: int) -> Home:
        feed = None
        if task.path is not None:
            share = self._memory.part_bytes // BATCH_SHARE // streams
            ahead_bytes = self._memory.ahead_bytes // streams
            lanes = min(self._memory.workers, READERS_MAX) if ahead_bytes else 1
            feed = FileFeed(
                task.name,
                [self._shell.lane(f"{task.name}-file") for _ in range(lanes)],
                lambda: self._shell.files.open_stream(task),
                batch_bytes=max(share, BATCH_BYTES_MIN),
                ahead_bytes=ahead_bytes,
            )
        return Home(task, feed, lambda e: self._stream_failed(task.name, e), self._clock())

    def _stream_failed(self, name: StreamName, error: DovetailError) -> None:
        for query in list(self._queries.values()):
            if any(query.inputs.stream_of(split) == name for split in query.inputs.readers):
                query.fail(error)

    def set_readers(self) -> None:
        """Queries may have come, begun to close, been paused, or host other splits."""
        for name, home in self.homes.items():
            readers = {
                split: query
                for query in self._queries.values()
                for split in query.inputs.readers
                if query.inputs.stream_of(split) == name and query.reads
            }
            for gone in set(home.readers) - set(readers):
                home.remove_reader(gone)
            for split, query in readers.items():
                self._set_reader(home, query, split)
            home.inherited.clear()

    def _set_reader(self, home: Home, query: Query, split: SplitId) -> None:
        reader = query.inputs.readers[split]
        reader.paused = query.task.phase is Phase.PAUSED
        if split not in home.readers:
            reader.rows += home.inherited.get(query.task.name, 0)
            try:
                home.add_reader(reader)
            except DovetailError as e:
                query.fail(e)
                return
        if query.task.phase is Phase.CLOSING:
            if home.task.path is not None and not home.ended:
                query.interrupt()
            home.end_reader(split)

    def left(self, home: Home) -> bool:
        """Whether a stream that gets another home has been left: all that came is joined."""
        return home.idle and all(
            self._queries[r.query].links.drained(r.split)
            for r in home.readers.values()
            if not r.gone
        )

    def load(self, home: Home) -> StreamLoad:
        """What the manager hears of a stream."""
        handover = ""
        if home.task.leaves and self.left(home):
            taken = {r.query: r.rows for r in home.readers.values() if not r.gone}
            handover = home.handover(taken).to_json()
        return StreamLoad(home.name, home.rows_routed, home.ended, handover, home.rows_left)


def _another(known: StreamTask, task: StreamTask) -> bool:
    """Whether it was dropped and made anew, or was elsewhere meanwhile."""
    returned = task.handover not in ("", known.handover)
    return task.created_s != known.created_s or returned
