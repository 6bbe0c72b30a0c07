# SPDX-License-Identifier: MIT
"""Sampling with the CPU's own PMU: PEBS on Intel, IBS on AMD.

Periods are fixed, and samples have no field that is not needed, because the kernel then empties a
PEBS buffer once for many samples (intel_pmu_large_pebs_flags() in arch/x86/events/intel/core.c).
Two fields can cost an interrupt per sample: WEIGHT, which only load latency has, on kernels before
6.0 (e60b7cb089f2); and TIME by another clock than perf's own, whose times are converted instead.

Events count in kernel mode where that is permitted, as read(2) and send(2) copy programs' memory;
samples of the kernel's own addresses are dropped as the ring is read. PEBS counts instructions: a
copy that is one ``rep movsb`` is one load at most, however long. IBS tags each of its operations.

For pairs, a second counter with another period counts loads, on all CPUs or on none. If counters
are missing, there are no pairs, and ``detail`` states the reason.

An idle machine costs nothing. A sample costs its program about 0.3 µs and the daemon some tens of
nanoseconds, so the period determines the overhead of both.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from hmd.linux.procfs import PROC, SYSFS
from hmd.linux.topology import online_cpus
from hmd.sample.access_batch import Kind
from hmd.sample.attribution import TrackedPids
from hmd.sample.cpu_models import read_cpu_model
from hmd.sample.memory_events import EventSpec, Words, choose_events, event_period
from hmd.sample.perf_events import (
    PERF_COUNT_SW_DUMMY,
    PERF_TYPE_SOFTWARE,
    EventRing,
    PerfError,
    PerfEvent,
    closed_on_error,
    limit_ring_pages,
    open_permitted,
    open_rings,
)
from hmd.sample.perf_ring import SampleType
from hmd.sample.periods import IBS_RECORD, PEBS_RECORD, PRIME_PERIODS, clamp, second_period
from hmd.sample.ring_sampler import RingControl, RingSampler
from hmd.sample.sampler import SampleSettings

RING_PAGES: Final = 64
"""Data pages of a ring: 256 KiB hold about 4600 samples between two reads."""
START_PERIOD: Final = 1009

_SAMPLE_TYPE: Final = (
    SampleType.IP
    | SampleType.TID
    | SampleType.ADDR
    | SampleType.CPU
    | SampleType.PERIOD
    | SampleType.DATA_SRC
)


class PerfControl(RingControl):
    """Starts, stops and sets the period of perf events; owns their rings.

    One event per CPU for all processes, and a filter on pid when it is read. The other layout,
    an inherited event per thread and CPU, needs threads x CPUs descriptors and misses threads
    that start between two reads of /proc/PID/task; an inherited event on all CPUs at once cannot
    have a ring at all (mmap gives EINVAL). The price: samples of other programs are taken and
    thrown away, so that nothing is enabled while nothing is tracked.
    """

    def __init__(
        self,
        rings: Sequence[EventRing],
        ratios: Sequence[int] | None = None,
        seconds: Sequence[EventRing] = (),
        record_s: float = 0.0,
        *,
        adapts_store_period: bool = False,
        perf_clock: bool = False,
        has_buffer: bool = False,
    ) -> None:
        """``ratios`` are, per ring, what a period is multiplied by.

        ``seconds`` are rings of second counters, which have the ``second_period``. ``perf_clock``:
        times of samples are of perf's own clock. The others are those of ``RingControl``.
        """
        self.record_s = record_s
        self.adapts_store_period = adapts_store_period
        self.has_buffer = has_buffer
        self._perf_clock = perf_clock
        self._rings, self._seconds = tuple(rings), tuple(seconds)
        self._ratios = tuple(ratios) if ratios is not None else (1,) * len(self._rings)

    @property
    def time_offset_ns(self) -> int:
        """CLOCK_MONOTONIC less the clock of samples, now: one of them follows NTP."""
        return (self._rings[0].times.monotonic_offset_ns or 0) if self._perf_clock else 0

    @property
    def running_share(self) -> float:
        """The least share of its time for which an event had a counter, as last scheduled."""
        times = [ring.times for ring in (*self._rings, *self._seconds)]
        return min((t.running_ns / t.enabled_ns for t in times if t.enabled_ns), default=1.0)

    def start(self) -> None:
        """Enable all events. Raises ``PerfError``."""
        for ring in (*self._seconds, *self._rings):
            ring.enable()

    def stop(self) -> None:
        """Disable all events. Raises ``PerfError``."""
        for ring in (*self._rings, *self._seconds):
            ring.disable()

    def set_period(self, period: int, store_multiplier: int = 1) -> None:
        """Set every event's period, stores times the multiplier. Raises ``PerfError``."""
        for ring, ratio in zip(self._rings, self._ratios, strict=True):
            multiplier = store_multiplier if ring.kind is Kind.STORE else 1
            ring.set_period(event_period(ring.kind, period, ratio * multiplier))
        for ring in self._seconds:
            ring.set_period(second_period(period))

    def close(self) -> None:
        """Close all events and rings."""
        for ring in (*self._seconds, *self._rings):
            ring.close()


