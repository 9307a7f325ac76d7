"""A whole processor in this process: its workers, started and ended together.

`dovetail processor` runs one until it has left; `dovetail.local(processors=1)` runs one beside the
program that asked for it.
"""

from __future__ import annotations

import structlog

from dovetail_processor.shell.processor_settings import ProcessorSettings
from dovetail_processor.shell.server import ProcessorServer

LOOK_UP_S = 0.5
"""How soon it is seen that the workers are over."""

log = structlog.get_logger("processor")


class Processor:
    """The workers of one processor, each the others' neighbour."""

    def __init__(self, settings: ProcessorSettings) -> None:
        workers = {w.name: w for w in map(ProcessorServer, settings.of_workers())}
        for worker in workers.values():
            worker.neighbours = {n: w for n, w in workers.items() if w is not worker}
        self._workers = list(workers.values())

    def run(self) -> None:
        """Until all have left or `over` is called; raises why one could not go on."""
        started: list[ProcessorServer] = []
        try:
            for worker in self._workers:
                worker.start()
                started.append(worker)
                log.info("listens", processor=worker.name, address=worker.address)
            wait_s = LOOK_UP_S / len(self._workers)
            while sum(w.wait(wait_s) for w in self._workers) < len(self._workers):
                pass
        finally:
            for worker in started:
                worker.stop()

    def leave(self) -> None:
        """Have the workers leave, so that what they hold goes to others; a second call ends them.

        Safe in a signal handler.
        """
        for worker in self._workers:
            worker.leave()

    def over(self) -> None:
        """Have `run` return; safe in a signal handler."""
        for worker in self._workers:
            worker.over()
