# SPDX-License-Identifier: MIT
"""perf_event_open(2): opening events with their rings, and what its errors mean.

Gives an ``EventRing`` that can be drained, or ``TaskEvents``, the forks and new names of all
processes. Needs CAP_PERFMON, or a kernel.perf_event_paranoid that allows it, and a descriptor and
``1 + pages`` locked pages a ring.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from hmd._native import ffi, lib
from hmd.base.errors import HmdError, UnavailableError, unavailable_code
from hmd.base.units import PAGE_BYTES
from hmd.linux.checks import read_privileges
from hmd.linux.procfs import SYSFS
from hmd.linux.topology import online_cpus
from hmd.sample.access_batch import Kind
from hmd.sample.perf_ring import Ring, SampleType

Opened = TypeVar("Opened")

MIN_RING_PAGES: Final = 4
"""The smallest ring worth having: a few hundred samples between two reads."""
MAX_RINGS_BYTES: Final = 64 << 20
"""Locked memory of all rings: more samples than a read takes, whatever the number of CPUs."""
TASK_RING_PAGES: Final = 32
"""Data pages of a ring of task events: 128 KiB hold the records of about 800 processes between two
reads."""

PERF_TYPE_SOFTWARE: Final = 1
PERF_COUNT_SW_DUMMY: Final = 9
_PERF_RECORD_COMM, _PERF_RECORD_FORK = 3, 7
_HEADER: Final = struct.Struct("=IHH")  # type, misc, size
_TASK: Final = struct.Struct("=IIIIQ")  # pid, parent, thread, parent's thread, time
_PAIR: Final = struct.Struct("=II")  # pid, thread
_TIME: Final = struct.Struct("=Q")


def limit_ring_pages(rings: int, max_pages: int) -> int:
    """Return the data pages of each of so many rings: ``max_pages`` or a power of two below it.

    512 CPUs with four rings each thus lock 72 MiB, a third of what a user without CAP_IPC_LOCK may
    (kernel.perf_event_mlock_kb, 516 KiB per CPU).
    """
    pages = max_pages
    while pages > MIN_RING_PAGES and rings * pages * PAGE_BYTES > MAX_RINGS_BYTES:
        pages //= 2
    return pages


@dataclass(frozen=True, slots=True)
class PerfEvent:
    """What hmd asks of struct perf_event_attr. ``period`` 0 counts without sampling.

    ``monotonic``: TIME in a ``sample_type`` is CLOCK_MONOTONIC, else perf's own clock, of which
    PEBS writes many records per interrupt (intel_pmu_large_pebs_flags() in
    arch/x86/events/intel/core.c). ``exclude_guest``: not while a guest of this host runs. PEBS is
    off then in any case (intel_guest_get_msrs()), and an event that says so lets virtual machines
    have the PMU to themselves (eff95e170275).
    """

    type: int
    config: int
    config1: int = 0
    config2: int = 0
    precise_ip: int = 0
    sample_type: SampleType = SampleType.TID
    read_format: int = 0
    period: int = 0
    exclude_kernel: bool = True
    exclude_guest: bool = False
    inherit: bool = False
    monotonic: bool = True


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Times of a mapped event: since it was enabled, and for how much of it it had a counter.

    ``ns_per_tsc`` is of the time stamp counter, which runs at the nominal clock; 0 if unknown.
    ``monotonic_offset_ns`` added to perf's own clock gives CLOCK_MONOTONIC; None where the kernel
    does not say how its clock runs.
    """

    enabled_ns: int
    running_ns: int
    ns_per_tsc: float
    monotonic_offset_ns: int | None


class PerfError(UnavailableError):
    """A perf call that failed; ``errno`` says how, for callers that can try something else."""

    def __init__(self, code: int, what: str) -> None:
        advice = _advice(code)
        if "page fault" in what:
            advice = advice.removesuffix(": set sampler to faults")
        super().__init__(f"{what}: {advice}")
        self.errno = code
        self.exit_code = unavailable_code(code)


def _advice(code: int) -> str:
    """Return what an errno of perf_event_open(2), or of mmap of its ring, asks of the user."""
    match code:
        case errno.EMFILE | errno.ENFILE:
            return (
                "too many open files: raise LimitNOFILE= in the unit (ulimit -n); "
                "sampling needs a descriptor per CPU and event"
            )
        case errno.EPERM | errno.EACCES if read_privileges().may_sample:
            return (
                "refused although hmd's privileges permit it: in a container, allow "
                "perf_event_open in the seccomp profile"
            )
        case errno.EPERM | errno.EACCES:
            return (
                "not permitted: run as root, or give hmd CAP_PERFMON (and CAP_IPC_LOCK for its "
                "rings) with kernel.perf_event_paranoid at 2 or below"
            )
        case errno.ENXIO:  # x86_pmu_extra_regs(): KVM gives its guests no MSR 0x3F6
            return (
                "this virtual machine has no register for the threshold of load latency: "
                "set sample.loads to miss"
            )
        case errno.ENOENT | errno.ENODEV:
            return "this CPU, or this virtual machine, has no such event: set sampler to faults"
        case errno.ENODATA:
            return "the load event needs its auxiliary event as group leader, which was refused"
        case errno.EINVAL | errno.EOPNOTSUPP:
            return "the kernel refused the event's encoding: choose another event or sampler"
        case errno.EBUSY | errno.ENOSPC:
            return (
                "another program holds the counters: stop it (perf, a profiler, or a virtual "
                "machine that has the PMU to itself)"
            )
        case errno.ENOMEM:
            return "no memory for the ring: free memory, or choose smaller rings"
        case errno.ENOSYS:
            return "this kernel has no perf events (CONFIG_PERF_EVENTS), or a sandbox hides them"
        case errno.ESRCH:
            return "the process has gone"
    return os.strerror(code)


