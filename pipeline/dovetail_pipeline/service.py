"""A clean-up as a process that another program starts, watches and stops.

    stdin    one line of JSON: what to clean up, where to, on which master
    stdout   a line of JSON per event: {"progress": …} …, then {"done": …} or {"error": …}

It ends with whoever started it: when standard input ends, it stops as on Ctrl-C, and what is
finished is kept for the next one. `python -m dovetail_pipeline.service` is what a manager runs.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from dataclasses import asdict
from typing import IO, Any

from dovetail_pipeline.cleanup import CleanupResult, Progress, conduct, run_here
from dovetail_pipeline.cleanup.ledger import CleanupBusy
from dovetail_pipeline.cleanup.stores import RunCleanup, find_cleanups
from dovetail_pipeline.spark.hands import SparkHands
from dovetail_pipeline.spark.session import SparkSettings
from dovetail_proto.errors import DovetailError, SpillError
from dovetail_proto.spill_format import open_storage

LOCAL = "local"
"""In place of a Spark master: processes of this machine."""

TELL_S = 0.2
"""Between two reports of progress: often enough for the eye."""

BUSY_S_MAX = 30.0
"""How long another clean-up of the same store is waited for: one whose manager was killed ends
within END_GRACE_S."""

BUSY_POLL_S = 0.2

END_GRACE_S = 10.0
"""What the work gets to stop by itself once nobody wants it any more."""


class Service:
    """One clean-up from its request to its last event."""

    def __init__(self, request: dict[str, Any], out: IO[str]) -> None:
        self._request = request
        self._out = out
        self._told_s = 0.0
        self.stopping = threading.Event()

    def run(self) -> int:
        """Do it; the exit code."""
        try:
            cleanup = self._found()
            self._tell({"done": _report(cleanup, self._cleaned(cleanup))})
        except DovetailError as e:
            self._tell({"error": {"code": e.code, "message": e.message, "remedy": e.remedy}})
            return e.exit_code
        return 0

    def _found(self) -> RunCleanup:
        r = self._request
        if not open_storage(r["spill"]).names(""):
            raise SpillError(
                f"query {r['query']!r}: none of its spill stores is at {r['spill']} on the "
                f"manager's machine, {socket.gethostname()}",
                remedy="mount that folder there under the same path, or submit the query with a "
                "spill place that all machines reach",
            )
        # Only the request's places were checked against the roots of the cluster.
        (found,) = find_cleanups(
            [r["spill"]], query=r["query"], run=r["run"], output=r["output"], trusted=False
        )
        return found

    def _cleaned(self, cleanup: RunCleanup) -> CleanupResult:
        until_s = time.monotonic() + BUSY_S_MAX
        while True:
            try:
                return self._attempt(cleanup)
            except CleanupBusy:
                if time.monotonic() > until_s:
                    raise
                if self.stopping.wait(BUSY_POLL_S):
                    raise

    def _attempt(self, cleanup: RunCleanup) -> CleanupResult:
        memory_bytes, master = self._request["memory_bytes"], self._request["master"]
        if master == LOCAL:
            return run_here(cleanup.stores, cleanup.output, memory_bytes, self._progress)
        with SparkHands(SparkSettings(master), memory_bytes=memory_bytes, tell=_note) as hands:
            return conduct(cleanup.stores, cleanup.output, hands, self._progress)

    def _progress(self, progress: Progress) -> None:
        if self.stopping.is_set():
            raise KeyboardInterrupt
        now_s = time.monotonic()
        if now_s >= self._told_s + TELL_S:
            self._told_s = now_s
            self._tell({"progress": asdict(progress)})

    def _tell(self, event: dict[str, Any]) -> None:
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()


def main() -> int:
    """Serve one request; the exit code."""
    # Libraries may write to standard output, which belongs to the events.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    service = Service(json.loads(sys.stdin.readline()), out)
    threading.Thread(target=_end_with_input, args=(service,), name="tether", daemon=True).start()
    return service.run()


def _end_with_input(service: Service) -> None:
    while os.read(0, 1 << 10):
        pass
    service.stopping.set()
    threading.Event().wait(END_GRACE_S)
    os._exit(1)


def _report(cleanup: RunCleanup, result: CleanupResult) -> dict[str, Any]:
    return {
        "output": cleanup.output or "",
        "rows": result.rows,
        "checksum": result.checksum,
        "owed": result.owed,
        "bins": result.bins,
    }


def _note(line: str) -> None:
    sys.stderr.write(f"clean-up: {line}\n")


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # Spark's threads must not keep it
