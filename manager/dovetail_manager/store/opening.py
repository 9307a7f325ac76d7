"""From an address, as in `DOVETAIL_STORE`, to a store."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from dovetail_manager.store.interface import PATIENCE_S, Store
from dovetail_manager.store.sqlite_store import SqliteStore
from dovetail_proto.errors import ConfigError


def open_store(address: str | os.PathLike[str], *, patience_s: float = PATIENCE_S) -> Store:
    """Open the store at `redis://…`, `rediss://…`, `sqlite:<path>` or a plain path.

    A SQLite file that does not exist is made. ConfigError if the address or the server's settings
    cannot be worked with, StoreDamaged if what is there is not a store of this version,
    StoreUnavailable if it does not answer within `patience_s`.
    """
    text = os.fspath(address)
    scheme = urlsplit(text).scheme if ":" in text else ""
    if scheme in ("redis", "rediss"):
        from dovetail_manager.store.redis_store import RedisStore

        return RedisStore(text, patience_s=patience_s)
    if scheme == "sqlite":
        text = text.removeprefix("sqlite:").removeprefix("//")
    elif "://" in text:
        raise ConfigError(
            f"a store cannot be of the kind {scheme!r}",
            remedy="use redis://host:port/database, rediss://… or sqlite:<path>",
        )
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} is not the path of a store", remedy="use sqlite:<path>")
    return SqliteStore(Path(text), patience_s=patience_s)
