"""Forks and new names of all processes, as the kernel records them.

/proc shows only processes that live while it is read. An event that counts nothing records every
fork and exec (perf_event_open(2), ``task`` and ``comm``) into one ring per CPU, so that programs
that end between two reads are seen too. Needs the permissions of a sampler of all processes.

Costs nothing until a process starts; a fork or exec costs about 1 µs to read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmd._native import ffi
from hmd.machine.procfs import parse_ids, read_text
from hmd.sample.access_batch import Kind
from hmd.sample.perf_events import EventRing, PerfEvent, task_event
from hmd.sample.perf_ring import SampleType

RING_PAGES = 32
"""Data pages of a ring: 128 KiB hold the records of about 800 processes between two reads."""

_COMM, _FORK = 3, 7  # PERF_RECORD_COMM, PERF_RECORD_FORK
_HEADER = struct.Struct("=IHH")  # type, misc, size
_TASK = struct.Struct("=IIIIQ")  # pid, parent, thread, parent's thread, time
_PAIR = struct.Struct("=II")  # pid, thread
_TIME = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class Forked:
    """``parent_pid`` started ``pid`` at ``time_ns`` (CLOCK_MONOTONIC)."""

    time_ns: int
    pid: int
    parent_pid: int


@dataclass(frozen=True, slots=True)
class Named:
    """``pid`` has had this name since ``time_ns``: by exec, or by its own choice."""

    time_ns: int
    pid: int
    name: str


TaskRecord = Forked | Named


class TaskEvents:
    """Rings of task records on the online CPUs."""

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        """Open and start the events. Raises ``PerfError``."""
        self._rings: list[EventRing] = []
        self._buffer = ffi.new("char[]", RING_PAGES * 4096)
        event = PerfEvent(type=1, config=9, sample_type=SampleType.TIME)
        try:
            for cpu in parse_ids(read_text(sysfs / "devices/system/cpu/online")):
                ring = EventRing(task_event(cpu), event, Kind.LOAD, RING_PAGES, cpu=cpu)
                self._rings.append(ring)
                ring.enable()
        except Exception:
            self.close()
            raise

    def read(self) -> list[TaskRecord]:
        """Return the records since the last read, in order of time."""
        found: list[TaskRecord] = []
        for ring in self._rings:
            size = ring.copy(self._buffer)
            found += parse_records(bytes(ffi.buffer(self._buffer, size)))
        return sorted(found, key=lambda record: record.time_ns)

    def close(self) -> None:
        """Free the rings; may be called twice."""
        for ring in self._rings:
            ring.close()
        self._rings = []


def parse_records(data: bytes) -> Sequence[TaskRecord]:
    """Return the forks of processes and the names of their first threads in whole records."""
    found: list[TaskRecord] = []
    at = 0
    while at < len(data):
        kind, _, size = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + size]
        at += size
        if kind == _FORK:
            pid, parent, thread, _, time_ns = _TASK.unpack_from(body)
            if pid == thread:  # else a thread
                found.append(Forked(time_ns, pid, parent))
        elif kind == _COMM:
            pid, thread = _PAIR.unpack_from(body)
            (time_ns,) = _TIME.unpack_from(body, len(body) - _TIME.size)
            name = body[_PAIR.size : len(body) - _TIME.size].split(b"\0", 1)[0]
            if pid == thread:
                found.append(Named(time_ns, pid, name.decode(errors="replace")))
    return found
