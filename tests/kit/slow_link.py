"""A wire between two network devices that is slow and loses frames, as a program.

slow_link.py offloads DEVICE               have the device send whole frames, as on a wire
slow_link.py carry NEAR FAR DELAY_S LOSS   carry them; ends with its standard input
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

ETH_P_ALL = 3
PACKET_OUTGOING = 4
SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)
"""ETHTOOL_STXCSUM, STSO, SGSO, SGRO: off, so that frames have their checksums and fit the wire."""

FRAME_BYTES_MAX = 1 << 16
QUEUED_MAX = 5_000
"""Frames on the wire; a queue that is full loses, too."""


def switch_off_offloads(device: str) -> None:
    """What the kernel saves itself on devices that are no wires."""
    with socket.socket() as any_socket:
        for command in OFFLOADS:
            value = array.array("I", [command, 0])
            request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
            with contextlib.suppress(OSError):  # a device without that offload
                fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def carry(near: str, far: str, delay_s: float, loss: float) -> None:
    """Carry frames until standard input ends."""
    chance = random.Random(7)
    ends = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) for _ in range(2)]
    for end, device in zip(ends, (near, far), strict=True):
        end.bind((device, ETH_P_ALL))
        end.setblocking(False)
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    wire: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0
    while True:
        wait_s = max(0.0, wire[0][0] - time.monotonic()) if wire else 1.0
        ready, _, _ = select.select([*ends, sys.stdin], [], [], wait_s)
        if sys.stdin in ready:
            return
        for end in ready:
            frame, about = end.recvfrom(FRAME_BYTES_MAX)
            if about[2] == PACKET_OUTGOING or chance.random() < loss or len(wire) >= QUEUED_MAX:
                continue
            number += 1
            heapq.heappush(wire, (time.monotonic() + delay_s, number, other[end], frame))
        while wire and wire[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(wire)
            with contextlib.suppress(OSError):  # the device is going away
                end.send(frame)


if __name__ == "__main__":
    if sys.argv[1] == "offloads":
        switch_off_offloads(sys.argv[2])
    else:
        carry(sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
