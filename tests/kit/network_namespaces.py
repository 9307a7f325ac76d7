"""Processors in network namespaces of their own: links that are cut, slow, lossy.

    our namespace           hub        p1's namespace
    10.x.y.1 (manager) ── bridge ── 10.x.y.2
                              └──── 10.x.y.3, p2's namespace, and so on

The bridge has a namespace of its own, so that no rule of the machine's own firewall is in the way
and nothing but one device is added to ours. A slow link is two pairs of devices with a process
between them, which carries frames from one to the other, late, and drops some: the kernel's own
means (netem) are missing on many machines.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


def why_forbidden() -> str:
    """Why this machine cannot do it; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    name = f"dv{os.getpid()}probe"
    try:
        _ip("netns", "add", name)
        _ip("link", "add", f"{name[:13]}a", "type", "veth", "peer", f"{name[:13]}b")
        _ip("link", "add", f"{name[:13]}c", "type", "bridge")
    except FileNotFoundError:
        return "the program 'ip' (package iproute2) is missing"
    except subprocess.CalledProcessError as e:
        return f"this machine forbids it: {e.stderr.strip()}"
    finally:
        for words in (["netns", "del", name], *(["link", "del", f"{name[:13]}{c}"] for c in "ac")):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                _ip(*words)
    return ""


@dataclass(slots=True)
class Network:
    """A hub that we are linked to, and one namespace per name. Made by `network`."""

    prefix: str  # of the names of all that it makes
    subnet: str  # the first three numbers of all addresses
    namespaces: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    carriers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def hub(self) -> str:
        """The namespace of the bridge."""
        return f"{self.prefix}hub"

    @property
    def here(self) -> str:
        """Our own address."""
        return f"{self.subnet}.1"

    def open(self) -> None:
        """The hub, and our own link to it."""
        _ip("netns", "add", self.hub)
        _ip("link", "add", f"{self.prefix}up", "type", "veth", "peer", "o1", "netns", self.hub)
        _ip("addr", "add", f"{self.here}/24", "dev", f"{self.prefix}up")
        _ip("link", "set", f"{self.prefix}up", "up")
        self._hub("link", "add", "hub0", "type", "bridge")
        self._hub("link", "set", "hub0", "up")
        self._hub("link", "set", "o1", "master", "hub0", "up")

    def add(self, name: str, *, delay_s: float = 0.0, loss: float = 0.0) -> None:
        """A namespace for `name`, linked to the hub."""
        number = len(self.namespaces) + 2
        outside, near, far = f"o{number}", f"n{number}", f"f{number}"
        space = self.namespaces[name] = f"{self.prefix}{name}"
        self.addresses[name] = f"{self.subnet}.{number}"
        _ip("netns", "add", space)
        peer = outside
        if delay_s or loss:
            peer = far
            self._hub("link", "add", outside, "type", "veth", "peer", near)
        self._hub("link", "add", peer, "type", "veth", "peer", "eth0", "netns", space)
        if delay_s or loss:
            self._carry(space, number, delay_s, loss)
        self._hub("link", "set", outside, "master", "hub0", "up")
        _ip("-n", space, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")

    def cut(self, name: str) -> None:
        """Nothing gets through any more, in either direction, and nobody is told."""
        self._hub("link", "set", self._port(name), "nomaster")

    def mend(self, name: str) -> None:
        """The link is as before."""
        self._hub("link", "set", self._port(name), "master", "hub0")

    def remove(self) -> None:
        """Everything goes; what is not there any more is no error."""
        for carrier in self.carriers:
            carrier.kill()
            carrier.wait()
        for words in (
            *(["netns", "del", space] for space in (*self.namespaces.values(), self.hub)),
            ["link", "del", f"{self.prefix}up"],
        ):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*words)

    def _carry(self, space: str, number: int, delay_s: float, loss: float) -> None:
        """Start the process between the two pairs of a slow link."""
        near, far = f"n{number}", f"f{number}"
        for device in (near, far):
            self._hub("link", "set", device, "up", "promisc", "on")
        for where, device in (
            (self.hub, near),
            (self.hub, far),
            (self.hub, f"o{number}"),
            (self.hub, "o1"),
            (space, "eth0"),
        ):
            _run(where, "offloads", device)
        _run(self.hub, "offloads", "hub0")
        words = _in(self.hub, "carry", near, far, str(delay_s), str(loss))
        self.carriers.append(subprocess.Popen(words, stdin=subprocess.PIPE))

    def _port(self, name: str) -> str:
        return f"o{list(self.namespaces).index(name) + 2}"

    def _hub(self, *words: str) -> None:
        _ip("-n", self.hub, *words)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network of this test process's own, gone afterwards whatever happens."""
    pid = os.getpid()
    made = Network(f"dv{pid % 1_000_000}", f"10.{200 + pid // 250 % 50}.{pid % 250}")
    try:
        made.open()
        yield made
    finally:
        made.remove()


def _in(space: str, *words: str) -> list[str]:
    program = str(Path(__file__).with_name("slow_link.py"))
    return ["ip", "netns", "exec", space, sys.executable, program, *words]


def _run(space: str, *words: str) -> None:
    subprocess.run(_in(space, *words), check=True, capture_output=True, text=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
