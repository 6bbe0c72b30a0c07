# SPDX-License-Identifier: MIT
"""Sampling with ARM's Statistical Profiling Extension (SPE).

Each CPU tags one operation per interval, and writes what became of it as packets into the AUX area
of an event (hmd/native/spe.c decodes them). There is one event per CPU for all processes, as of
the PMU (``hmd.sample.pmu``). The CPU leaves out operations that are neither loads nor stores, and
those faster than ``ldlat_cycles``; with ``loads`` miss, those that missed no cache. The interval,
which is the sampler's period, counts all operations; so each record stands for as many loads, or
stores, as the interval is long.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.base.errors import HmdError, MissingError
from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import PROC, SYSFS, ProcessId, parse_ids, read_int, read_text
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.attribution import TrackedPids
from hmd.sample.memory_events import PmuDevice, device_names, read_device
from hmd.sample.perf_events import (
    MAX_RINGS_BYTES,
    PERF_COUNT_SW_DUMMY,
    PERF_TYPE_SOFTWARE,
    EventRing,
    PerfError,
    PerfEvent,
)
from hmd.sample.perf_ring import RecordColumns, Ring, RingCounts, SampleType, distinct, ring_counts
from hmd.sample.periods import SPE_RECORD, clamp
from hmd.sample.ring_sampler import RingSampler
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
_SWITCH_TYPE: Final = PerfEvent(
    PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY, sample_type=SampleType.TID | SampleType.TIME
)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How records become rows: ``interval`` operations each; of loads, those slow enough.

    With ``misses``, loads count that missed a cache, whatever their latency.
    """

    interval: int
    ns_per_cycle: float = 1.0
    min_latency: int = 0
    misses: bool = False


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
        self._area: Any = ffi.new(
            "struct hmd_spe_source *",
            {
                "header": ffi.cast("void *", header),
                "area": ffi.cast("uint8_t *", area),
                "area_bytes": area_bytes,
                "ns_per_cycle": decoding.ns_per_cycle,
                "interval": decoding.interval,
                "min_latency": decoding.min_latency,
                "misses": decoding.misses,
                "cpu": cpu,
            },
        )

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
    source = ffi.new(
        "struct hmd_spe_source *",
        {
            "header": ffi.from_buffer(header),
            "area": ffi.from_buffer("uint8_t[]", area),
            "area_bytes": size,
            "clock": tuple(clock),
            "ns_per_cycle": decoding.ns_per_cycle,
            "interval": decoding.interval,
            "min_latency": decoding.min_latency,
            "misses": decoding.misses,
            "kernel_too": True,
            "cpu": cpu,
        },
    )
    counts = ffi.new("struct hmd_ring_counts *")
    lib.hmd_spe_drain(source, columns.c, counts)
    return ring_counts(counts)


