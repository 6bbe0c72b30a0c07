# SPDX-License-Identifier: MIT
"""Page faults as samples: the fallback where there is no PMU (most virtual machines).

The software event PERF_COUNT_SW_PAGE_FAULTS observes the first touch of a page and faults after
reclaim or NUMA-balancing hints, but no accesses to mapped pages. Sampling adds about 0.2 µs to a
fault, which otherwise takes the program about 1 µs.
"""

from __future__ import annotations

from pathlib import Path

from hmd.linux.procfs import PROC, SYSFS
from hmd.linux.topology import online_cpus
from hmd.sample.access_batch import Kind
from hmd.sample.attribution import TrackedPids
from hmd.sample.perf_events import (
    PERF_TYPE_SOFTWARE,
    EventRing,
    PerfEvent,
    limit_ring_pages,
    open_permitted,
    open_rings,
)
from hmd.sample.perf_ring import SampleType
from hmd.sample.periods import clamp
from hmd.sample.pmu import PerfControl
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.sampler import DEFAULTS, SampleSettings

RING_PAGES = 64
PERIODS = (1, 2, 3, 5, 7, 11, 17, 31, 61, 127, 251, 509, 1021)
_PERF_COUNT_SW_PAGE_FAULTS = 2
# Not PERIOD: with it, the kernel ignores the period of a software event and writes a sample each
# time (perf_swevent_event() in kernel/events/core.c).
_SAMPLE_TYPE = SampleType.TID | SampleType.TIME | SampleType.ADDR | SampleType.CPU


def open_faults(
    settings: SampleSettings = DEFAULTS,
    proc: Path = PROC,
    sysfs: Path = SYSFS,
    ring_pages: int = RING_PAGES,
) -> RingSampler:
    """Return a sampler of page faults on all CPUs, its period (1) in faults. Raises PerfError."""
    period = clamp(settings.period or PERIODS[0], PERIODS)
    cpus = online_cpus(sysfs)
    pages = limit_ring_pages(len(cpus), ring_pages)

    def open_in(exclude_kernel: bool) -> list[EventRing]:
        event = PerfEvent(
            type=PERF_TYPE_SOFTWARE,
            config=_PERF_COUNT_SW_PAGE_FAULTS,
            sample_type=_SAMPLE_TYPE | SampleType.IP if settings.code else _SAMPLE_TYPE,
            period=period,
            exclude_kernel=exclude_kernel,
        )
        return open_rings(event, Kind.FAULT, cpus, pages, what="page faults")

    # Faults that the kernel takes on a program's behalf (read(2) into a new buffer) count too.
    rings, _ = open_permitted(open_in, kernel_mode=True)
    return RingSampler(
        "faults",
        f"page faults on {len(rings)} CPUs",
        rings,
        PerfControl(rings),
        TrackedPids(proc),
        period=period,
        periods=PERIODS,
        optional=settings.code_columns,
    )
