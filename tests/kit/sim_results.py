"""Results read back as clients read them: the manager says where the logs are, processors read.

Both are the product's code. One of the processors may have been started again by then, with
another data folder: a log that is not there must be an error, never fewer results.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from dovetail_processor.shell.result_log import Listener, LogRead
from dovetail_processor.shell.threads import WorkerLoop
from dovetail_processor.worker import Worker
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.errors import OutputError
from dovetail_proto.feeds import ReadResults
from dovetail_proto.ids import LogName, QueryName
from dovetail_proto.result_logs import logs_to_read
from kit.sim_queries import together
from kit.sim_world import Violation

if TYPE_CHECKING:
    from kit.sim_run import Scenario, Submission

ANOTHER_FOLDER = 0.2
"""How often a processor is started again with another data folder."""


class _Loop:
    """What `LogRead` needs of the thread that runs a worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def ask(self, what: Callable[[], Any]) -> Any:
        """At once."""
        return what()


def lose_a_folder(scenario: Scenario) -> str:
    """Who does not have what it wrote any more; empty: everybody has."""
    random = scenario.world.random
    if random.random() >= scenario.scene.chance("another folder", ANOTHER_FOLDER):
        return ""
    chosen = random.choice(scenario.alive())
    chosen.data_dir = Path(scenario.disk.root) / "another-folder"
    scenario.world.tell(chosen.address, "has another data folder")
    return chosen.id


def read_back(scenario: Scenario, query: Submission, lost: str) -> pa.Table | None:
    """All results of a query that has closed; None if a log is away, and that is told."""
    logs, _ = logs_to_read(scenario.managers[-1].status(query.name), None)
    batches: list[pa.RecordBatch] = []
    for log in logs:
        keeper = next((p for p in scenario.alive() if p.address == log.address), None)
        if keeper is None:
            return None  # the reader is told so
        name, run = LogName(log.name), log.run
        wanted = ReadResults(QueryName(query.name), name, 0, 0, False, run, log.rows)
        loop = cast(WorkerLoop, _Loop(keeper.worker))
        try:
            for piece in LogRead(loop, keeper.data_dir, {}, wanted, Listener()).batches():
                if piece.payload:
                    schema = query.plan.output_schema
                    batches.append(from_bytes(piece.payload, schema, "a result"))
        except OutputError as e:
            if keeper.id != lost:
                raise Violation(f"{query.name}: {e}") from e
            return None
    return together(batches, query.plan.output_schema)