def checked(result: int, what: str) -> int:
    """Return a result of hmd/native that is no -errno. Raises ``PerfError``."""
    if result < 0:
        raise PerfError(-result, what)
    return result


def open_event(event: PerfEvent, pid: int, cpu: int, group_fd: int = -1, what: str = "") -> int:
    """Return a disabled event's descriptor; pid or cpu -1: any, not both. Raises PerfError."""
    attributes = {field.name: int(getattr(event, field.name)) for field in fields(event)}
    c = ffi.new("struct hmd_perf_event *", attributes)
    result = int(lib.hmd_perf_open(c, pid, cpu, group_fd))
    where = f" on CPU {cpu}" if cpu >= 0 else ""
    return checked(result, f"cannot open {what or 'perf event'}{where}")


def enable_event(fd: int) -> None:
    """Start an event. Raises ``PerfError``."""
    checked(int(lib.hmd_perf_enable(fd)), "cannot start an event")


@contextmanager
def closed_on_error(opened: Collection[Ring]) -> Iterator[None]:
    """Close the rings that have been opened where the block fails."""
    try:
        yield
    except BaseException:
        for ring in opened:
            ring.close()
        raise


def open_permitted(open_in: Callable[[bool], Opened], *, kernel_mode: bool) -> tuple[Opened, str]:
    """Return what is opened with kernel mode or without, as asked for and permitted; and say which.

    ``open_in`` takes whether kernel mode is excluded. Raises ``PerfError``.
    """
    try:
        return open_in(not kernel_mode), "user and kernel mode" if kernel_mode else "user mode"
    except PerfError as error:
        if not kernel_mode or error.errno not in (errno.EACCES, errno.EPERM):
            raise
    return open_in(True), "user mode (kernel mode is not permitted)"


def open_rings(
    event: PerfEvent,
    kind: Kind,
    cpus: Iterable[int],
    pages: int,
    *,
    leader: PerfEvent | None = None,
    what: str = "",
) -> list[EventRing]:
    """Return a ring per CPU for all processes there, all or none; a CPU gone offline has none.

    ``leader`` is opened first on each CPU as the group leader. Raises ``PerfError``.
    """
    rings: list[EventRing] = []
    with closed_on_error(rings):
        for cpu in cpus:
            try:
                rings.append(_open_ring(event, kind, cpu, pages, leader, what))
            except PerfError as error:
                if error.errno != errno.ENODEV:
                    raise
    return rings


def open_log_rings(
    cpus: Iterable[int], sample_type: SampleType, pages: int, what: str, *, switches: bool
) -> list[EventRing]:
    """Return a started ring per CPU with records of threads: their switches, or forks and names.

    ``sample_type`` is of each record's trailer. Raises ``PerfError``.
    """
    event = PerfEvent(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY, sample_type=sample_type)
    rings: list[EventRing] = []
    with closed_on_error(rings):
        for cpu in cpus:
            fd = checked(int(lib.hmd_perf_open_log(cpu, switches)), f"cannot {what} on CPU {cpu}")
            rings.append(EventRing(fd, event, Kind.LOAD, pages, cpu=cpu))
            rings[-1].enable()
    return rings


def _open_ring(
    event: PerfEvent, kind: Kind, cpu: int, pages: int, leader: PerfEvent | None, what: str
) -> EventRing:
    leader_fd = -1 if leader is None else open_event(leader, -1, cpu, what=f"leader of {what}")
    try:
        fd = open_event(event, -1, cpu, leader_fd, what)
    except PerfError:
        if leader_fd >= 0:
            lib.hmd_perf_close(leader_fd)
        raise
    return EventRing(fd, event, kind, pages, leader_fd, cpu)


def map_halved(map_size: Callable[[int], int], size: int, min_size: int, what: str) -> int:
    """Return the size that was mapped: halved where the limit on locked memory is in the way.

    ``map_size`` returns 0 or -errno. Without CAP_IPC_LOCK a user may lock
    kernel.perf_event_mlock_kb per CPU. Raises ``PerfError``.
    """
    while (result := map_size(size)) in (-errno.EPERM, -errno.ENOMEM) and size > min_size:
        size //= 2
    checked(result, f"cannot map {what} of {size}")
    return size


