"""perf_event_open(2): opening events with their rings, and what its errors mean.

Takes what to count and where; gives an ``EventRing`` that can be drained. Needs CAP_PERFMON, or a
kernel.perf_event_paranoid that allows it, and a descriptor and ``1 + pages`` locked pages a ring.
This is the one place that turns errno of perf calls into words.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from hmd._native import ffi, lib
from hmd.errors import HmdError, UnavailableError, unavailable_code
from hmd.sample.access_batch import Kind
from hmd.sample.perf_ring import RecordColumns, Ring, RingCounts, SampleType
from hmd.units import PAGE_BYTES

MIN_RING_PAGES = 4
"""The smallest ring worth having: a few hundred samples between two reads."""


ALL_RINGS_BYTES = 64 << 20
"""Most locked memory of all rings: more samples than a read takes, whatever the number of CPUs."""


def ring_pages_within(rings: int, most: int) -> int:
    """Return the data pages of each of so many rings, ``most`` or a power of two below it.

    512 CPUs with four rings each thus lock 72 MiB, a third of what kernel.perf_event_mlock_kb
    (516 KiB per CPU) permits a user without CAP_IPC_LOCK.
    """
    pages = most
    while pages > MIN_RING_PAGES and rings * pages * PAGE_BYTES > ALL_RINGS_BYTES:
        pages //= 2
    return pages


@dataclass(frozen=True, slots=True)
class PerfEvent:
    """What hmd asks of struct perf_event_attr. ``period`` 0 counts without sampling.

    TIME in a ``sample_type`` is CLOCK_MONOTONIC.
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
    inherit: bool = False


