"""The join's state against the plainest join there is, with groups pushed at random points."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest

from dovetail_processor.join.detached import Detached
from dovetail_processor.join.state import JoinState, Short
from dovetail_proto.partitioning import canonical_keys, partition_ids
from kit import join_cases as cases


def emit(state: JoinState, chunk: np.ndarray) -> Counter[cases.Row]:
    """The combinations of a chunk, as rows."""
    schema = state.plan.joined_schema()
    arrays = state.materialise(chunk, state.plan.joined_columns())
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    batch.validate(full=True)
    return Counter(cases.rows_of(batch))


def read_back(state: JoinState, detached: Detached) -> list[list[list[cases.Row]]]:
    """The rows of detached groups, per input and group; checks their order by hash."""
    out = []
    for i, rows_at in enumerate(state.collect(detached)):
        table = state.read_rows(i, rows_at)
        table.validate(full=True)
        ends = np.cumsum(detached.rows(state.n)[:, i])
        groups = []
        for k, end in enumerate(ends):
            part = table.slice(int(end - detached.rows(state.n)[k, i]))
            part = part.slice(0, int(detached.rows(state.n)[k, i]))
            names = state.plan.inputs[i].key
            columns = [part.column(n).combine_chunks() for n in names]
            if part.num_rows:
                hashes = canonical_keys(columns, state.plan.key_types).hashes
                assert (hashes[1:] >= hashes[:-1]).all(), "rows are in key-hash order"
            groups.append(cases.rows_of(part))
        out.append(groups)
    return out


@pytest.mark.parametrize("seed", range(60))
def test_combinations_are_those_of_each_generation(seed: int) -> None:
    """What the state emits is, per group and generation, the join of what it was given."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    kind = sorted(cases.KEY_KINDS)[seed % len(cases.KEY_KINDS)]
    partitions, chunk_rows, distinct = (
        int(rng.choice(c)) for c in ([1, 3, 16], [1, 5, 64], [1, 4, 40])
    )
    parts = len(cases.KEY_KINDS[kind])
    schemas = []
    for _ in range(n):
        types = [cases.PAYLOADS[k] for k in rng.choice(len(cases.PAYLOADS), 3, replace=False)]
        fields = [(f"k{p}", t) for p, t in enumerate(cases.KEY_KINDS[kind])]
        schemas.append(pa.schema(fields + [(f"p{c}", t) for c, t in enumerate(types)]))
    plan = cases.plan_of(schemas, kind, partitions)
    state = JoinState(plan, 8 << 20, chunk_rows=chunk_rows)
    given_rows: dict[tuple[int, int], list[list[cases.Row]]] = defaultdict(
        lambda: [[] for _ in range(n)]
    )
    emitted: Counter[cases.Row] = Counter()
    rows_max = 25 if distinct == 1 and n > 2 else 60
    for step in range(10):
        i = int(rng.integers(0, n))
        rows = int(rng.integers(0, rows_max // n))
        arrays = cases.keys(rng, kind, rows, distinct)
        arrays += [cases.values(rng, f.type, rows) for f in list(schemas[i])[parts:]]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schemas[i])
        ids = partition_ids(canonical_keys(arrays[:parts], plan.key_types).hashes, partitions)
        for g, row in zip(ids.tolist(), cases.rows_of(batch), strict=True):
            if cases.plain_key(row, parts) is not None:
                given_rows[g, int(state.generation[g])][i].append(row)
        cases.begin(state, i, batch, float(step))
        while (event := state.advance()) is not None:
            assert event is not Short.OF_MEMORY
            emitted += emit(state, event)
        if rng.random() < 0.3:
            groups = np.flatnonzero(rng.random(partitions) < 0.5)
            expected = {int(g): given_rows[int(g), int(state.generation[g])] for g in groups}
            held = state.group_bytes()[groups].sum()
            before = state.held_bytes
            detached = state.detach(groups)
            read = read_back(state, detached)
            for k, g in enumerate(groups.tolist()):
                for j in range(n):
                    assert Counter(read[j][k]) == Counter(expected[g][j])
            state.release(detached)
            assert state.held_bytes == before - held, "a group's bytes are known exactly"
    expected_all: Counter[cases.Row] = Counter()
    produced = np.zeros(partitions, np.int64)
    for (g, _), inputs in given_rows.items():
        joined = cases.plain_join(inputs, parts)
        produced[g] += joined.total()
        expected_all += joined
    assert emitted == expected_all
    assert (state.produced + state.produced_before == produced).all()
    state.release(state.detach(np.arange(partitions)))
    assert state.held_bytes == 0


@pytest.mark.parametrize("seed", range(60))
def test_what_is_kept_owes_the_same_after_inputs_have_ended(seed: int) -> None:
    """Inputs end one after the other, groups are pushed before and after: the combinations of one
    generation are made, and the rows on disk owe exactly those of different generations.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    kind = sorted(cases.KEY_KINDS)[seed % len(cases.KEY_KINDS)]
    parts, partitions = len(cases.KEY_KINDS[kind]), int(rng.choice([1, 3, 16]))
    fields = [(f"k{p}", t) for p, t in enumerate(cases.KEY_KINDS[kind])]
    payloads = [cases.PAYLOADS[k] for k in rng.choice(len(cases.PAYLOADS), n)]
    schemas = [pa.schema([*fields, ("p", t)]) for t in payloads]
    plan = cases.plan_of(schemas, kind, partitions)
    state = JoinState(plan, 8 << 20, chunk_rows=int(rng.choice([1, 5, 64])))
    given_rows: dict[tuple[int, int], list[list[cases.Row]]] = defaultdict(
        lambda: [[] for _ in range(n)]
    )
    stored: dict[tuple[int, int], list[list[cases.Row]]] = {}
    emitted: Counter[cases.Row] = Counter()

    def push(groups: np.ndarray) -> None:
        detached = state.detach(groups)
        read = read_back(state, detached)
        for k, g in enumerate(groups.tolist()):
            if any(read[j][k] for j in range(n)):
                stored[g, int(detached.generations[k])] = [read[j][k] for j in range(n)]
        state.release(detached)

    for _ in range(14):
        open_inputs = np.flatnonzero(~state.ended)
        if rng.random() < 0.25 and open_inputs.size > 1:
            state.ended[rng.choice(open_inputs)] = True
            continue
        i, rows = int(rng.choice(open_inputs)), int(rng.integers(0, 60 // n))
        arrays = cases.keys(rng, kind, rows, int(rng.choice([2, 12])))
        arrays.append(cases.values(rng, payloads[i], rows))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schemas[i])
        ids = partition_ids(canonical_keys(arrays[:parts], plan.key_types).hashes, partitions)
        for g, row in zip(ids.tolist(), cases.rows_of(batch), strict=True):
            if cases.plain_key(row, parts) is not None:
                given_rows[g, int(state.generation[g])][i].append(row)
        held, alone = state.held_bytes, open_inputs.size == 1 and not state.generation.any()
        cases.begin(state, i, batch)
        while (event := state.advance()) is not None:
            assert event is not Short.OF_MEMORY
            emitted += emit(state, event)
        assert not alone or state.held_bytes == held, "what can meet nobody takes no memory"
        if rng.random() < 0.2:
            push(np.flatnonzero(rng.random(partitions) < 0.5))
    counted = state.produced + state.produced_before - state.unkept
    push(np.arange(partitions))
    assert state.held_bytes == 0
    for g in range(partitions):
        on_disk, given = (
            [rows for (of, _), rows in sorted(x.items()) if of == g] for x in (stored, given_rows)
        )
        (met, owed), (had_met, were_owed) = (
            _met_and_owed(generations, n, parts) for generations in (on_disk, given)
        )
        assert owed == were_owed
        assert met.total() == counted[g]
        emitted.subtract(had_met)
    assert not any(emitted.values()), "each combination of one generation was made, once"


def _met_and_owed(
    generations: list[list[list[cases.Row]]], n: int, parts: int
) -> tuple[Counter[cases.Row], Counter[cases.Row]]:
    """Combinations of rows of one generation, and all others."""
    met: Counter[cases.Row] = Counter()
    for rows in generations:
        met += cases.plain_join(rows, parts)
    together = [[row for rows in generations for row in rows[j]] for j in range(n)]
    return met, cases.plain_join(together, parts) - met


def test_a_group_that_is_pushed_in_the_middle_of_a_batch_keeps_its_rows_from_then_on() -> None:
    """Its partner input has ended, but is on disk by the time that its own rows have their turn."""
    rng = np.random.default_rng(3)
    schema = pa.schema([("k0", pa.int64()), ("p", pa.string())])
    plan = cases.plan_of([schema, schema], "int", 2)
    state = JoinState(plan, 128 << 10, chunk_rows=64)
    first, second = (
        pa.record_batch([pa.array(rng.integers(0, 40, rows)), ["x" * 90] * rows], schema=schema)
        for rows in (200, 3_000)
    )
    cases.begin(state, 0, first)
    while state.advance() is not None:
        pass
    state.release(state.detach(np.array([0])))
    state.ended[0] = True
    cases.begin(state, 1, second)
    pushed: list[Detached] = []  # the first time group 1, whose rows come behind those of group 0
    while (event := state.advance()) is not None:
        if event is Short.OF_MEMORY:
            pushed.append(state.detach(np.arange(2) if pushed else np.array([1])))
            state.release(pushed[-1])
        else:
            assert event.shape[1] == 0, "nothing was met: all of input 0 is on disk"
    assert pushed, "memory was short"
    assert pushed[0].rows(2)[0, 1] == 0
    ids = partition_ids(canonical_keys([second.column(0)], plan.key_types).hashes, 2)
    later = sum(int(d.rows(2)[-1, 1]) for d in pushed) + int(state.group_rows()[1, 1])
    assert later == (ids == 1).sum()
    assert not state.unkept.any()


@pytest.mark.parametrize("kind", ["int", "text"])
def test_a_state_short_of_memory_goes_on_after_groups_are_pushed(kind: str) -> None:
    """Memory runs out in the middle of batches; after a push the same rows join, none twice."""
    rng = np.random.default_rng(7)
    schema = pa.schema([("k0", cases.KEY_KINDS[kind][0]), ("p", pa.string())])
    plan = cases.plan_of([schema, schema], kind, 4)
    state = JoinState(plan, 96 << 10, chunk_rows=64)
    pushed: list[list[list[cases.Row]]] = []
    given_rows: list[list[cases.Row]] = [[], []]
    emitted: Counter[cases.Row] = Counter()
    pushes = 0
    for step in range(12):
        i = step % 2
        arrays = cases.keys(rng, kind, 300, 200)
        arrays.append(cases.values(rng, pa.string(), 300))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        given_rows[i] += [r for r in cases.rows_of(batch) if cases.plain_key(r, 1) is not None]
        cases.begin(state, i, batch)
        while (event := state.advance()) is not None:
            if event is Short.OF_MEMORY:
                largest = np.argsort(-state.group_bytes())[:2].astype(np.int64)
                detached = state.detach(np.sort(largest))
                per_input = read_back(state, detached)
                pushed += [[per_input[0][k], per_input[1][k]] for k in range(2)]
                state.release(detached)
                pushes += 1
            else:
                emitted += emit(state, event)
            assert state.slab.used_bytes <= 96 << 10
    rest = state.detach(np.arange(4))
    per_input = read_back(state, rest)
    pushed += [[per_input[0][k], per_input[1][k]] for k in range(4)]
    expected: Counter[cases.Row] = Counter()
    for inputs in pushed:
        expected += cases.plain_join(inputs, 1)
    assert pushes > 3
    assert emitted == expected
    for j in range(2):
        kept = Counter(r for inputs in pushed for r in inputs[j])
        assert kept == Counter(given_rows[j]), "every row is in exactly one generation"


def test_a_group_of_many_keys_splits_its_index_and_finds_them_all() -> None:
    """One group, far more keys than an index page holds, all found again from the other input."""
    schema = pa.schema([("k0", pa.int64())])
    plan = cases.plan_of([schema, schema], "int", 1)
    state = JoinState(plan, 64 << 20, chunk_rows=1 << 15)
    keys = np.random.default_rng(1).permutation(300_000)
    found = 0
    for i in range(2):
        cases.begin(state, i, pa.record_batch([pa.array(keys)], schema=schema))
        while (event := state.advance()) is not None:
            assert isinstance(event, np.ndarray)
            left, right = state.materialise(event, [(0, "k0"), (1, "k0")])
            assert left.equals(right)
            found += len(left)
    assert found == keys.size


def test_keys_whose_hashes_share_all_directory_bits_overflow_and_are_found() -> None:
    """Keys chosen so that no split separates them end in overflow pages, exactly."""
    schema = pa.schema([("k0", pa.int64())])
    plan = cases.plan_of([schema, schema], "int", 1)
    state = JoinState(plan, 64 << 20, chunk_rows=1 << 12)
    keys = _keys_with_low_half(0x12340000, 1500)
    found = 0
    for i in range(2):
        cases.begin(state, i, pa.record_batch([pa.array(keys)], schema=schema))
        while (event := state.advance()) is not None:
            assert isinstance(event, np.ndarray)
            found += event.shape[1]
    assert found == keys.size


def _keys_with_low_half(low: int, count: int) -> np.ndarray:
    """Keys whose 64-bit hashes have a given low half: the hash's bijection run backwards."""
    mask = (1 << 64) - 1

    def unshift(x: int, by: int) -> int:
        y = x
        while by < 64:
            y ^= y >> by
            by *= 2
        return y

    keys = []
    for high in range(count):
        x = (high << 32) | low
        x = unshift(x, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
        x = unshift(x, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
        x = (unshift(x, 30) - 0x9E3779B97F4A7C15) & mask
        keys.append(x - (1 << 64) if x >> 63 else x)
    out = np.array(keys, np.int64)
    hashes = canonical_keys([pa.array(out)], [pa.int64()]).hashes
    assert (hashes & np.uint64(0xFFFFFFFF) == low).all()
    return out


def test_the_key_whose_hash_is_zero_is_a_key_like_any_other() -> None:
    """A free slot and the key of hash 0 are told apart."""
    schema = pa.schema([("k0", pa.int64())])
    plan = cases.plan_of([schema, schema], "int", 2)
    state = JoinState(plan, 8 << 20, chunk_rows=1 << 12)
    zero = int(_keys_with_low_half(0, 1)[0])
    keys = np.array([5, zero, 7, zero, zero, 9], np.int64)
    counts = []
    for i in (0, 1, 0):
        cases.begin(state, i, pa.record_batch([pa.array(keys)], schema=schema))
        total = 0
        while (event := state.advance()) is not None:
            assert isinstance(event, np.ndarray)
            total += event.shape[1]
        counts.append(total)
    assert counts == [0, 3 + 9, 3 + 9]


def test_a_group_without_rows_is_taken_out_as_no_generation() -> None:
    """When memory runs short, slots are reserved for rows that are not in yet."""
    schema = pa.schema([("k0", pa.int64())])
    plan = cases.plan_of([schema, schema], "int", 2000)
    state = JoinState(plan, 512 << 10, chunk_rows=64)
    cases.begin(state, 0, pa.record_batch([pa.array(np.arange(20_000))], schema=schema))
    while state.advance() is not Short.OF_MEMORY:
        pass
    rows = state.group_rows().sum(axis=1)
    held = np.flatnonzero(state.group_bytes())
    assert (rows[held] == 0).any()
    state.release(state.detach(held))
    assert (state.generation == (rows > 0)).all()
