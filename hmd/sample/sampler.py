"""What the daemon asks of any source of accesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hmd.machine.process_id import ProcessId
from hmd.sample.access_batch import AccessBatch
from hmd.sample.capabilities import Capabilities


@dataclass(slots=True)
class SamplerStats:
    """Counters of a sampler since it was opened.

    ``samples`` are the rows that ``read`` gave. ``dropped`` are samples of kernel addresses, of
    address 0 or of no tracked process; ``lost`` are those the kernel (or emulated PMU) could not
    put into a full ring; ``throttled`` counts how often the kernel stopped an event that came
    too fast; ``wakeups`` the reads that found something; ``corrupt`` records that made no sense.
    """

    samples: int = 0
    dropped: int = 0
    lost: int = 0
    throttled: int = 0
    wakeups: int = 0
    corrupt: int = 0


class Sampler(Protocol):
    """A source of sampled accesses.

    Contract (tests/contract/test_samplers.py): ``read`` never blocks and never raises for a
    target that has gone, and gives what it did before; ``track`` replaces the set of processes,
    and rows of the next ``read`` index that set; ``close`` may be called twice.
    ``name`` is for settings and metrics, ``detail`` says for people what is sampled. ``ladder``
    holds the periods worth asking for, shortest first; sampling costs about 1/period.
    """

    name: str
    detail: str
    capabilities: Capabilities
    stats: SamplerStats
    ladder: tuple[int, ...]

    @property
    def period(self) -> int:
        """How rarely is sampled: in accesses a sample, or as the sampler's module says."""
        ...

    @property
    def pair_period(self) -> int | None:
        """The period of a second counter of loads, None where there is none."""
        ...

    @property
    def outside_cpu_s(self) -> float:
        """CPU time that sampling took outside this process, in kernel threads of its own."""
        ...

    def set_period(self, period: int) -> int:
        """Ask for a period; returns the one that is in force."""
        ...

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Sample these processes and no others, from the next read on."""
        ...

    def read(self) -> AccessBatch:
        """Drain what was sampled since the last read."""
        ...

    def close(self) -> None:
        """Free rings and descriptors."""
        ...
