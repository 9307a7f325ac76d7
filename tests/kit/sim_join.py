"""Real join semantics on small data: what the simulated processors hold, and the oracle.

A group keeps, per key and input, the tuples of its current generation. A tuple is
(input, sequence, key, size); a result is the tuple of sequences, one per input. Nothing here is
fast or clever: it is what the real join must agree with.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import product

Tuple = tuple[int, int, int, int]
Result = tuple[int, ...]


class SimGroup:
    """One partition group in memory."""

    __slots__ = ("generation", "inputs", "last_insert_s", "marks", "produced", "rows", "size")

    def __init__(self, inputs: int, generation: int, marks: list[int]) -> None:
        self.inputs = inputs
        self.generation = generation
        self.marks = marks  # per input: highest sequence taken in; travels with the group
        self.rows: dict[int, list[list[int]]] = {}  # key → per input: sequences
        self.size = 0
        self.produced = 0  # P_o: in this generation
        self.last_insert_s = 0.0

    def insert(self, row: Tuple, now_s: float) -> list[Result] | None:
        """Join a tuple with what is here; None if it is a replay."""
        index, sequence, key, size = row
        if sequence <= self.marks[index]:
            return None
        self.marks[index] = sequence
        lists = self.rows.setdefault(key, [[] for _ in range(self.inputs)])
        results = list(
            product(*(([sequence] if i == index else held) for i, held in enumerate(lists)))
        )
        lists[index].append(sequence)
        self.size += size
        self.produced += len(results)
        self.last_insert_s = now_s
        return results

    def next_generation(self) -> SimGroup:
        """What stays in memory when this generation goes to disk."""
        return SimGroup(self.inputs, self.generation + 1, list(self.marks))

    def encode(self) -> list[object]:
        """Plain data for a payload."""
        rows = [[key, lists] for key, lists in self.rows.items()]
        return [self.generation, self.marks, rows, self.size, self.produced, self.last_insert_s]


def encode_groups(groups: dict[int, SimGroup]) -> bytes:
    """The payload of ReceivePartitions."""
    return json.dumps([[g, group.encode()] for g, group in groups.items()]).encode()


def decode_groups(payload: bytes, inputs: int) -> dict[int, SimGroup]:
    """The groups of a payload: copies that share nothing with the sender's."""
    groups = {}
    for g, (generation, marks, rows, size, produced, last) in json.loads(payload):
        group = SimGroup(inputs, generation, marks)
        group.rows = dict(rows)
        group.size, group.produced, group.last_insert_s = size, produced, last
        groups[g] = group
    return groups


def oracle(rows: Iterable[Tuple], inputs: int) -> Counter[Result]:
    """The join of all inputs from scratch."""
    by_key: dict[int, list[list[int]]] = {}
    for index, sequence, key, _ in rows:
        by_key.setdefault(key, [[] for _ in range(inputs)])[index].append(sequence)
    return Counter(r for lists in by_key.values() for r in product(*lists))


def owed(generations: Iterable[tuple[int, int, dict[int, list[list[int]]]]]) -> Counter[Result]:
    """Combinations across generations, from (group, generation, rows): what clean-up produces."""
    by_key: dict[int, list[list[tuple[int, int]]]] = {}
    for _, generation, rows in generations:
        for key, lists in rows.items():
            tagged = by_key.setdefault(key, [[] for _ in lists])
            for i, sequences in enumerate(lists):
                tagged[i] += [(generation, s) for s in sequences]
    results: Counter[Result] = Counter()
    for tagged in by_key.values():
        for combination in product(*tagged):
            if len({generation for generation, _ in combination}) > 1:
                results[tuple(s for _, s in combination)] += 1
    return results
