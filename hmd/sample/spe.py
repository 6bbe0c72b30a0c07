# SPDX-License-Identifier: MIT
"""Sampling with ARM's Statistical Profiling Extension (SPE).

Each CPU tags one operation per interval, and writes what became of it as packets into the AUX area
of an event (hmd/native/spe.c decodes them). The CPU leaves out operations that are neither loads
nor stores, and those faster than ``ldlat_cycles``; with ``loads`` miss, those that missed no cache.
The interval, which is the sampler's period, counts all operations; so each record stands for as
many loads, or stores, as the interval is long.

The kernel publishes records when half of an area is full, or when the event stops: events of CPUs
with few records are stopped and started again once a second (``PUBLISH_S``). An area that is full
stops its event until it has been read; ``SamplerStats.throttled`` counts that.

Records name their thread where the kernel has CONFIG_PID_IN_CONTEXTIDR and hmd CAP_PERFMON. Where
they do not, events that record each CPU's switches to another thread are opened too, and the time
of a record tells which thread ran: ``SwitchLog``.

Source: drivers/perf/arm_spe_pmu.c, tools/perf/Documentation/perf-arm-spe.txt in Linux.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.base.errors import HmdError, MissingError
from hmd.base.units import PAGE_BYTES
from hmd.linux.page_calls import c_array
from hmd.linux.procfs import PROC, SYSFS, ProcessId, parse_ids, read_int, read_text
from hmd.linux.topology import online_cpus
from hmd.sample.access_batch import Kind
from hmd.sample.attribution import TrackedPids
from hmd.sample.memory_events import PmuDevice, device_names, read_device
from hmd.sample.perf_events import (
    MAX_RINGS_BYTES,
    EventRing,
    PerfError,
    PerfEvent,
    checked,
    closed_on_error,
    map_halved,
    open_log_rings,
    open_permitted,
)
from hmd.sample.perf_ring import RecordColumns, Ring, RingCounts, SampleType, distinct, ring_counts
from hmd.sample.periods import SPE_RECORD, clamp
from hmd.sample.ring_sampler import RingControl, RingSampler
from hmd.sample.sampler import SampleSettings

_log: Final = logging.getLogger(__name__)

AREA_BYTES: Final = 256 << 10
"""An AUX area: 4096 records of 64 bytes, the size of all that are known."""
MIN_AREA_PAGES: Final = 2
"""The kernel refuses areas of fewer pages (arm_spe_pmu_setup_aux)."""
PUBLISH_S: Final = 1.0
START_INTERVAL: Final = 8192
INTERVAL_UNIT: Final = 256
"""The CPU's register has no lower bits (PMSIRR_EL1.INTERVAL)."""
MAX_INTERVAL: Final = 1 << 20
MAX_LATENCY_CYCLES: Final = 4095
"""The counter of a record, and the filter, have 12 bits at least and most."""
ASSUMED_NS_PER_CYCLE: Final = 0.4
"""Of a CPU whose clock neither ACPI nor cpufreq tells."""

_L1_REFILL: Final = 1 << 3
"""Bit of the events of a record, and of their filter."""
_SWITCH_PAGES: Final = 32
_KEPT_SWITCHES: Final = 1 << 14
"""Switches of a CPU that are remembered for records that arrive late."""
_RECHECK_S: Final = 1.0
_AUX_HEAD_WORD, _AUX_TAIL_WORD = 1056 // 8, 1064 // 8
_AREA_TYPE: Final = PerfEvent(0, 0, sample_type=SampleType(0))


@dataclass(frozen=True, slots=True)
class Decoding:
    """How records become rows: ``interval`` operations each; of loads, those slow enough.

    With ``misses``, loads count that missed a cache, whatever their latency.
    """

    interval: int
    ns_per_cycle: float = 1.0
    min_latency: int = 0
    misses: bool = False


