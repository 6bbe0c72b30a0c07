"""Perf rings in memory that a benchmark writes as the kernel would, one per CPU."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from hmd.machine.process_id import identify
from hmd.sample.access_batch import Kind
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.perf_ring import HEADER_BYTES, Ring, SampleType
from hmd.sample.period_control import PRIMES
from hmd.sample.pid_attribution import TrackedPids
from hmd.sample.ring_sampler import RingSampler

SAMPLE_TYPE = SampleType.TID | SampleType.ADDR | SampleType.CPU | SampleType.WEIGHT
RECORD = np.dtype(
    [
        *(("type", "<u4"), ("misc", "<u2"), ("size", "<u2"), ("pid", "<u4"), ("tid", "<u4")),
        *(("address", "<u8"), ("cpu", "<u4"), ("reserved", "<u4"), ("weight", "<u8")),
    ]
)
"""A sample of ``SAMPLE_TYPE`` (PERF_RECORD_SAMPLE, perf_event_open(2))."""
_SAMPLE = 9
_HEAD = 1024
"""Offset of data_head in struct perf_event_mmap_page."""


class WrittenRing:
    """A ring of ``pages`` pages of data; samples beyond its room are lost."""

    def __init__(self, cpu: int, pages: int) -> None:
        self._cpu = cpu
        self._memory = np.zeros(HEADER_BYTES + pages * 4096, np.uint8)
        self._words = self._memory[_HEAD : _HEAD + 16].view(np.uint64)
        self.ring = Ring.over(self._memory, SAMPLE_TYPE, Kind.LOAD)

    def write(self, addresses: npt.NDArray[np.uint64]) -> None:
        """Append samples of this process."""
        data = self._memory[HEADER_BYTES:]
        head, tail = (int(word) for word in self._words)
        room = (len(data) - (head - tail)) // RECORD.itemsize
        records = np.zeros(min(len(addresses), room), RECORD)
        records["type"], records["size"], records["cpu"] = _SAMPLE, RECORD.itemsize, self._cpu
        records["pid"] = records["tid"] = os.getpid()
        records["address"] = addresses[: len(records)]
        written = records.view(np.uint8)
        start = head % len(data)
        first = min(len(written), len(data) - start)
        data[start : start + first] = written[:first]
        data[: len(written) - first] = written[first:]
        self._words[0] = head + len(written)


class _Unswitched:
    """The control of rings that no kernel writes."""

    record_s = now_s = 0.0
    thins_stores = False

    def __init__(self, cpus: int) -> None:
        self.cpus = range(cpus)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def set_period(self, period: int, store_factor: int) -> None: ...

    def close(self) -> None: ...


def sampler_over(rings: list[WrittenRing]) -> RingSampler:
    """Return the sampler of these rings, which follows this process."""
    sampler = RingSampler(
        "pmu",
        f"{len(rings)} written rings",
        [each.ring for each in rings],
        _Unswitched(len(rings)),
        TrackedPids(),
        capabilities=CAPABILITIES["pmu"],
        period=1009,
        ladder=PRIMES,
    )
    process = identify(os.getpid())
    assert process is not None
    sampler.track([process])
    return sampler
