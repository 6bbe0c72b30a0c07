"""The interface of all sources of access samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hmd.machine.process_id import ProcessId
from hmd.sample.access_batch import AccessBatch
from hmd.sample.capabilities import Capabilities
from hmd.sample.record_cost import RecordTime


@dataclass(slots=True)
class SamplerStats:
    """Counters of a sampler since it was opened.

    ``samples`` are the rows returned by ``read``. ``dropped`` are samples of kernel addresses, of
    address 0, of no tracked process, or of a store that hit the first-level cache. ``lost`` are
    those that the kernel (or the emulated PMU) could not write to a full ring. ``throttled`` counts
    how often the kernel stopped an event with too many interrupts, ``wakeups`` the reads that
    returned samples, ``corrupt`` invalid records. ``records`` are all that were taken, also of
    programs that are not tracked, and also if they were lost; ``busiest_records`` adds up, read by
    read, those of the CPU with most of them. Both are 0 where samples are no records of a program.
    """

    samples: int = 0
    dropped: int = 0
    lost: int = 0
    throttled: int = 0
    wakeups: int = 0
    corrupt: int = 0
    records: int = 0
    busiest_records: int = 0


class Sampler(Protocol):
    """A source of sampled accesses.

    Contract (tests/contract/test_samplers.py): ``read`` never blocks and never raises for a
    process that has exited, and returns its earlier samples. ``track`` replaces the set of
    processes; rows of the next ``read`` index that set. ``close`` may be called twice.
    ``name`` is that of settings and metrics, ``detail`` describes what is sampled. ``ladder``
    lists the useful periods, shortest first; the cost of sampling is about proportional to
    1/period.
    """

    name: str
    detail: str
    capabilities: Capabilities
    stats: SamplerStats
    ladder: tuple[int, ...]

    @property
    def period(self) -> int:
        """The sampling period: in accesses per sample, or as the sampler's module defines it."""
        ...

    @property
    def pair_period(self) -> int | None:
        """The period of a second counter of loads, None if there is none."""
        ...

    @property
    def outside_cpu_s(self) -> float:
        """CPU time of sampling outside this process, in dedicated kernel threads."""
        ...

    @property
    def record_time(self) -> RecordTime:
        """What records have cost the programs that they were taken on; all 0: not known."""
        ...

    def set_period(self, period: int) -> int:
        """Request a period; returns the one in effect."""
        ...

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Sample these processes only, from the next read on."""
        ...

    def read(self) -> AccessBatch:
        """Return the samples since the last read."""
        ...

    def close(self) -> None:
        """Free rings and descriptors."""
        ...
