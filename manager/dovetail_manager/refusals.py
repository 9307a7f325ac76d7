"""Refusals of what operators ask for; `details["reason"]` says what kind of no it is."""

from __future__ import annotations

from dovetail_proto.errors import Domain, Refusal


def wrong_state(domain: Domain, message: str, remedy: str = "") -> Refusal:
    """Not while it is as it is."""
    return Refusal(domain, message, remedy=remedy, reason="state")


def unknown(domain: Domain, message: str, remedy: str = "") -> Refusal:
    """There is no such thing."""
    return Refusal(domain, message, remedy=remedy, reason="unknown")


def exists(domain: Domain, message: str, remedy: str = "use another name") -> Refusal:
    """The name is taken."""
    return Refusal(domain, message, remedy=remedy, reason="exists")


def busy(message: str, remedy: str = "try again in a second") -> Refusal:
    """Not now."""
    return Refusal(Domain.BUSY, message, remedy=remedy, reason="busy")