def _source(
    header: Any, area: Any, area_bytes: int, decoding: Decoding, cpu: int, **more: object
) -> Any:
    """Return a struct hmd_spe_source over an AUX area and the header page of its ring."""
    fields = {
        "header": header,
        "area": area,
        "area_bytes": area_bytes,
        "ns_per_cycle": decoding.ns_per_cycle,
        "interval": decoding.interval,
        "min_latency": decoding.min_latency,
        "misses": decoding.misses,
        "cpu": cpu,
    }
    return ffi.new("struct hmd_spe_source *", fields | more)


class SpeRing(Ring):
    """The ring and the AUX area of an event, both at addresses that the caller owns.

    ``restart`` starts the event again after the kernel stopped it because the area was full.
    """

    def __init__(
        self,
        header: int,
        data: int,
        data_bytes: int,
        area: int,
        area_bytes: int,
        decoding: Decoding,
        cpu: int,
        restart: Callable[[], None],
    ) -> None:
        """Read an event's memory. ValueError if a size is not a power of two."""
        super().__init__(header, data, data_bytes, SampleType(0), Kind.LOAD, cpu)
        if area_bytes & (area_bytes - 1):
            raise ValueError(f"an AUX area of {area_bytes} bytes is not a power of two")
        self._restart = restart
        self._notices: Any = ffi.new("struct hmd_spe_notices *")
        pointers = ffi.cast("void *", header), ffi.cast("uint8_t *", area)
        self._area: Any = _source(*pointers, area_bytes, decoding, cpu)

    def set_interval(self, interval: int) -> None:
        """Count this many operations for each record read from now on."""
        self._area.interval = interval

    @property
    def clock(self) -> Any:
        """The clock of timestamps (struct hmd_spe_clock); each drain reads it where it can."""
        return self._area.clock

    @property
    def pending(self) -> bool:
        """Whether there are records, or notices of the kernel, since the last drain."""
        words = self._words
        return super().pending or (
            self._attached and bool(words[_AUX_HEAD_WORD] != words[_AUX_TAIL_WORD])
        )

    def drain(self, columns: RecordColumns) -> bool:
        """Append the accesses; True if some are lost because the columns are full."""
        if not self._attached:
            return False
        lib.hmd_spe_read_clock(ffi.addressof(self._area, "clock"))
        over = bool(lib.hmd_spe_drain(self._area, columns.c, self._counts))
        notices = self._notices
        notices.truncated = notices.gaps = notices.lost = 0
        lib.hmd_spe_read_notices(self.source, notices)
        # How many operations a gap has lost is not known.
        self._counts.lost += notices.gaps + notices.lost
        self._counts.throttled += notices.truncated
        if notices.truncated:
            self._restart()
        return over


class SpeClock(NamedTuple):
    """What converts timestamps: a value of the counter, its time, its frequency (0: unknown)."""

    counter: int = 0
    time_ns: int = 0
    frequency_hz: int = 0