def open_pmu(
    settings: SampleSettings,
    proc: Path = PROC,
    sysfs: Path = SYSFS,
    ring_pages: int = RING_PAGES,
) -> RingSampler:
    """Return a sampler of loads and stores; its period (1009) is in loads.

    By IBS it is in 16 ops, or in 1024 where IBS does not leave out ops that hit a cache. If stores
    cannot be sampled in addition to loads, only loads are; ``detail`` says so. Raises MissingError
    without a suitable PMU, PerfError if perf refuses the events.
    """
    specs = choose_events(settings, sysfs, proc)
    period = clamp(settings.period or START_PERIOD, PRIME_PERIODS)
    online = online_cpus(sysfs)
    clock = _clock(online) if settings.timestamps else None
    loads = sum(spec.kind is Kind.LOAD for spec in specs) if settings.pairs else 0
    ring_pages = limit_ring_pages(len(online) * (len(specs) + loads), ring_pages)
    asked = _Request(period, online, ring_pages, clock)
    opened, mode = open_permitted(
        lambda exclude_kernel: _open_all(specs, asked, exclude_kernel=exclude_kernel),
        kernel_mode=settings.kernel_mode,
    )
    if not all(event.spec.can_exclude_kernel for event in opened):
        mode = "user and kernel mode"
    seconds, note = _open_seconds(opened, second_period(period)) if settings.pairs else ((), "")
    rings = [ring for event in opened for ring in event.rings]
    ratios = [event.spec.period_ratio for event in opened for _ in event.rings]
    names = [
        f"{event.spec.name} twice" if seconds and event.spec.twice else event.spec.name
        for event in opened
    ]
    ibs = any(spec.name.startswith("ibs") for spec in specs)
    # Kernels before 6.0 need an interrupt per record with WEIGHT, and nothing tells them apart.
    buffered = clock is not Clock.MONOTONIC and not any(spec.latency for spec in specs)
    return RingSampler(
        "pmu",
        f"{' and '.join(names)} in {mode} on {len(online)} CPUs{note}",
        [*rings, *seconds],
        PerfControl(
            rings,
            ratios,
            seconds,
            (IBS_RECORD if ibs else PEBS_RECORD).seconds(buffered=buffered),
            adapts_store_period=clock is None and not ibs,
            perf_clock=clock is Clock.PERF,
            has_buffer=not ibs,
        ),
        TrackedPids(proc),
        period=period,
        periods=PRIME_PERIODS,
        ns_per_latency_unit=rings[0].times.ns_per_tsc or read_cpu_model(proc, sysfs).ns_per_cycle,
        optional=settings.code_columns,
        pairs=bool(seconds),
    )


class Clock(Enum):
    """The clock of samples' times."""

    PERF = "perf"
    MONOTONIC = "monotonic"


def _clock(online: Sequence[int]) -> Clock:
    """Return perf's own clock where the kernel says how to convert its times."""
    event = PerfEvent(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY)
    ring = open_rings(event, Kind.LOAD, online[:1], 1)[0]
    known = ring.times.monotonic_offset_ns is not None
    ring.close()
    return Clock.PERF if known else Clock.MONOTONIC


@dataclass(frozen=True, slots=True)
class _Request:
    """What all events have in common: period of loads, CPUs, pages of a ring, clock of times."""

    period: int
    online: Sequence[int]
    pages: int
    clock: Clock | None


@dataclass(frozen=True, slots=True)
class _Opened:
    """An event and its rings, one a CPU."""

    spec: EventSpec
    rings: list[EventRing]


def _open_all(
    specs: Sequence[EventSpec], asked: _Request, *, exclude_kernel: bool
) -> list[_Opened]:
    """Open the first event, and of the others those that the PMU has."""
    opened: list[_Opened] = []
    rings: list[EventRing] = []
    with closed_on_error(rings):
        for spec in specs:
            try:
                opened.append(_Opened(spec, _open(spec, asked, exclude_kernel=exclude_kernel)))
                rings += opened[-1].rings
            except PerfError as error:
                lacking = (errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP)
                if not opened or error.errno not in lacking:
                    raise
    return opened


def _open_seconds(opened: Sequence[_Opened], period: int) -> tuple[tuple[EventRing, ...], str]:
    """Open loads' second counters, all or none; where none, say why."""
    loads = [event for event in opened if event.spec.kind is Kind.LOAD]
    single = [event.spec.name for event in loads if not event.spec.twice]
    if single:
        return (), f", without pairs: a CPU has one counter for {single[0]}"
    seconds: list[EventRing] = []
    try:
        with closed_on_error(seconds):
            for event in loads:
                for ring in event.rings:
                    seconds.append(ring.open_second(period, event.spec.name))
    except PerfError as error:
        return (), f", without pairs: {error}"
    return tuple(seconds), ""


def _open(spec: EventSpec, asked: _Request, *, exclude_kernel: bool) -> list[EventRing]:
    """Open the event on its CPUs, with the highest precision that the kernel grants."""
    leader = None if spec.leader is None else _event(spec, spec.leader, exclude_kernel)
    online = asked.online
    cpus = online if spec.cpus is None else [cpu for cpu in spec.cpus if cpu in online]
    sample_type = _SAMPLE_TYPE
    if spec.latency:
        sample_type |= SampleType.WEIGHT
    if asked.clock is not None:
        sample_type |= SampleType.TIME
    event = _event(
        spec,
        spec.words,
        exclude_kernel,
        sample_type=sample_type,
        monotonic=asked.clock is Clock.MONOTONIC,
        period=event_period(spec.kind, asked.period, spec.period_ratio),
    )
    *better, last = spec.precise or (0,)
    for level in better:
        precise = replace(event, precise_ip=level)
        try:
            return open_rings(precise, spec.kind, cpus, asked.pages, leader=leader, what=spec.name)
        except PerfError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    event = replace(event, precise_ip=last)
    return open_rings(event, spec.kind, cpus, asked.pages, leader=leader, what=spec.name)


def _event(spec: EventSpec, words: Words, exclude_kernel: bool, **options: Any) -> PerfEvent:
    return PerfEvent(
        spec.type,
        words.config,
        words.config1,
        words.config2,
        exclude_kernel=exclude_kernel and spec.can_exclude_kernel,
        exclude_guest=spec.exclude_guest,
        **options,
    )
