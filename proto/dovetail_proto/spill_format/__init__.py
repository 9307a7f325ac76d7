"""The spill format: what rests on disk between a run and its clean-up, for any engine to read.

`SpillStore` is the way in; `docs/spill_format.md` describes the files.
"""

from dovetail_proto.spill_format.layout import GENERATION_COLUMN, GROUP_COLUMN, InputLayout
from dovetail_proto.spill_format.reader import InputFile
from dovetail_proto.spill_format.records import InputEntry, PushManifest, RunRecord
from dovetail_proto.spill_format.storage import (
    LocalStorage,
    RemoteStorage,
    Storage,
    open_storage,
    place_above,
    place_below,
)
from dovetail_proto.spill_format.store import SpillStore, require_empty, run_at
from dovetail_proto.spill_format.writer import PushWriter

__all__ = [
    "GENERATION_COLUMN",
    "GROUP_COLUMN",
    "InputEntry",
    "InputFile",
    "InputLayout",
    "LocalStorage",
    "PushManifest",
    "PushWriter",
    "RemoteStorage",
    "RunRecord",
    "SpillStore",
    "Storage",
    "open_storage",
    "place_above",
    "place_below",
    "require_empty",
    "run_at",
]
