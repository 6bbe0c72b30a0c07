# SPDX-License-Identifier: MIT
"""Page faults as samples: the fallback where there is no PMU (most virtual machines).

The software event PERF_COUNT_SW_PAGE_FAULTS reports each fault's process and address. It observes
the first touch of a page and faults after reclaim or NUMA-balancing hints, but no accesses to
mapped pages: enough to find what a program has just begun to use, far less than PEBS.

Sampling adds about 0.2 µs to a fault, which otherwise takes the program about 1 µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hmd.linux.procfs import PROC, SYSFS, parse_ids, read_text
from hmd.sample.access_batch import Kind
from hmd.sample.attribution import TrackedPids
from hmd.sample.perf_events import (
    PERF_TYPE_SOFTWARE,
    EventRing,
    PerfError,
    PerfEvent,
    limit_ring_pages,
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
    """Return a sampler of page faults on all online CPUs; its period (1) is in faults.

    Raises ``PerfError`` where perf events are not permitted.
    """
    period = clamp(settings.period or PERIODS[0], PERIODS)
    cpus = parse_ids(read_text(sysfs / "devices/system/cpu/online"))
    ring_pages = limit_ring_pages(len(cpus), ring_pages)
    try:
        # Faults that the kernel takes on a program's behalf (read(2) into a new buffer) count
        # too, where that is permitted.
        rings = _open(period, cpus, ring_pages, exclude_kernel=False)
    except PerfError as error:
        if not error.not_permitted:
            raise
        rings = _open(period, cpus, ring_pages, exclude_kernel=True)
    return RingSampler(
        "faults",
        f"page faults on {len(rings)} CPUs",
        rings,
        PerfControl(rings),
        TrackedPids(proc),
        period=period,
        periods=PERIODS,
    )


def _open(period: int, cpus: Sequence[int], pages: int, exclude_kernel: bool) -> list[EventRing]:
    event = PerfEvent(
        type=PERF_TYPE_SOFTWARE,
        config=_PERF_COUNT_SW_PAGE_FAULTS,
        sample_type=_SAMPLE_TYPE,
        period=period,
        exclude_kernel=exclude_kernel,
    )
    return open_rings(event, Kind.FAULT, cpus, pages, what="page faults")
