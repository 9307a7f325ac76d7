"""`dovetail compile`: compile the join's kernels now, so that no later command has to wait."""

from __future__ import annotations

import time

from dovetail_proto.errors import ConfigError


def compile_kernels() -> None:
    """Compile the join's kernels, which the first command would do otherwise; once is enough."""
    from dovetail.commands.doctor import writable
    from dovetail_proto.kernel_cache import cache_folder

    folder = cache_folder()
    if not writable(folder):
        raise ConfigError(
            f"{folder} cannot be written, so kernels would be compiled at every start",
            remedy="set NUMBA_CACHE_DIR to a folder that can",
        )
    began_s = time.monotonic()
    import dovetail.embedded  # noqa: F401  # kernels are compiled when they are imported

    print(f"kernels are in {folder}, after {time.monotonic() - began_s:.1f} s")
