"""Whether a client leaves gRPC calls behind, which could keep its process from ending."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import grpc


@contextmanager
def none_left() -> Iterator[None]:
    """Every call that is made in here is gone at the end, without the collector's help."""
    gc.collect()
    before = _calls()
    gc.disable()
    try:
        yield
        left = _calls() - before
    finally:
        gc.enable()
    assert not left, f"{len(left)} calls are left"


def _calls() -> set[int]:
    return {id(o) for o in gc.get_objects() if issubclass(type(o), grpc.Call)}
