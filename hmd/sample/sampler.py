"""What the daemon asks of any source of accesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hmd.machine.process import ProcessId
from hmd.sample.batch import AccessBatch


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
    ``ladder`` holds the periods worth asking for, shortest first.
    """

    name: str
    stats: SamplerStats
    ladder: tuple[int, ...]

    @property
    def period(self) -> int:
        """Accesses a sample stands for; 1 where the source is not periodic."""
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
