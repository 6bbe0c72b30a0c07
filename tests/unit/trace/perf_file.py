# SPDX-License-Identifier: MIT
"""Makes perf.data files: events, samples with fields of any size, files and pipes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hmd.sample.perf_ring import SampleType

SAMPLE, COMM, FORK, MMAP2, LOST, THROTTLE = 9, 3, 7, 10, 2, 5
ATTR, FINISHED_ROUND, AUXTRACE_INFO, AUXTRACE, TIME_CONV = 64, 68, 70, 71, 79
FEATURE, COMPRESSED, COMPRESSED2 = 80, 81, 83
USER_MODE, GUEST_USER, EXEC = 2, 5, 1 << 13
OSRELEASE, CPUDESC, CMDLINE, EVENT_DESC = 4, 8, 11, 12

READ, CALLCHAIN, RAW, BRANCH_STACK = 1 << 4, 1 << 5, 1 << 10, 1 << 11
REGS_USER, STACK_USER, REGS_INTR, AUX = 1 << 12, 1 << 13, 1 << 18, 1 << 20
CGROUP, DATA_PAGE_SIZE, WEIGHT_STRUCT = 1 << 21, 1 << 22, 1 << 24
PLAIN = int(
    SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.ADDR | SampleType.CPU
    | SampleType.PERIOD | SampleType.WEIGHT | SampleType.DATA_SRC
)  # fmt: skip
# As perf_output_sample() writes them, with the words of each where they are not one.
ORDER: Sequence[int] = (
    1 << 16, 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 6, 1 << 9, 1 << 7, 1 << 8, READ, CALLCHAIN, RAW,
    BRANCH_STACK, REGS_USER, STACK_USER, 1 << 14, WEIGHT_STRUCT, 1 << 15, 1 << 17, REGS_INTR,
    1 << 19, CGROUP, DATA_PAGE_SIZE, 1 << 23, AUX,
)  # fmt: skip

LOAD_FROM_MEMORY = 0x2 | 0xD << 33
"""A data source: PERF_MEM_OP_LOAD, PERF_MEM_LVLNUM_RAM."""


def record(kind: int, body: bytes, misc: int = USER_MODE, *, padded: bool = True) -> bytes:
    if padded:
        body = body.ljust(-(-len(body) // 8) * 8, b"\0")
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


@dataclass
class Event:
    """An event; ``read_format``, ``branches`` and registers size some fields of its samples."""

    name: str = "cpu/mem-loads,ldlat=30/P"
    sample_type: int = PLAIN
    period: int = 1009
    ids: tuple[int, ...] = (7,)
    type: int = 4
    config: int = 0x1CD
    by_frequency: bool = False
    read_format: int = 0
    branches: int = 0
    registers: int = 0b1011
    attr_bytes: int = 128

    def attr(self) -> bytes:
        flags = self.by_frequency << 10 | 1 << 18
        head = struct.pack(
            "<IIQQQQQ", self.type, self.attr_bytes, self.config, self.period, self.sample_type,
            self.read_format, flags,
        )  # fmt: skip
        rest = struct.pack("<IIQQQQIiQ", 0, 0, 0, 0, self.branches, self.registers, 0, 0,
                           self.registers)  # fmt: skip
        return (head + rest).ljust(self.attr_bytes, b"\0")[: self.attr_bytes]


def sample(
    event: Event, values: Mapping[int, int], variable: int = 2, misc: int = USER_MODE
) -> bytes:
    """A sample with these values by field (0 for others); ``variable`` words in sized fields."""
    words: list[int] = []
    for bit in ORDER:
        if not event.sample_type & bit:
            continue
        size = variable * 8
        if bit == READ:
            times = (event.read_format & 1) + (event.read_format >> 1 & 1)
            each = 1 + (event.read_format >> 2 & 1) + (event.read_format >> 4 & 1)
            grouped = event.read_format & 8
            words += [variable] if grouped else []
            words += [5] * (times + each * (variable if grouped else 1))
        elif bit == CALLCHAIN:
            words += [variable, *[0x1234] * variable]
        elif bit == RAW:
            words += [size + 4, *[0] * variable]
        elif bit == BRANCH_STACK:
            words += [variable, *[9] * (event.branches >> 17 & 1), *[3] * (3 * variable)]
        elif bit in (REGS_USER, REGS_INTR):
            words += [2, *[1] * event.registers.bit_count()] if variable else [0]
        elif bit == STACK_USER:
            words += [size, *[1] * variable, size] if variable else [0]
        elif bit == AUX:
            words += [size, *[1] * variable]
        else:
            words.append(values.get(bit, 0) & (2**64 - 1))
    return record(SAMPLE, struct.pack(f"<{len(words)}Q", *words), misc)


def values(
    address: int, *, pid: int = 100, time: int = 1_000, latency: int = 300, event_id: int = 7,
    period: int = 1009, source: int = LOAD_FROM_MEMORY, cpu: int = 1,
) -> dict[int, int]:  # fmt: skip
    return {
        1 << 1: pid | (pid + 1) << 32, 1 << 2: time, 1 << 3: address, 1 << 6: event_id,
        1 << 16: event_id, 1 << 7: cpu, 1 << 8: period, 1 << 14: latency,
        WEIGHT_STRUCT: latency | 77 << 32, 1 << 15: source,
    }  # fmt: skip


def trailer(event: Event, pid: int, time: int) -> bytes:
    """What a record that is no sample ends with (struct sample_id)."""
    parts = {1 << 1: pid | pid << 32, 1 << 2: time, 1 << 6: 7, 1 << 9: 0, 1 << 7: 0, 1 << 16: 7}
    return b"".join(struct.pack("<Q", v) for bit, v in parts.items() if event.sample_type & bit)


def padded(text: str) -> bytes:
    raw = text.encode() + b"\0"
    return raw.ljust(-(-len(raw) // 8) * 8, b"\0")


def comm(event: Event, pid: int, name: str, time: int, misc: int = EXEC) -> bytes:
    return record(
        COMM, struct.pack("<II", pid, pid) + padded(name) + trailer(event, pid, time), misc
    )


def fork(event: Event, pid: int, parent: int, time: int) -> bytes:
    body = struct.pack("<IIIIQ", pid, parent, pid, parent, time)
    return record(FORK, body + trailer(event, pid, time))


def mmap2(
    event: Event, pid: int, start: int, length: int, path: str, time: int, prot: int = 3,
    offset: int = 0,
) -> bytes:  # fmt: skip
    body = struct.pack("<IIQQQ", pid, pid, start, length, offset) + bytes(24)
    body += struct.pack("<II", prot, 2) + padded(path)
    return record(MMAP2, body + trailer(event, pid, time))


def text(value: str) -> bytes:
    raw = value.encode() + b"\0"
    return struct.pack("<I", len(raw)) + raw


def features(events: Sequence[Event], cpu: str, words: Sequence[str]) -> dict[int, bytes]:
    described = struct.pack("<II", len(events), 128) + b"".join(
        event.attr().ljust(128, b"\0") + struct.pack("<I", len(event.ids)) + text(event.name)
        + struct.pack(f"<{len(event.ids)}Q", *event.ids) for event in events
    )  # fmt: skip
    return {
        OSRELEASE: text("6.1.0"),
        CPUDESC: text(cpu),
        CMDLINE: struct.pack("<I", len(words)) + b"".join(map(text, words)),
        EVENT_DESC: described,
    }


@dataclass
class PerfFile:
    """Events and records, which ``file`` and ``pipe`` lay out as perf record does."""

    events: list[Event]
    records: list[bytes] = field(default_factory=list)
    cpu: str = "Some CPU @ 2.00GHz"
    command: Sequence[str] = ("perf", "mem", "record")

    def file(self) -> bytes:
        attr_bytes = self.events[0].attr_bytes
        ids_at = 104
        ids = [struct.pack(f"<{len(event.ids)}Q", *event.ids) for event in self.events]
        attrs_at = ids_at + sum(map(len, ids))
        attrs, at = b"", ids_at
        for event, own in zip(self.events, ids, strict=True):
            attrs += event.attr() + struct.pack("<QQ", at, len(own))
            at += len(own)
        data = b"".join(self.records)
        data_at = attrs_at + len(attrs)
        known = features(self.events, self.cpu, self.command)
        at = data_at + len(data) + 16 * len(known)
        table = b""
        for content in known.values():
            table += struct.pack("<QQ", at, len(content))
            at += len(content)
        bits = sum(1 << number for number in known)
        header = b"PERFILE2" + struct.pack(
            "<8Q", 104, attr_bytes + 16, attrs_at, len(attrs), data_at, len(data), 0, 0
        ) + bits.to_bytes(32, "little")  # fmt: skip
        return header + b"".join(ids) + attrs + data + table + b"".join(known.values())

    def pipe(self) -> bytes:
        head = b"PERFILE2" + struct.pack("<Q", 16)
        attrs = [
            record(ATTR, event.attr() + struct.pack(f"<{len(event.ids)}Q", *event.ids))
            for event in self.events
        ]
        known = [
            record(FEATURE, struct.pack("<Q", number) + content)
            for number, content in features(self.events, self.cpu, self.command).items()
        ]
        return head + b"".join([*attrs, *known, *self.records])
