"""Our packages as one zip file for executors, named after its content.

The same sources give the same bytes, so that an executor which has unpacked them once knows them
again.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path

from dovetail_pipeline.spark.on_executor import PACKAGES
from dovetail_pipeline.spark.pruning import mark_used
from dovetail_proto.errors import ConfigError
from dovetail_proto.kernel_cache import cache_folder

_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold


def packages_zip() -> Path:
    """The zip file, in the user's cache folder; made if it is not there yet."""
    content = _zipped()
    path = cache_folder() / "shipped" / f"dovetail-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent)
            with open(descriptor, "wb") as f:
                f.write(content)
            os.replace(temporary, path)
        except OSError as e:
            raise ConfigError(
                f"the package for Spark's executors cannot be written to {path}: {e.strerror}",
                remedy="set XDG_CACHE_HOME to a folder that you may write to",
            ) from e
    mark_used(path)
    return path


def _zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name in PACKAGES:
            module = import_module(name)
            assert module.__file__ is not None
            folder = Path(module.__file__).parent
            for source in sorted(folder.rglob("*.py")):
                inside = source.relative_to(folder.parent).as_posix()
                z.writestr(zipfile.ZipInfo(inside, _LONG_AGO), source.read_bytes())
    return out.getvalue()
