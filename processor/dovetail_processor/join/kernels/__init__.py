"""Numba kernels: arrays in, arrays out, no Python objects, the interpreter lock released."""

from pathlib import Path

from dovetail_proto import partitioning
from dovetail_proto.kernel_cache import keep_kernels_of

keep_kernels_of([Path(partitioning.__file__), *Path(__file__).parent.glob("*.py")])
