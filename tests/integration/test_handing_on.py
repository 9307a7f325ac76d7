"""Splits that go from worker to worker, in one process: what the net loses, what has closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_manager.planner import plan_query
from dovetail_proto.assignment import Phase
from dovetail_proto.feeds import LinkAck
from dovetail_proto.handover import handover_from_json
from dovetail_proto.ids import Epoch, MoveId, ProcessorId, QueryName
from dovetail_proto.messages import FinishMove, Heard, MoveFinished, MoveRef, Stage
from kit.clusters import same_bag
from kit.local_workers import TIMEOUT_S, LocalWorkers

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PLAN = plan_query(
    "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k",
    dict.fromkeys("ab", SCHEMA),
    name="q",
    partitions=6,
)
A, B, C = (ProcessorId(p) for p in "abc")
MEMORY = 64 << 20


def rows(*keys: int) -> pa.RecordBatch:
    """A batch of these keys."""
    return pa.record_batch({"k": keys, "v": [float(k) for k in keys]}, schema=SCHEMA)


def handed_over(workers: LocalWorkers) -> dict[str, str]:
    """Have the home take nothing more in; what it says of each stream when all is joined."""
    home = workers.nets[workers.home]
    workers.assign(leaves=True)
    workers.until(workers.home, lambda: all(s.handover for s in home.snapshot.streams))
    return {s.stream: s.handover for s in home.snapshot.streams}


def hand_on(workers: LocalWorkers, to: ProcessorId) -> None:
    """Have all streams go to another worker."""
    handovers = handed_over(workers)
    workers.home, workers.hosting = to, workers.hosting + 1
    workers.assign(handovers=handovers)


@pytest.mark.parametrize("lost", ["joined", "taken"])
def test_an_answer_that_is_lost_is_asked_for_again(tmp_path: Path, lost: str) -> None:
    """Whether it said that rows were taken, or that they are joined."""
    workers = LocalWorkers(PLAN, "ab", MEMORY, tmp_path)
    send, dropped = workers.nets[B].send_ack, list[LinkAck]()

    def lossy(to: ProcessorId, ack: LinkAck) -> None:
        last = ack.done_number if lost == "joined" else ack.number
        if last and not dropped:
            dropped.append(ack)
        else:
            send(to, ack)

    workers.nets[B].send_ack = lossy  # type: ignore[method-assign]
    with workers:
        workers.assign()
        assert workers.send("a", rows(*range(50))).wait(TIMEOUT_S)
        home, joined = workers.workers[A], Future[object]()
        workers.ask(A, lambda: home.await_joined(QueryName("q"), joined.set_result))
        assert joined.result(TIMEOUT_S) == 50
        made = handover_from_json(handed_over(workers)["a"])
    assert dropped
    assert (made.rows, made.marks, made.rows_in) == (50, {"test": 1}, {"q": 50})


def test_rows_are_joined_wherever_the_splits_are(tmp_path: Path) -> None:
    """From worker to worker and back; each row once."""
    workers = LocalWorkers(PLAN, "abc", MEMORY, tmp_path)
    with workers:
        workers.assign()
        for n, to in enumerate((B, C, A, B)):
            for stream, keys in {"a": 20, "b": 30}.items():
                sent = rows(*range(10 * n, 10 * n + keys))
                assert workers.send(stream, sent).wait(TIMEOUT_S)
            hand_on(workers, to)
        found = workers.close()
    times = [[sum(10 * n <= k < 10 * n + w for n in range(4)) for w in (20, 30)] for k in range(60)]
    assert sum(found.values()) == sum(a * b for a, b in times)
    taken = workers.nets[B].snapshot.loads[0].rows_in
    assert taken == (80, 120)
    assert workers.nets[A].snapshot.loads[0].rows_in == (0, 0)


def test_an_instance_that_closed_to_leave_answers_the_next_host_too(tmp_path: Path) -> None:
    """Else the query could not close as long as it is there."""
    workers = LocalWorkers(PLAN, "abc", MEMORY, tmp_path)
    workers.give_groups(A, B)
    workers.leaving = {C}
    with workers:
        workers.assign()
        left = workers.nets[C]
        workers.until(C, lambda: left.snapshot.loads[0].stage is Stage.CLOSED)
        hand_on(workers, B)
        workers.assign(Phase.CLOSING)
        workers.close()


def test_an_instance_that_closed_to_leave_says_again_that_a_move_is_over(tmp_path: Path) -> None:
    """Else a lost answer would keep the move open, the query from closing and the leaver here."""
    workers = LocalWorkers(PLAN, "abc", MEMORY, tmp_path)
    workers.give_groups(A, B)
    workers.leaving = {C}
    told: list[object] = []
    workers.nets[C].tell_manager = told.append  # type: ignore[method-assign]
    with workers:
        workers.assign()
        left = workers.nets[C]
        workers.until(C, lambda: left.snapshot.loads[0].stage is Stage.CLOSED)
        move = MoveId("0000000001-00000001")
        over = FinishMove(MoveRef(QueryName("q"), Epoch(1), move, move))
        worker = workers.workers[C]
        workers.ask(C, lambda: worker.control(Heard(Epoch(1), C, 0, True)))
        workers.ask(C, lambda: worker.control(over))
        workers.close()
    assert told == [MoveFinished(over.ref)]


class LossyNet:
    """Loses, repeats and delays what workers send each other, also past a change of hosts."""

    def __init__(self, workers: LocalWorkers, seed: int) -> None:
        self._random = Random(seed)
        self._late: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        for net in workers.nets.values():
            for method in ("send_frame", "send_ack"):
                setattr(net, method, partial(self._send, getattr(net, method)))

    def _send(self, send: Callable[..., None], *message: object) -> None:
        with self._lock:
            luck = self._random.random()
            now = [partial(send, *message)] if luck < 0.9 else []
            if luck > 0.7:
                self._late.append(partial(send, *message))
            if self._late and self._random.random() < 0.2:
                now.append(self._late.pop(self._random.randrange(len(self._late))))
        for sending in now:
            sending()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_net_does_the_results_are_duckdbs(tmp_path: Path, seed: int) -> None:
    """Rows come, splits go from worker to worker, frames and answers are lost, late and doubled."""
    random = Random(seed)
    workers = LocalWorkers(PLAN, "abc", MEMORY, tmp_path)
    LossyNet(workers, seed)
    sent: dict[str, list[pa.RecordBatch]] = {"a": [], "b": []}
    with workers:
        workers.assign()
        for _ in range(random.randint(3, 5)):
            for _ in range(random.randint(1, 4)):
                stream = random.choice("ab")
                sent[stream].append(rows(*random.choices(range(40), k=random.randint(1, 60))))
                workers.send(stream, sent[stream][-1])
            hand_on(workers, random.choice([w for w in (A, B, C) if w != workers.home]))
        found = workers.close()
    tables = {s: pa.Table.from_batches(batches, SCHEMA) for s, batches in sent.items()}
    logs = [pq.read_table(f) for f in sorted(tmp_path.rglob("segment-*.parquet"))]
    assert sum(found.values()) == sum(t.num_rows for t in logs)
    sql = "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k"
    assert same_bag(pa.concat_tables(logs), sql, **tables), f"seed {seed}"
