"""Sources: each sends numbered batches to wherever its stream is at home, again until answered.

A source's batches come in the order in which they were sent, as on the calls of a client: behind
one that is lost, all others of the same call are lost too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dovetail_proto.arrow_bytes import to_bytes
from dovetail_proto.errors import DovetailError, InputError, Refusal
from dovetail_proto.feeds import IngestAck, IngestBatch
from dovetail_proto.ids import StreamName
from kit.sim_world import Violation, World

if TYPE_CHECKING:
    from kit.sim_run import Scenario

PATIENCE_S = 1.0
"""What is not answered for so long is sent again."""


@dataclass(slots=True)
class SentBatch:
    """A batch, and when it was first sent and answered."""

    rows: pa.RecordBatch
    payload: bytes
    sent_s: float = float("inf")
    answered_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class OnCall:
    """A batch on a call: of which one, and at which place in it."""

    call: int
    place: int
    batch: IngestBatch


class SimFeed:
    """One source of one stream."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        name: str,
        stream: str,
        table: pa.Table,
        *,
        batch_rows: int,
        gap_s: float,
        ahead: int,
        starts_s: float,
    ) -> None:
        self.world, self.scenario = world, scenario
        self.address = name
        self.crashed = False
        self.paused_until_s = 0.0
        self.stream = StreamName(stream)
        batches = table.combine_chunks().to_batches(max_chunksize=batch_rows)
        self.batches = [SentBatch(b, to_bytes(b)) for b in batches]
        self._gap_s, self._ahead = gap_s, ahead
        self._names = 1  # under how many it has sent
        self._before = 0  # batches that it sent under its former names
        self._sent = 0  # batches
        self._answered = 0
        self._heard_s = 0.0
        self._refused = False  # its stream has ended, before it was done
        self._call = self._on_call = 0  # the call under way, and batches that were sent on it
        world.nodes[name] = self
        world.at(starts_s, self, self._timer)

    @property
    def source(self) -> str:
        """Its name to the stream."""
        return f"{self.address}-{self._names}"

    @property
    def done(self) -> bool:
        """Whether all is answered, or its stream takes nothing more."""
        return self._answered == len(self.batches) or self._refused

    @property
    def half_sent(self) -> bool:
        """Whether half of its batches were sent, though they may not have arrived."""
        return 2 * self._sent >= len(self.batches)

    def _timer(self) -> None:
        random, now_s = self.world.random, self.world.now_s
        behind = self._sent - self._answered  # what waits was sent on this call, if anything was
        if (
            self._sent < len(self.batches)
            and behind < self._ahead
            and (self._on_call or not behind)
        ):
            self._sent += 1
            self._send(self._sent)
        elif self._sent > self._answered and now_s - self._heard_s > PATIENCE_S:
            self._send_again(self._answered + 1)
        answered = self._answered > self._before and not self.done
        if answered and random.random() < self.scenario.repeats:
            oldest = max(self._before, self._answered - self._ahead) + 1
            self._answered = random.randint(oldest, self._answered) - 1
            self._send_again(self._answered + 1)  # it did not get the last answers
        if not self.done:
            self.world.at(self._gap_s * (0.5 + random.random()), self, self._timer)

    def _send_again(self, first: int) -> None:
        """All from `first` on, as a client does: behind what was not answered nothing was."""
        self._call_anew()
        for number in range(first, self._sent + 1):
            self._send(number)

    def _call_anew(self) -> None:
        self._heard_s = self.world.now_s
        self._call, self._on_call = self._call + 1, 0

    def _send(self, number: int) -> None:
        batch = self.batches[number - 1]
        batch.sent_s = min(batch.sent_s, self.world.now_s)
        left = sum(b.rows.num_rows for b in self.batches[number:])
        home = self.scenario.home_address(self.stream)
        if home is not None:
            sequence = number - self._before
            message = IngestBatch(self.stream, self.source, sequence, batch.payload, left)
            self.world.send(self.address, home, OnCall(self._call, self._on_call, message))
            self._on_call += 1

    def receive(self, source: str, message: Any) -> None:
        """An answer, or why there is none."""
        call, message = message
        if call != self._call:
            return  # it was given up
        if isinstance(message, IngestAck):
            self._heard_s = self.world.now_s
            number = self._before + message.sequence
            if number > self._sent:
                raise Violation(f"{self.address}: batch {number} is answered before it was sent")
            for batch in self.batches[self._answered : number]:
                batch.answered_s = min(batch.answered_s, self.world.now_s)
            self._answered = max(self._answered, number)
        elif isinstance(message, Refusal) and message.details.get("reason") == "source":
            self._begin_again()
        elif isinstance(message, InputError) and self.stream in self.scenario.short_streams:
            self._refused = True  # who knows how much of what it sent was taken before
        elif isinstance(message, DovetailError):
            self._call_anew()  # and it tries again after a while

    def _begin_again(self) -> None:
        """The stream's home has died: what was not answered is sent under another name."""
        if not self.scenario.store.died:
            raise Violation(f"{self.stream} does not know {self.source} any more: no home has died")
        self.world.tell(self.address, "is not known any more; begins again")
        self._names += 1
        self._before = self._sent = self._answered
        self._call_anew()

    def check(self) -> None:
        """Nothing."""