def decode_packets(
    data: bytes, decoding: Decoding, clock: SpeClock, cpu: int, columns: RecordColumns
) -> RingCounts:
    """Append the accesses of packets that lie in memory, as perf copies them out of an AUX area.

    Accesses to the kernel's addresses are among them. Records that are not whole are counted as
    corrupt.
    """
    size = 1 << max(len(data) - 1, 7).bit_length()
    area = np.zeros(size, np.uint8)
    area[: len(data)] = np.frombuffer(data, np.uint8)
    header = np.zeros(PAGE_BYTES // 8, np.uint64)
    header[_AUX_HEAD_WORD] = len(data)
    memory = ffi.from_buffer(header), c_array(area)
    source = _source(*memory, size, decoding, cpu, clock=tuple(clock), kernel_too=True)
    counts = ffi.new("struct hmd_ring_counts *")
    lib.hmd_spe_drain(source, columns.c, counts)
    return ring_counts(counts)


class SpeEvent(EventRing):
    """An open event of a CPU with its ring and area; ``ring`` reads them. Closing frees all."""

    def __init__(self, fd: int, cpu: int, area_bytes: int, decoding: Decoding) -> None:
        """Own ``fd``. The area is halved where the limit on locked memory is in the way."""
        self._area: Any = ffi.NULL
        super().__init__(fd, _AREA_TYPE, Kind.LOAD, 1, cpu=cpu)
        area, ring_bytes = ffi.new("void **"), 2 * PAGE_BYTES
        try:
            self._area_bytes = map_halved(
                lambda size: int(lib.hmd_spe_map(fd, self._header, ring_bytes, size, area)),
                area_bytes,
                MIN_AREA_PAGES * PAGE_BYTES,
                "an AUX area, in bytes,",
            )
            self._area = area[0]
            header = int(ffi.cast("uintptr_t", self._header))
            self.ring = SpeRing(
                header,
                header + PAGE_BYTES,
                PAGE_BYTES,
                int(ffi.cast("uintptr_t", self._area)),
                self._area_bytes,
                decoding,
                cpu,
                self.enable,
            )
        except (HmdError, ValueError):
            self.close()
            raise

    def publish(self) -> None:
        """Make the kernel show records that it holds back."""
        if not self.ring.pending:
            self.disable()
            self.enable()

    def close(self) -> None:
        """Unmap area and ring, and close the event."""
        if self._area != ffi.NULL:
            self.ring.close()
            lib.hmd_spe_unmap(self._area, self._area_bytes)
            self._area = ffi.NULL
        super().close()


class SpeControl(RingControl):
    """Starts, stops and sets the interval of the events, which it owns."""

    # The kernel refuses a second event of a CPU's SPE, so that no other takes turns with it.
    record_s = SPE_RECORD.seconds()
    delay_s = 1.5 * PUBLISH_S

    def __init__(self, events: Sequence[SpeEvent], close_more: Callable[[], None]) -> None:
        self._events, self._close_more = tuple(events), close_more
        self._started, self._published_s = False, 0.0

    def start(self) -> None:
        """Enable all events. Raises ``PerfError``."""
        for event in self._events:
            event.enable()
        self._started, self._published_s = True, self.now_s

    def stop(self) -> None:
        """Disable all events; the kernel publishes their records."""
        self._started = False
        for event in self._events:
            event.disable()

    def publish(self) -> None:
        """Once in ``PUBLISH_S``, have records of CPUs published that show none."""
        if self._started and self.now_s - self._published_s >= PUBLISH_S:
            self._published_s = self.now_s
            for event in self._events:
                event.publish()

    def set_period(self, period: int, store_multiplier: int = 1) -> None:
        """Tag one in ``period`` operations."""
        for event in self._events:
            event.set_period(period)
            event.ring.set_interval(period)

    def close(self) -> None:
        """Close all events."""
        for event in self._events:
            event.close()
        self._close_more()


class SwitchLog:
    """Which thread each CPU ran when, by events that record the switches to another thread."""

    def __init__(self, rings: Mapping[int, Ring], close: Callable[[], None] = lambda: None) -> None:
        """Read these rings, one per CPU, until ``close``, which frees them."""
        self._rings, self.close = rings, close
        self._buffer = ffi.new("struct hmd_spe_switch[]", _KEPT_SWITCHES)
        dtype = np.dtype([("time_ns", np.uint64), ("pid", np.uint32), ("thread", np.uint32)])
        self._found = np.frombuffer(ffi.buffer(self._buffer), dtype)
        self._kept = dict.fromkeys(rings, self._found[:0])

    def read(self) -> None:
        """Read the switches since the last call."""
        for cpu, ring in self._rings.items():
            while ring.pending:
                source = ring.source
                count = lib.hmd_spe_read_switches(source, self._buffer, _KEPT_SWITCHES)
                kept = [self._kept[cpu], self._found[:count]]
                self._kept[cpu] = np.concatenate(kept)[-_KEPT_SWITCHES:]

    def fill(self, columns: RecordColumns) -> None:
        """Set pid and thread of rows without a thread, where the log reaches back to their time."""
        self.read()
        count = columns.count
        unknown = columns.thread[:count] == 0
        for cpu in np.unique(columns.cpu[:count][unknown]).tolist():
            rows = np.flatnonzero(unknown & (columns.cpu[:count] == cpu))
            log = self._kept.get(cpu, self._found[:0])
            at = np.searchsorted(log["time_ns"], columns.time_ns[rows], "right") - 1
            rows, at = rows[at >= 0], at[at >= 0]
            columns.pid[rows], columns.thread[rows] = log["pid"][at], log["thread"][at]


class TrackedThreads(TrackedPids):
    """The ``Attribution`` of records that name a thread, or none.

    ``open_switches`` is called when the first record without a thread comes. /proc/TID/status names
    the process of a thread; it is read again after a second. Threads are of the initial PID
    namespace, so that hmd must be there, too.
    """

    def __init__(self, open_switches: Callable[[], SwitchLog], proc: Path = PROC) -> None:
        self._open_switches = open_switches
        self._switches: SwitchLog | None = None
        self._owners: dict[int, tuple[int, float]] = {}
        super().__init__(proc)

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Attribute samples to these processes only."""
        super().track(processes)
        self._owners.clear()

    def find_processes(self, columns: RecordColumns) -> npt.NDArray[np.int32]:
        """Return each row's process; -1 where its thread is of none that is tracked."""
        count = columns.count
        threads, which = distinct(columns.thread[:count])
        owners = np.array([*(self._find_owner(thread) for thread in threads), 0], np.uint32)
        columns.pid[:count] = owners[which]
        if 0 in threads:
            if self._switches is None:
                self._switches = self._start_switches()
            self._switches.fill(columns)
        return super().find_processes(columns)

    def _start_switches(self) -> SwitchLog:
        try:
            return self._open_switches()
        except PerfError as error:
            _log.warning("samples of SPE name no thread, and are dropped: %s", error)
            return SwitchLog({})

    def _find_owner(self, thread: int) -> int:
        """Return the process of a thread, 0 if there is none."""
        now = time.monotonic()
        pid, checked_s = self._owners.get(thread, (0, -_RECHECK_S))
        if now - checked_s >= _RECHECK_S and thread:
            status = read_text(self._proc / str(thread) / "status") or ""
            lines = (line.partition(":") for line in status.splitlines())
            pid = next((int(value) for name, _, value in lines if name == "Tgid"), pid)
            self._owners[thread] = pid, now
        return pid

    def close(self) -> None:
        """Close the events of switches."""
        if self._switches is not None:
            self._switches.close()


def open_spe(settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS) -> RingSampler:
    """Return a sampler of loads and stores; its period (8192) is in operations of any kind.

    Raises MissingError without SPE, PerfError if perf refuses its events.
    """
    devices = [
        device
        for name in device_names(sysfs)
        if name.startswith("arm_spe") and (device := read_device(name, sysfs)) is not None
    ]
    if not devices:
        raise MissingError("this CPU has no SPE, or its firmware hides it")
    online = online_cpus(sysfs)
    periods = intervals(devices)
    period = clamp(settings.period or START_INTERVAL, periods)

    def open_in(exclude_kernel: bool) -> list[SpeEvent]:
        opened: list[SpeEvent] = []
        with closed_on_error(opened):
            for device in devices:
                mask = read_text(sysfs / "bus/event_source/devices" / device.name / "cpumask")
                cpus = online if mask is None else [n for n in parse_ids(mask) if n in online]
                here = _Request(device, settings, period, _area_bytes(len(online)), exclude_kernel)
                opened += _open_device(here, cpus, sysfs)
        return opened

    events, mode = open_permitted(open_in, kernel_mode=settings.kernel_mode)
    threads = TrackedThreads(lambda: open_switches([event.cpu for event in events]), proc)
    names = ", ".join(device.name for device in devices)
    return RingSampler(
        "spe",
        f"{names}: {'loads and stores' if settings.stores else 'loads'} in {mode} on "
        f"{len(events)} CPUs",
        [event.ring for event in events],
        SpeControl(events, threads.close),
        threads,
        period=period,
        periods=periods,
        optional=settings.code_columns,
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """What the events of one PMU have in common."""

    device: PmuDevice
    settings: SampleSettings
    period: int
    area_bytes: int
    exclude_kernel: bool


def intervals(devices: Iterable[PmuDevice]) -> tuple[int, ...]:
    """Return the useful intervals: from the longest of the PMUs' shortest, four per octave."""
    least = max(int(device.caps.get("min_interval", INTERVAL_UNIT)) for device in devices)
    found, exponent = [least], 1
    while found[-1] < MAX_INTERVAL:
        step = round(least * 2 ** (exponent / 4) / INTERVAL_UNIT) * INTERVAL_UNIT
        if step > found[-1]:
            found.append(step)
        exponent += 1
    return tuple(found)


def choose_terms(settings: SampleSettings, device: PmuDevice) -> list[dict[str, int]]:
    """Return what to ask of the PMU, best first: CPUs lack some filters (EOPNOTSUPP).

    Intervals get random bits, so that they do not follow a program's loop. Timestamps are of the
    virtual counter, which user space reads too, hence no ``pct_enable``; they cost no interrupt.
    """
    wanted = {"ts_enable": 1, "jitter": 1, "load_filter": 1, "store_filter": int(settings.stores)}
    terms = {name: value for name, value in wanted.items() if name in device.formats}
    if settings.loads == "miss":
        filtered: dict[str, int] = {"event_filter": _L1_REFILL}
    else:
        filtered = {"min_latency": min(settings.ldlat_cycles, MAX_LATENCY_CYCLES)}
    unfiltered = {name: value for name, value in terms.items() if "filter" not in name}
    return [terms | filtered, terms, unfiltered]


def ns_per_cycle(cpu: int, sysfs: Path) -> float:
    """Return the nominal cycle of a CPU, by ACPI (CPPC) or else its highest by cpufreq."""
    folder = sysfs / f"devices/system/cpu/cpu{cpu}"
    mhz = read_int(folder / "acpi_cppc/nominal_freq")
    khz = mhz * 1000 if mhz else read_int(folder / "cpufreq/cpuinfo_max_freq")
    return 1e6 / khz if khz else ASSUMED_NS_PER_CYCLE


def _area_bytes(cpus: int) -> int:
    """Return the size of the area of each CPU, within ``MAX_RINGS_BYTES`` in all."""
    area_bytes = AREA_BYTES
    while area_bytes > MIN_AREA_PAGES * PAGE_BYTES and area_bytes * cpus > MAX_RINGS_BYTES:
        area_bytes //= 2
    return max(area_bytes, MIN_AREA_PAGES * PAGE_BYTES)


def _open_device(asked: _Request, cpus: Sequence[int], sysfs: Path) -> list[SpeEvent]:
    """Open the PMU's event on each CPU, all or none, with the filters that it has."""
    *better, last = choose_terms(asked.settings, asked.device)
    for terms in better:
        try:
            return _open_events(asked, terms, cpus, sysfs)
        except PerfError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
    return _open_events(asked, last, cpus, sysfs)


def _open_events(
    asked: _Request, terms: Mapping[str, int], cpus: Sequence[int], sysfs: Path
) -> list[SpeEvent]:
    device, words = asked.device, asked.device.encode(terms)
    misses = asked.settings.loads == "miss"
    min_latency = 0 if misses else min(asked.settings.ldlat_cycles, MAX_LATENCY_CYCLES)
    events: list[SpeEvent] = []
    with closed_on_error(events):
        for cpu in cpus:
            fd = lib.hmd_spe_open(
                device.type,
                words.config,
                words.config1,
                words.config2,
                asked.period,
                asked.area_bytes // 2,
                asked.exclude_kernel,
                cpu,
            )
            checked(int(fd), f"cannot open {device.name} on CPU {cpu}")
            decoding = Decoding(asked.period, ns_per_cycle(cpu, sysfs), min_latency, misses)
            events.append(SpeEvent(int(fd), cpu, asked.area_bytes, decoding))
    return events


def open_switches(cpus: Iterable[int]) -> SwitchLog:
    """Return the log of thread switches on these CPUs. Raises ``PerfError``."""
    sample_type, what = SampleType.TID | SampleType.TIME, "record thread switches"
    rings = open_log_rings(cpus, sample_type, _SWITCH_PAGES, what, switches=True)

    def close() -> None:
        for ring in rings:
            ring.close()

    return SwitchLog({ring.cpu: ring for ring in rings}, close)
