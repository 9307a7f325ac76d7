"""A program may end as soon as reading has: no thread of a reader asks for more after that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUNS = 6
"""A reader that is left behind meets the end of the interpreter in three of four runs."""

PROGRAM = """
import sys, time
from pathlib import Path
import pyarrow as pa
from dovetail_processor.sources import csv_rows
from dovetail_proto.errors import InputError

class Slow:
    def __init__(self, path):
        self.file = open(path, "rb")
    def read(self, size):
        time.sleep(0.003)
        return self.file.read(size)
    def close(self):
        self.file.close()

csv_rows.open_text = Slow
rows = csv_rows.read_rows(Path(sys.argv[1]), ["k", "v"], {}, ["k", "v"], 1 << 16)
try:
    for batch in rows:
        pass
except InputError as e:
    sys.exit(e.exit_code)
"""


def test_a_program_that_met_a_bad_row_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    """pyarrow reads ahead in a thread, which must not be left behind in the middle of a read."""
    good = b"".join(b"%d,%d\n" % (i, i) for i in range(20_000))
    path = tmp_path / "bad.csv"
    path.write_bytes(b"k,v\n" + good + b"1,2,3\n" + good * 20)
    words = [sys.executable, "-c", PROGRAM, str(path)]
    ended = [subprocess.run(words, capture_output=True, check=False) for _ in range(RUNS)]
    assert [(e.returncode, e.stderr) for e in ended] == [(3, b"")] * RUNS
