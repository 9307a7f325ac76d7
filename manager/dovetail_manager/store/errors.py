"""What a store refuses, and what it does not know."""

from __future__ import annotations

from dovetail_proto.errors import DovetailError, Fault


class StoreError(DovetailError):
    """Base of all refusals of a store."""

    code = "store"
    fault = Fault.ENVIRONMENT
    exit_code = 7


class Fenced(StoreError):  # noqa: N818 - an answer, not a fault
    """Another manager leads: nothing was written, and nothing will be. Step down."""

    code = "store-fenced"


class StaleWrite(StoreError):  # noqa: N818 - an answer, not a fault
    """The write is not the next one after what the store holds: nothing was written."""

    code = "store-stale"
    fault = Fault.DOVETAIL


class BadWrite(StoreError):  # noqa: N818 - an answer, not a fault
    """A key, value, history or size that the store does not take: nothing was written."""

    code = "store-write"
    fault = Fault.USER


class StoreDamaged(StoreError):  # noqa: N818 - a state of the store
    """The store is not one of ours, is of another version, or has lost what it had confirmed."""

    code = "store-damaged"


class StoreUnavailable(StoreError):  # noqa: N818 - a state of the store
    """The store did not answer within the patience given, or refused to work for now.

    `unknown` says whether the write may have been done all the same. Either way the same write
    may be repeated: it is done once.
    """

    code = "store-unavailable"
    retry = True

    def __init__(self, message: str, *, unknown: bool, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy, unknown=unknown)
        self.unknown = unknown
