# SPDX-License-Identifier: MIT
"""Packets of ARM SPE as a CPU writes them (DDI 0487), and the memory of an event."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.sample.perf_ring import HEADER_BYTES
from hmd.sample.spe import Decoding, SpeRing

PAD, END = b"\0", b"\1"
LOAD, STORE, BRANCH = b"\x49\x00", b"\x49\x01", b"\x4a\x00"
RECORD_BYTES = 64
AUX_HEAD, AUX_TAIL = 1056, 1064
PERF_RECORD_LOST, PERF_RECORD_AUX, PERF_RECORD_SWITCH_CPU_WIDE = 2, 11, 15
TRUNCATED, PARTIAL, COLLISION = 1, 4, 8


def address(index: int, value: int) -> bytes:
    return struct.pack("<BQ", 0xB0 | index, value)


def virtual(value: int, tag: int = 0) -> bytes:
    return address(2, value & (1 << 56) - 1 | tag << 56)


def extended(packet: bytes, high: int) -> bytes:
    """Return a packet of an address or counter whose index has ``high`` above its three bits."""
    return bytes([0x20 | high]) + packet


def counter(index: int, cycles: int) -> bytes:
    return struct.pack("<BH", 0x98 | index, cycles)


def context(thread: int, index: int = 0) -> bytes:
    return struct.pack("<BI", 0x64 | index, thread)


def events(bits: int) -> bytes:
    return struct.pack("<BH", 0x52, bits)


def source(value: int) -> bytes:
    return struct.pack("<BB", 0x43, value)


def timestamp(value: int) -> bytes:
    return struct.pack("<BQ", 0x71, value)


def alignment(offset: int, bits: int) -> bytes:
    """Return padding from ``offset`` to a multiple of 2 to the power of ``bits``, 1 to 4."""
    unit = 1 << bits
    left = unit - offset % unit
    return bytes([0x20 | bits - 1, 0]) + bytes((left if left > 1 else left + unit) - 2)


def access(
    at: int,
    *,
    kind: bytes = LOAD,
    latency: int = 200,
    thread: int = 0,
    bits: int = 0x0E,
    time: int = 1000,
    tag: int = 0,
    physical: int = 0,
) -> bytes:
    """Return a record in the order of Neoverse cores, padded to its 64 bytes."""
    packets = [
        address(0, 0x400000),
        context(thread) if thread else b"",
        counter(1, 3),
        counter(0, latency),
        kind,
        virtual(at, tag),
        address(3, physical) if physical else b"",
        counter(2, 1),
        events(bits),
    ]
    body = b"".join(packets)
    end = timestamp(time) if time else END
    return body + PAD * (RECORD_BYTES - len(body) - len(end)) + end


@dataclass
class SpeMemory:
    """An event's ring and area; ``restarts`` counts starts after the area was full."""

    decoding: Decoding = field(default_factory=lambda: Decoding(4096))
    area_bytes: int = 4096
    cpu: int = 3
    restarts: int = 0
    area: npt.NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self.ring: npt.NDArray[np.uint8] = np.zeros(2 * HEADER_BYTES, np.uint8)
        self.area = np.zeros(self.area_bytes, np.uint8)
        self.reader = self.reader_of(self.area)

    def reader_of(self, area: npt.NDArray[np.uint8]) -> SpeRing:
        header = self.ring.ctypes.data
        return SpeRing(
            header,
            header + HEADER_BYTES,
            HEADER_BYTES,
            area.ctypes.data,
            len(area),
            self.decoding,
            self.cpu,
            self._restart,
        )

    def _restart(self) -> None:
        self.restarts += 1

    def word(self, offset: int) -> npt.NDArray[np.uint64]:
        return self.ring[offset : offset + 8].view(np.uint64)

    def write(self, data: bytes) -> None:
        """Append to the area, across its end where it is reached."""
        head = int(self.word(AUX_HEAD)[0])
        at = np.arange(head, head + len(data)) % self.area_bytes
        self.area[at] = np.frombuffer(data, np.uint8)
        self.word(AUX_HEAD)[0] = head + len(data)

    def notice(self, kind: int, *words: int, misc: int = 0) -> None:
        """Append a record to the event's ring."""
        record = struct.pack(f"<IHH{len(words)}Q", kind, misc, 8 + 8 * len(words), *words)
        head = int(self.word(1024)[0])
        at = HEADER_BYTES + np.arange(head, head + len(record)) % HEADER_BYTES
        self.ring[at] = np.frombuffer(record, np.uint8)
        self.word(1024)[0] = head + len(record)
