"""A manager as a process that only writes: `python store_writer.py <address> <name> <writes>`.

It claims the lead, says `epoch N`, then writes batch after batch, each of KEYS entries with the
batch's revision as their value, and says `done R` for each that the store confirmed. It ends with
`fenced` when it is replaced, or `stays` after `writes` batches (0: it never ends by itself).
"""

from __future__ import annotations

import sys

from dovetail_manager.journal import Write
from dovetail_manager.store import open_store
from dovetail_manager.store.errors import Fenced

KEYS = 30
PADDING = "." * 2000  # so that a batch is no single packet or page


def batch(revision: int, epoch: int) -> dict[str, str | None]:
    """What a writer puts: entries that say the same, and one that was there last time goes."""
    same = {f"batch/{i}": f"{epoch} {revision} {PADDING}" for i in range(KEYS)}
    return {**same, f"last/{revision}": "", f"last/{revision - 1}": None}


def main(address: str, name: str, writes: int) -> None:
    """Write until told otherwise."""
    store = open_store(address, patience_s=30.0)
    lead = store.claim(name)
    say(f"epoch {lead.epoch}")
    revision = lead.revision
    while not writes or revision < lead.revision + writes:
        revision += 1
        try:
            store.write(Write(lead.epoch, revision, batch(revision, lead.epoch)))
        except Fenced:
            say("fenced")
            return
        say(f"done {revision}")
    say("stays")


def say(what: str) -> None:
    """Tell the parent at once."""
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
