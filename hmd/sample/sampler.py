# SPDX-License-Identifier: MIT
"""The interface of all sources of access samples, and the table of samplers.

A sampler is a module with a function that opens it, and an entry in ``SAMPLERS``, which the
configuration and its reference, ``hmd doctor``, ``hmd record`` and the selection by ``auto``
follow. Code asks a sampler for its capabilities instead of comparing its name. Imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from hmd.linux.procfs import ProcessId
    from hmd.sample.access_batch import AccessBatch
    from hmd.sample.periods import RecordTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a sampler observes, on every machine.

    ``counts_accesses``: its rows are single accesses, as of PEBS or IBS, so that heat has no bound
    per page and tick. ``ranks_heat``: it shows which pages stay hot. ``sees_reads``: it observes
    loads from resident pages; without it, pages in use look idle. ``sees_guests``: it observes what
    guests of virtual machines access; without it, so does their memory. ``modelled_clock``: times
    are those of the emulated machine. ``exclusive``: one user at a time. ``perf_events``: it opens
    perf_event_open(2), which perf_event_paranoid restricts.
    """

    counts_accesses: bool = False
    ranks_heat: bool = True
    sees_reads: bool = True
    sees_guests: bool = False
    modelled_clock: bool = False
    exclusive: bool = False
    perf_events: bool = False


@dataclass(frozen=True, slots=True)
class SamplerEntry:
    """A sampler in the table; ``source`` says what it samples, in a few words.

    ``opener`` is "MODULE:FUNCTION"; the function takes ``SampleSettings``, the folders /proc and
    /sys, and for an exclusive sampler ``before``, the sampler that is open now or None. It returns
    an open ``Sampler``, or raises UnavailableError with what is missing.
    """

    opener: str
    source: str
    capabilities: Capabilities


SAMPLERS: Final[Mapping[str, SamplerEntry]] = {
    "pmu": SamplerEntry(
        "hmd.sample.pmu:open_pmu",
        "PEBS, IBS",
        Capabilities(counts_accesses=True, perf_events=True),
    ),
    "spe": SamplerEntry(
        "hmd.sample.spe:open_spe",
        "ARM SPE",
        Capabilities(counts_accesses=True, perf_events=True),
    ),
    "emulated": SamplerEntry(
        "hmd.sample.emulated_pebs:open_emulated",
        "the emulated machine's PMU",
        Capabilities(counts_accesses=True, modelled_clock=True),
    ),
    "damon": SamplerEntry(
        "hmd.sample.damon_sampler:open_damon",
        "regions of the kernel's DAMON",
        Capabilities(exclusive=True, sees_guests=True),
    ),
    "idle": SamplerEntry(
        "hmd.sample.idle_pages:open_idle_pages",
        "idle page tracking",
        Capabilities(sees_guests=True),
    ),
    "faults": SamplerEntry(
        "hmd.sample.page_faults:open_faults",
        "page faults: coarse, but works anywhere",
        Capabilities(ranks_heat=False, sees_reads=False, perf_events=True),
    ),
}
"""All samplers, in the order in which ``auto`` tries them."""

CAPABILITIES: Final[Mapping[str, Capabilities]] = {
    name: entry.capabilities for name, entry in SAMPLERS.items()
}


def describe_samplers() -> str:
    """Return what ``auto`` selects from, for the reference."""
    names = (f"{name} ({entry.source})" for name, entry in SAMPLERS.items())
    return f"auto takes the first that works: {', '.join(names)}."


if TYPE_CHECKING:
    SamplerName: TypeAlias = str
    SamplerChoice: TypeAlias = str
else:
    SamplerName = Literal[tuple(SAMPLERS)]
    SamplerChoice = Literal[("auto", *SAMPLERS)]


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """``sampler`` auto selects the first that works; ``period`` None is the sampler's own default.

    The others are for a PMU. ``loads`` samples misses of the last-level cache, or those slower than
    ``ldlat_cycles``; with "auto", misses where the core has such an event. Samples have a time with
    ``timestamps``, and the address of their instruction with ``code``. With ``pairs``, two counters
    of different period count loads if the PMU has them, so that some samples are of accesses close
    together. ``kernel_mode``: also what the kernel accesses for programs, as it copies in read(2)
    and send(2), where that is permitted.
    """

    sampler: SamplerChoice = "auto"
    period: int | None = None
    loads: Literal["auto", "miss", "latency"] = "auto"
    ldlat_cycles: int = 30
    stores: bool = True
    timestamps: bool = False
    code: bool = False
    pairs: bool = False
    kernel_mode: bool = True

    @property
    def code_columns(self) -> tuple[str, ...]:
        """The columns of rows that hold ``code``."""
        return ("code_address",) if self.code else ()


DEFAULTS: Final = SampleSettings()


@dataclass(slots=True)
class SamplerStats:
    """Counters of a sampler since it was opened.

    ``samples`` are the rows returned by ``read``. ``dropped`` are samples of the kernel's own
    addresses (``kernel_addresses``), of address 0 (``without_address``, of tracked processes), of
    no tracked process, of guests of virtual machines, or of an access that hit the first-level
    cache. ``lost`` are those that the kernel (or the emulated PMU) could not write to a full
    ring. ``throttled`` counts how often the kernel stopped an event with too many interrupts,
    ``wakeups`` the reads that returned samples, ``corrupt`` invalid records. ``records`` are all
    that were taken, also of programs that are not tracked, and also if they were lost;
    ``busiest_records`` adds up, read by read, those of the CPU with most of them. Both are 0 where
    samples are no records of a program.
    ``running_share`` is the least share of its time for which an event had a counter: below 1,
    others (perf, guests) use the CPU's counters too, and samples are fewer.
    """

    samples: int = 0
    dropped: int = 0
    lost: int = 0
    throttled: int = 0
    wakeups: int = 0
    corrupt: int = 0
    records: int = 0
    busiest_records: int = 0
    running_share: float = 1.0
    without_address: int = 0
    kernel_addresses: int = 0


class SampleSource(Protocol):
    """What a tick needs of a sampler."""

    capabilities: Capabilities

    @property
    def period(self) -> int:
        """The sampling period: in accesses per sample, or as the sampler's module defines it."""

    def set_period(self, period: int) -> int:
        """Request a period; returns the one in effect."""

    def read(self) -> AccessBatch:
        """Return the samples since the last read."""


class Sampler(SampleSource, Protocol):
    """A source of sampled accesses.

    Contract (tests/contract/test_samplers.py): ``read`` never blocks and never raises for a
    process that has exited, and returns its earlier samples. ``track`` replaces the set of
    processes; rows of the next ``read`` index that set. ``close`` may be called twice.
    ``name``: as used in settings and metrics. ``detail`` describes what is sampled. ``periods``
    lists the useful periods, shortest first; the cost of sampling is about proportional to
    1/period.
    """

    name: str
    detail: str
    stats: SamplerStats
    periods: tuple[int, ...]

    @property
    def pair_period(self) -> int | None:
        """The period of a second counter of loads, None if there is none."""

    @property
    def outside_cpu_s(self) -> float:
        """CPU time of sampling outside this process, in dedicated kernel threads."""

    @property
    def record_time(self) -> RecordTime:
        """What records have cost the programs that they were taken on; all 0: not known."""

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Sample these processes only, from the next read on."""

    def close(self) -> None:
        """Free rings and descriptors."""


SampleOpener: TypeAlias = Callable[..., Sampler]
"""The function that ``SamplerEntry.opener`` names."""