class SpeEvent(EventRing):
    """An open event of a CPU with its ring and area; ``ring`` reads them. Closing frees all."""

    def __init__(self, fd: int, cpu: int, area_bytes: int, decoding: Decoding) -> None:
        """Own ``fd``. The area is halved where the limit on locked memory is in the way."""
        self._area: Any = ffi.NULL
        self._area_bytes = area_bytes
        super().__init__(fd, _AREA_TYPE, Kind.LOAD, 1, cpu=cpu)
        area = ffi.new("void **")
        ring_bytes = 2 * PAGE_BYTES
        try:
            while True:
                result = int(lib.hmd_spe_map(fd, self._header, ring_bytes, self._area_bytes, area))
                smallest = self._area_bytes <= MIN_AREA_PAGES * PAGE_BYTES
                if result not in (-errno.EPERM, -errno.ENOMEM) or smallest:
                    break
                self._area_bytes //= 2
            if result < 0:
                raise PerfError(-result, f"cannot map an AUX area of {self._area_bytes} bytes")
            self._area = area[0]
            header = int(ffi.cast("uintptr_t", self._header))
            start = int(ffi.cast("uintptr_t", self._area))
            self.ring = SpeRing(
                header,
                header + PAGE_BYTES,
                PAGE_BYTES,
                start,
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
            self.ring.detach()
            lib.hmd_spe_unmap(self._area, self._area_bytes)
            self._area = ffi.NULL
        super().close()


class SpeControl:
    """Starts, stops and sets the interval of the events, which it owns."""

    record_s = SPE_RECORD.seconds()
    adapts_store_period = False
    time_offset_ns = 0
    running_share = 1.0  # the kernel refuses a second event of a CPU's SPE
    has_buffer = False  # its cost is known from the interval alone
    active = True
    delay_s = 1.5 * PUBLISH_S

    def __init__(self, events: Sequence[SpeEvent], close_more: Callable[[], None]) -> None:
        self._events, self._close_more = tuple(events), close_more
        self._started, self._published_s = False, 0.0

    @property
    def now_s(self) -> float:
        """CLOCK_MONOTONIC: programs have it, too."""
        return time.monotonic()

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


class SpeSampler(RingSampler):
    """The ``Sampler`` over SPE's areas."""

    def __init__(
        self,
        detail: str,
        rings: Sequence[SpeRing],
        control: SpeControl,
        attribution: TrackedThreads,
        *,
        period: int,
        periods: tuple[int, ...],
    ) -> None:
        """Own ``control`` and what it closes."""
        super().__init__("spe", detail, rings, control, attribution, period=period, periods=periods)
        self._spe_control = control

    def read(self) -> AccessBatch:
        """Return the samples since the last read; of CPUs with few, as of a second ago at most."""
        if not self._closed:
            self._spe_control.publish()
        return super().read()


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

    ``open_switches`` is called when the first record without a thread comes. /proc/TID/status
    names the process of a thread; it is read again after a second. Threads are of the initial PID
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
    online = parse_ids(read_text(sysfs / "devices/system/cpu/online"))
    periods = intervals(devices)
    period = clamp(settings.period or START_INTERVAL, periods)
    try:
        events, mode = _open_devices(devices, settings, period, online, sysfs)
    except PerfError as error:
        if not (settings.kernel_mode and error.not_permitted):
            raise
        user = replace(settings, kernel_mode=False)
        events, _ = _open_devices(devices, user, period, online, sysfs)
        mode = "user mode (kernel mode is not permitted)"
    cpus = [event.cpu for event in events]
    threads = TrackedThreads(lambda: open_switches(cpus), proc)
    names = ", ".join(device.name for device in devices)
    return SpeSampler(
        f"{names}: {'loads and stores' if settings.stores else 'loads'} in {mode} on "
        f"{len(events)} CPUs",
        [event.ring for event in events],
        SpeControl(events, threads.close),
        threads,
        period=period,
        periods=periods,
    )


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


def _open_devices(
    devices: Iterable[PmuDevice],
    settings: SampleSettings,
    period: int,
    online: Sequence[int],
    sysfs: Path,
) -> tuple[list[SpeEvent], str]:
    """Open the events of all PMUs, or none; say in which modes they sample."""
    events: list[SpeEvent] = []
    try:
        for device in devices:
            events += _open_device(device, settings, period, online, sysfs)
    except PerfError:
        for event in events:
            event.close()
        raise
    return events, "user and kernel mode" if settings.kernel_mode else "user mode"


def _open_device(
    device: PmuDevice,
    settings: SampleSettings,
    period: int,
    online: Sequence[int],
    sysfs: Path,
) -> list[SpeEvent]:
    """Open the PMU's event on each of its CPUs, all or none, with the filters that it has."""
    mask = read_text(sysfs / "bus/event_source/devices" / device.name / "cpumask")
    cpus = online if mask is None else [cpu for cpu in parse_ids(mask) if cpu in online]
    area_bytes = AREA_BYTES
    while area_bytes > MIN_AREA_PAGES * PAGE_BYTES and area_bytes * len(online) > MAX_RINGS_BYTES:
        area_bytes //= 2
    area_bytes = max(area_bytes, MIN_AREA_PAGES * PAGE_BYTES)
    misses = settings.loads == "miss"
    decoding = Decoding(
        period, 1.0, 0 if misses else min(settings.ldlat_cycles, MAX_LATENCY_CYCLES), misses
    )
    offers = choose_terms(settings, device)
    for terms in offers:
        events: list[SpeEvent] = []
        try:
            for cpu in cpus:
                here = replace(decoding, ns_per_cycle=ns_per_cycle(cpu, sysfs))
                opened = _open_event(device, terms, cpu, area_bytes, here, settings.kernel_mode)
                events.append(opened)
            return events
        except PerfError as error:
            for event in events:
                event.close()
            if error.errno != errno.EOPNOTSUPP or terms is offers[-1]:
                raise
    raise AssertionError("unreachable: the last offer returns or raises")


def _open_event(
    device: PmuDevice,
    terms: Mapping[str, int],
    cpu: int,
    area_bytes: int,
    decoding: Decoding,
    kernel_mode: bool,
) -> SpeEvent:
    words = device.encode(terms)
    fd = lib.hmd_spe_open(
        device.type,
        words.config,
        words.config1,
        words.config2,
        decoding.interval,
        area_bytes // 2,
        not kernel_mode,
        cpu,
    )
    if fd < 0:
        raise PerfError(-fd, f"cannot open {device.name} on CPU {cpu}")
    return SpeEvent(fd, cpu, area_bytes, decoding)


def open_switches(cpus: Iterable[int]) -> SwitchLog:
    """Return the log of thread switches on these CPUs. Raises ``PerfError``."""
    rings: dict[int, EventRing] = {}

    def close() -> None:
        for ring in rings.values():
            ring.close()

    try:
        for cpu in cpus:
            fd = int(lib.hmd_perf_open_log(cpu, 1))
            if fd < 0:
                raise PerfError(-fd, f"cannot record thread switches on CPU {cpu}")
            rings[cpu] = EventRing(fd, _SWITCH_TYPE, Kind.LOAD, _SWITCH_PAGES, cpu=cpu)
            rings[cpu].enable()
    except PerfError:
        close()
        raise
    return SwitchLog(rings, close)
