"""Which files a cluster may touch: those at or below the roots that its operator names.

A caller with the right token names places (a stream's file, a folder for results or spilled state)
that our processes then open with *their* rights. So every such place is looked at twice: by the
manager when it is asked for, and by the processor before it opens it.

    root /data                 /data/day/trades.parquet    /data/../etc/passwd   /data/link-to-etc
                               yes                         no                    no
    root s3://lake/dovetail    s3://lake/dovetail/run      s3://lake/secrets     s3://other/dovetail

Links and `..` are resolved first. A URI is compared with its scheme, its host or bucket and its
options: an option such as `endpoint_override` leads to another machine. A URI with a fragment is
no place anywhere: file systems ignore it, and what is written behind it would be lost with it.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from dovetail_proto.errors import ConfigError, without_credentials

ANYWHERE = "*"
"""The root of a cluster that runs for its caller alone, with the caller's own rights."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders and URIs; everything at or below one of them may be used."""

    places: tuple[str, ...] = ()

    def check(self, what: str, place: str) -> None:
        """ConfigError, which calls it `what`, unless `place` may be used."""
        service, path = _resolved(what, place)
        if ANYWHERE in self.places:
            return
        for root in self.places:
            root_service, top = _resolved("root", root)
            if service == root_service and (path == top or path.startswith(top.rstrip("/") + "/")):
                return
        shown = ", ".join(without_credentials(p) for p in self.places) or "there are none"
        raise ConfigError(
            f"{what} {without_credentials(place)!r} is outside the roots of this cluster",
            remedy=f"name a place below one of them ({shown}), or have its operator add a --root",
        )


def _resolved(what: str, place: str) -> tuple[str, str]:
    """Which service, and the path there without links and detours; no service: this machine."""
    if "\0" in (unquote(place) if "://" in place else place):
        raise _unclear(what, place, "a NUL character")
    if "://" not in place:
        return "", os.path.realpath(place)
    if "#" in place:
        raise _unclear(what, place, "'#'")
    try:
        parts = urlsplit(place)
    except ValueError as e:
        raise ConfigError(
            f"{what} {without_credentials(place)!r} is no URI: {e}",
            remedy="write it as scheme://host/path",
        ) from e
    path = unquote(parts.path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return "", os.path.realpath(path)
    # A store of objects takes `..` for a name, a file system for the folder above.
    if ".." in path.split("/"):
        raise _unclear(what, place, "'..'")
    options = sorted(parse_qsl(parts.query, keep_blank_values=True))
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host} {options}", posixpath.normpath("/" + path.lstrip("/"))


def _unclear(what: str, place: str, found: str) -> ConfigError:
    return ConfigError(
        f"{what} {without_credentials(place)!r} has {found} in it",
        remedy="write the path that is meant (in a URI, %23 stands for '#')",
    )