class PerfError(UnavailableError):
    """A perf call that failed; ``errno`` says how, for callers that can try something else."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what}: {_advice(code)}")
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
        case errno.EPERM | errno.EACCES:
            return (
                "not permitted: run as root, or give hmd CAP_PERFMON (and CAP_IPC_LOCK for its "
                "rings) with kernel.perf_event_paranoid at 2 or below"
            )
        case errno.ENOENT | errno.ENODEV | errno.ENXIO:
            return "this CPU, or this virtual machine, has no such event: set sampler to faults"
        case errno.ENODATA:
            return "the load event needs its auxiliary event as group leader, which was refused"
        case errno.EINVAL | errno.EOPNOTSUPP:
            return "the kernel refused the event's encoding: choose another event or sampler"
        case errno.EBUSY | errno.ENOSPC:
            return (
                "another program holds the counters: stop it (perf, a profiler, or the NMI "
                "watchdog: sysctl kernel.nmi_watchdog=0)"
            )
        case errno.ENOMEM:
            return "no memory for the ring: free memory, or choose smaller rings"
        case errno.ENOSYS:
            return "this kernel has no perf events (CONFIG_PERF_EVENTS), or a sandbox hides them"
        case errno.ESRCH:
            return "the process has gone"
    return os.strerror(code)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise PerfError(-result, what)
    return result


def open_event(event: PerfEvent, pid: int, cpu: int, group_fd: int = -1, what: str = "") -> int:
    """Return the descriptor of an event, opened disabled and close-on-exec.

    pid -1 is every process, cpu -1 every CPU; not both. Raises ``PerfError``.
    """
    c = ffi.new(
        "struct hmd_perf_event *",
        {
            "type": event.type,
            "config": event.config,
            "config1": event.config1,
            "config2": event.config2,
            "precise_ip": event.precise_ip,
            "sample_type": int(event.sample_type),
            "read_format": event.read_format,
            "period": event.period,
            "exclude_kernel": event.exclude_kernel,
            "inherit": event.inherit,
        },
    )
    result = int(lib.hmd_perf_open(c, pid, cpu, group_fd))
    where = f" on CPU {cpu}" if cpu >= 0 else ""
    return _checked(result, f"cannot open {what or 'perf event'}{where}")


def task_event(cpu: int) -> int:
    """Return the descriptor of an event that records forks and names on a CPU, disabled.

    Raises ``PerfError``.
    """
    what = f"cannot open task events on CPU {cpu}"
    return _checked(int(lib.hmd_perf_open_tasks(cpu)), what)


def enable_event(fd: int) -> None:
    """Start an event. Raises ``PerfError``."""
    _checked(int(lib.hmd_perf_enable(fd)), "cannot start an event")


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
    try:
        for cpu in cpus:
            try:
                rings.append(_open_ring(event, kind, cpu, pages, leader, what))
            except PerfError as error:
                if error.errno != errno.ENODEV:
                    raise
    except PerfError:
        for ring in rings:
            ring.close()
        raise
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


class EventRing:
    """An open event and its mapped ring; closing it frees both, twice is harmless.

    Owns ``fd`` from the first, also when mapping fails. ``leader_fd`` is the descriptor of a
    group leader that goes with it; ``cpu`` where it counts, -1 for all.
    """

    __slots__ = ("_cpu", "_event", "_fd", "_header", "_kind", "_leader_fd", "_pages", "_ring")

    def __init__(
        self,
        fd: int,
        event: PerfEvent,
        kind: Kind,
        pages: int,
        leader_fd: int = -1,
        cpu: int = -1,
    ) -> None:
        """Map ``pages`` of data, or half as many, and half again, where the limit is in the way.

        Without CAP_IPC_LOCK a user may lock kernel.perf_event_mlock_kb per CPU. Raises
        ``PerfError``.
        """
        self._fd, self._leader_fd = fd, leader_fd
        self._event, self._kind, self._cpu = event, kind, cpu
        self._header = ffi.NULL
        header, data, size = ffi.new("void **"), ffi.new("void **"), ffi.new("uint64_t *")
        try:
            while True:
                result = int(lib.hmd_perf_map(fd, pages, header, data, size))
                if result not in (-errno.EPERM, -errno.ENOMEM) or pages <= MIN_RING_PAGES:
                    break
                pages //= 2
            _checked(result, f"cannot map a ring of {pages} pages")
            self._header, self._pages = header[0], pages
            self._ring = Ring(
                int(ffi.cast("uintptr_t", header[0])),
                int(ffi.cast("uintptr_t", data[0])),
                int(size[0]),
                event.sample_type,
                kind,
            )
        except (HmdError, ValueError):
            self.close()
            raise

    @property
    def cpu(self) -> int:
        """The CPU that the event counts on, -1 for all."""
        return self._cpu

    @property
    def kind(self) -> Kind:
        """The kind of accesses of its samples, as far as these do not say."""
        return self._kind

    @property
    def pages(self) -> int:
        """Data pages that were mapped."""
        return self._pages

    @property
    def counts(self) -> RingCounts:
        """What was read from the ring; stays when the ring is closed."""
        return self._ring.counts

    def second(self, period: int, what: str = "") -> EventRing:
        """Return a ring of the same event counted a second time, with another period.

        In the same group, so that both count at the same times: the kernel refuses (EINVAL) what
        has too few counters for that. For an event of a CPU. Raises ``PerfError``.
        """
        group_fd = self._leader_fd if self._leader_fd >= 0 else self._fd
        event = replace(self._event, period=period)
        fd = open_event(event, -1, self._cpu, group_fd, f"{what or 'the event'} a second time")
        return EventRing(fd, event, self._kind, self._pages, cpu=self._cpu)

    @property
    def pending(self) -> bool:
        """As ``Ring.pending``; a closed ring has nothing."""
        return self._header != ffi.NULL and self._ring.pending

    def drain(self, columns: RecordColumns) -> bool:
        """As ``Ring.drain``; a closed ring has nothing."""
        return self._header != ffi.NULL and self._ring.drain(columns)

    def copy(self, buffer: Any) -> int:
        """Copy records other than samples into a buffer of ffi's; returns the bytes copied."""
        return 0 if self._header == ffi.NULL else self._ring.copy(buffer)

    def enable(self) -> None:
        """Start sampling: the event first, so that its leader starts both as one group."""
        for fd in (self._fd, self._leader_fd):
            if fd >= 0:
                _checked(int(lib.hmd_perf_enable(fd)), "cannot start sampling")

    def disable(self) -> None:
        """Stop sampling; what is in the ring stays."""
        for fd in (self._leader_fd, self._fd):
            if fd >= 0:
                _checked(int(lib.hmd_perf_disable(fd)), "cannot stop sampling")

    def set_period(self, period: int) -> None:
        """Change the period; takes effect at once. Raises ``PerfError``."""
        _checked(int(lib.hmd_perf_set_period(self._fd, period)), f"cannot set period {period}")

    def close(self) -> None:
        """Unmap the ring and close the descriptors."""
        if self._header != ffi.NULL:
            lib.hmd_perf_unmap(self._header, self._pages)
            self._header = ffi.NULL
        for fd in (self._fd, self._leader_fd):
            if fd >= 0:
                lib.hmd_perf_close(fd)
        self._fd = self._leader_fd = -1

    def __enter__(self) -> EventRing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