class EventRing(Ring):
    """An open event and its mapped ring; closing it frees both, twice is harmless.

    Owns ``fd`` from the first, also when mapping fails. ``leader_fd`` is the descriptor of a
    group leader that goes with it; ``cpu`` where it counts, -1 for all. ``pages`` of data are
    mapped, or half as many, and half again, where less memory may be locked.
    """

    def __init__(
        self,
        fd: int,
        event: PerfEvent,
        kind: Kind,
        pages: int,
        leader_fd: int = -1,
        cpu: int = -1,
    ) -> None:
        """Raise ``PerfError`` where nothing can be mapped."""
        self._fd, self._leader_fd = fd, leader_fd
        self._event = event
        self._header: Any = ffi.NULL
        header, data, size = ffi.new("void **"), ffi.new("void **"), ffi.new("uint64_t *")
        try:
            self.pages = map_halved(
                lambda pages: int(lib.hmd_perf_map(fd, pages, header, data, size)),
                pages,
                MIN_RING_PAGES,
                "a ring, in pages,",
            )
            self._header = header[0]
            super().__init__(
                int(ffi.cast("uintptr_t", header[0])),
                int(ffi.cast("uintptr_t", data[0])),
                int(size[0]),
                event.sample_type,
                kind,
                cpu,
            )
        except (HmdError, ValueError):
            self.close()
            raise

    def open_second(self, period: int, what: str = "") -> EventRing:
        """Return a ring of the same event counted a second time, with another period.

        In the same group, so that both count at the same times: the kernel refuses (EINVAL) what
        has too few counters for that. Raises ``PerfError``.
        """
        group_fd = self._leader_fd if self._leader_fd >= 0 else self._fd
        event = replace(self._event, period=period)
        fd = open_event(event, -1, self.cpu, group_fd, f"{what or 'the event'} a second time")
        return EventRing(fd, event, self.kind, self.pages, cpu=self.cpu)

    def enable(self) -> None:
        """Start sampling: the event first, so that its leader starts both as one group."""
        for fd in (self._fd, self._leader_fd):
            if fd >= 0:
                checked(int(lib.hmd_perf_enable(fd)), "cannot start sampling")

    def disable(self) -> None:
        """Stop sampling; what is in the ring stays."""
        for fd in (self._leader_fd, self._fd):
            if fd >= 0:
                checked(int(lib.hmd_perf_disable(fd)), "cannot stop sampling")

    @property
    def times(self) -> EventTimes:
        """What the kernel tells of the event; 1 µs. Not after ``close``."""
        c = ffi.new("struct hmd_perf_times *")
        lib.hmd_perf_read_times(self._header, c)
        offset_ns = int(c.monotonic_offset_ns) if c.known_clock else None
        return EventTimes(int(c.enabled_ns), int(c.running_ns), float(c.ns_per_tsc), offset_ns)

    def set_period(self, period: int) -> None:
        """Change the period; takes effect at once. Raises ``PerfError``."""
        checked(int(lib.hmd_perf_set_period(self._fd, period)), f"cannot set period {period}")

    def close(self) -> None:
        """Unmap the ring and close the descriptors."""
        super().close()
        if self._header != ffi.NULL:
            lib.hmd_perf_unmap(self._header, self.pages)
            self._header = ffi.NULL
        for fd in (self._fd, self._leader_fd):
            if fd >= 0:
                lib.hmd_perf_close(fd)
        self._fd = self._leader_fd = -1


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
    """Forks and new names of all processes, as the kernel records them, on the online CPUs.

    An event that counts nothing records every fork and exec (perf_event_open(2), ``task`` and
    ``comm``), so that programs that end between two reads of /proc are seen too; about 1 µs each.
    """

    def __init__(self, sysfs: Path = SYSFS) -> None:
        """Open and start the events. Raises ``PerfError``."""
        cpus, what = online_cpus(sysfs), "open task events"
        self._rings = open_log_rings(cpus, SampleType.TIME, TASK_RING_PAGES, what, switches=False)
        self._buffer = ffi.new("char[]", TASK_RING_PAGES * PAGE_BYTES)

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
        record_type, _, size = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + size]
        at += size
        if record_type == _PERF_RECORD_FORK:
            pid, parent, thread, _, time_ns = _TASK.unpack_from(body)
            if pid == thread:  # else a thread
                found.append(Forked(time_ns, pid, parent))
        elif record_type == _PERF_RECORD_COMM:
            pid, thread = _PAIR.unpack_from(body)
            (time_ns,) = _TIME.unpack_from(body, len(body) - _TIME.size)
            name = body[_PAIR.size : len(body) - _TIME.size].split(b"\0", 1)[0]
            if pid == thread:
                found.append(Named(time_ns, pid, name.decode(errors="replace")))
    return found
