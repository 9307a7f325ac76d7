"""Who may write, and which write comes next: the rules of both stores, without I/O.

A store has one head. Each transaction reads the head, asks this module, and writes the new head
together with whatever it changes, so the head is what one compares and sets:

    Head(epoch 3, claim 7f…, revision 7, write 91…)
      Write(epoch 3, revision 8) of claim 7f…  ─▶ to be done
      the same Write once more                 ─▶ done already: its id is in the head
      another Write of revision 8              ─▶ StaleWrite
      any Write of epoch 2                     ─▶ Fenced

A write's id is made from its contents, so that a repetition carries the same id without anyone
having to remember it. A claim's id is random: two managers that claim at once are told apart.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dovetail_manager.journal import Write
from dovetail_manager.store.errors import BadWrite, Fenced, StaleWrite, StoreDamaged
from dovetail_proto.ids import Epoch

SCHEMA_VERSION = 2
"""Of what both stores keep; a store of another version is refused."""

KEY = re.compile(r"[a-z0-9_-]{1,64}(/[a-z0-9_.-]{1,68}){0,3}")
"""Keys and names of histories: what a key names (`move/<id>`) consists of allowed names."""

VALUE_BYTES_MAX = 24 << 20
"""A map of the most partitions (2**20) takes 16 MiB and its processors' names 2 MiB; a move of
all those groups less. The rest is room."""

WRITE_BYTES_MAX = 64 << 20
"""A commit writes the largest map and the largest move; far below what Redis takes (512 MiB)."""

RECORD_BYTES_MAX = 1 << 20
"""One record of a history: a decision with the numbers of 2**15 processors at 32 bytes each."""

NUMBER_MAX = 1 << 53
"""Numbers of records stay exact as floating-point numbers, which Redis sorts by."""

KEEP_MAX = 100_000
"""Records of one history: a hundred times what a manager keeps in memory."""


@dataclass(frozen=True, slots=True)
class Head:
    """What every transaction of a store reads first."""

    epoch: int = 0  # of the manager that leads; 0 before the first
    claim: str = ""  # random id of the claim that put it there
    holder: str = ""  # who it says it is; for people
    revision: int = 0  # of the last write
    write_id: str = ""  # of the last write; empty before the first


def claimed(head: Head, claim: str, holder: str) -> Head:
    """The head after `claim`; the same if the claim was done already."""
    if head.claim == claim:
        return head
    return replace(head, epoch=head.epoch + 1, claim=claim, holder=holder)


def check_leader(head: Head, claim: str, epoch: Epoch) -> None:
    """Raise Fenced unless the manager of `epoch` that made `claim` leads."""
    if not claim:
        raise Fenced("this manager does not lead", remedy="claim the lead before writing")
    if head.epoch < epoch:
        raise StoreDamaged(
            f"the store has gone back to epoch {head.epoch}, this manager holds epoch {epoch}",
            remedy="what was confirmed is lost: restore the store, then start the manager again",
        )
    if head.epoch > epoch or head.claim != claim:
        raise Fenced(
            f"the manager of epoch {epoch} was replaced by {head.holder!r} (epoch {head.epoch}): "
            "its write was refused",
            remedy="stop this manager, or start it again to take over",
        )


def to_be_done(head: Head, claim: str, w: Write) -> bool:
    """Whether `w` comes next; False if it is done already. Fenced or StaleWrite if neither."""
    check_leader(head, claim, w.epoch)
    if w.revision == head.revision and write_id(w) == head.write_id:
        return False
    if w.revision != head.revision + 1:
        behind = w.revision <= head.revision
        raise StaleWrite(
            f"revision {w.revision} cannot follow revision {head.revision} of the store",
            remedy="it is late or another one took its place; drop it"
            if behind
            else "writes between them are lost: restore the store",
        )
    return True


def written(head: Head, w: Write) -> Head:
    """The head after `w`."""
    return replace(head, revision=w.revision, write_id=write_id(w))


def write_id(w: Write) -> str:
    """The same for the same epoch, revision and puts, and for no others."""
    text = json.dumps([w.epoch, w.revision, sorted(w.puts.items())])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check_write(w: Write) -> None:
    """Raise BadWrite unless keys and sizes are within bounds."""
    total = 0
    for key, value in w.puts.items():
        check_key(key)
        total += len(key) + (_size(key, value, VALUE_BYTES_MAX) if value is not None else 0)
    if total > WRITE_BYTES_MAX:
        raise BadWrite(
            f"a write of {total} bytes in {len(w.puts)} entries is more than {WRITE_BYTES_MAX}",
            remedy="write it in parts",
        )


def check_records(history: str, records: Mapping[int, str], keep: int) -> None:
    """Raise BadWrite unless the history's name, numbers and sizes are within bounds."""
    check_key(history)
    if not 0 <= keep <= KEEP_MAX:
        raise BadWrite(f"history {history!r} cannot keep {keep} records: 0 to {KEEP_MAX} it can")
    if len(records) > KEEP_MAX:
        raise BadWrite(f"{len(records)} records at once for history {history!r}")
    for number, text in records.items():
        if not 0 <= number < NUMBER_MAX:
            raise BadWrite(f"record {number} of history {history!r} is not from 0 to 2**53 - 1")
        _size(f"{history} {number}", text, RECORD_BYTES_MAX)


def check_key(key: str) -> None:
    """Raise BadWrite unless `key` is made of up to four allowed names."""
    if not KEY.fullmatch(key):
        raise BadWrite(
            f"key {key[:100]!r} is not allowed",
            remedy="use up to four names of a-z, 0-9, '_', '-' and '.', with '/' between them",
        )


def _size(what: str, text: str, size_max: int) -> int:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as e:
        raise BadWrite(f"{what!r} is not text: {e}", remedy="store JSON") from e
    if size > size_max:
        raise BadWrite(f"{what!r} takes {size} bytes, more than {size_max}")
    return size
