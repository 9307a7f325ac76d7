"""Files with a few bytes changed, read in a process of its own: a crash ends that process only.

`python tests/kit/mutants.py SEED COUNT FILE…` reads COUNT mutants of each FILE and prints how many
were refused and how many were read; batches that were read must be valid.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
from pathlib import Path

from dovetail_processor.sources import open_source
from dovetail_proto.errors import InputError

ADDRESS_SPACE_BYTES = 4 << 30
"""A forged size must not take the machine down with it."""


def mutant(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to four places changed: bits, small numbers, large numbers."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(result))
        kind = rng.randrange(4)
        if kind == 0:
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            result[at] = rng.randrange(256)
        else:
            width = rng.choice([2, 4, 8])
            value = rng.choice([0, 1, 0x7F, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1])
            result[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(result[: len(data)])


def read_whole(path: Path) -> None:
    """Look at every value."""
    source = open_source(path)
    for batch in source.batches(source.schema.names, batch_rows=100, batch_bytes=1 << 16):
        batch.validate(full=True)
        batch.to_pylist()


def main(seed: int, count: int, files: list[Path]) -> None:
    """Read the mutants one after the other."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    for file in files:
        data = file.read_bytes()
        refused = 0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file.name
            for i in range(count):
                path.write_bytes(mutant(data, random.Random(seed * 1_000_003 + i)))
                sys.stderr.write(f"{file.name} seed {seed} mutant {i}\n")  # the last one crashed
                try:
                    read_whole(path)
                except InputError:
                    refused += 1
        print(f"{file.name}: {refused} refused, {count - refused} read")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
