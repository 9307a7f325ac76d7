"""What holds for all tests: property tests try the same examples every time, however long.

Clusters of the command line have processors of one thread, however many cores the machine has.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

import dovetail_proto  # noqa: F401 - before any test imports grpc: it says how grpc may fork

os.environ["DOVETAIL_THREADS"] = "1"
settings.register_profile(
    "dovetail",
    derandomize=True,  # a red test must be red again
    deadline=None,  # a busy machine is no failure
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dovetail")
