"""Sampling on the emulated machine: its plugin writes PEBS-like records into mapped rings.

The rings have the layout of perf's, so the same reader drains them. A sample contains an address
space, not a process (``page_table_attribution``). Times are those of the CPU's modelled clock
(SharedMemory), and latencies are nanoseconds of it; each row contains the instruction count of its
CPU. The events are those of Intel's PMU (https://perfmon-events.intel.com):

- loads that miss the last-level cache (MEM_LOAD_RETIRED.L3_MISS); with pairs, two counters of
  different period count them;
- loads of lines that the prefetcher has asked for, which are no such misses
  (MEM_LOAD_RETIRED.FB_HIT), by a counter of a longer period;
- all stores (MEM_INST_RETIRED.ALL_STORES), also of a longer period. A store that hit the
  first-level cache is dropped by the reader of the rings.

The guest sees the rings as the memory of a PCI device (``hmd.machine.plugin_memory``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hmd.errors import MissingError, NotPermittedError
from hmd.machine.checks.privileges import Capability, read_privileges
from hmd.machine.plugin_memory import SharedMemory, find_device
from hmd.machine.process_id import PROC
from hmd.sample.access_batch import Kind
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.memory_events import STORE_SCALE
from hmd.sample.page_table_attribution import PageTableAttribution
from hmd.sample.perf_ring import Ring, SampleType
from hmd.sample.period_control import PRIMES, SMALL_PRIMES, clamp, partner, scaled
from hmd.sample.record_cost import PEBS_RECORD
from hmd.sample.ring_sampler import RingSampler

LADDER = (*SMALL_PRIMES, *PRIMES)
START_PERIOD = 199
PREFETCHED_SCALE = 32
"""Factor by which prefetched loads are sampled more rarely than misses.

Such a load is worth 1/32 of a miss at least (``_LEAST_SHARE`` in hmd/heat/sample_counting.py): a
sample of either kind then adds the same heat, and a stream does not flood the rings."""
# Every load that misses, whatever its latency: its node determines that.
_LDLAT_NS = 0

# The fields that the plugin writes (hmd/emulate/plugin/pebs.c).
SAMPLE_TYPE = (
    SampleType.IP
    | SampleType.TID
    | SampleType.TIME
    | SampleType.ADDR
    | SampleType.CPU
    | SampleType.PERIOD
    | SampleType.READ
    | SampleType.WEIGHT
    | SampleType.DATA_SRC
    | SampleType.PHYS_ADDR
)
_HEAD_AND_TAIL = slice(1024, 1040)


def open_emulated(
    period: int | None = None,
    proc: Path = PROC,
    sysfs: Path = Path("/sys"),
    clock: Callable[[], float] = time.monotonic,
    *,
    timestamps: bool = False,
    pairs: bool = False,
) -> RingSampler:
    """Return the sampler of the emulated machine that hmd runs in; ``period`` is in misses (199).

    With ``pairs``, a second counter samples loads too, with a period of its own (``partner``).
    Samples have times anyway; with ``timestamps``, they cost what they do on a PMU that has to take
    an interrupt for each. Raises MissingError on another machine, NotPermittedError without
    CAP_SYS_ADMIN, which page frame numbers need.
    """
    device = find_device(sysfs)
    if device is None:
        raise MissingError("this is not the emulated machine: start one with hmd emulate")
    if not read_privileges(proc).has(Capability.SYS_ADMIN):
        raise NotPermittedError(
            "the emulated machine's samples contain page frames; only CAP_SYS_ADMIN may look "
            "them up: run hmd as root"
        )
    memory = SharedMemory.open(device)
    return sample_memory(memory, period, proc, clock, timestamps=timestamps, pairs=pairs)


def sample_memory(
    memory: SharedMemory,
    period: int | None = None,
    proc: Path = PROC,
    clock: Callable[[], float] = time.monotonic,
    *,
    timestamps: bool = False,
    pairs: bool = False,
) -> RingSampler:
    """Return a sampler over the machine's memory, which it owns from now on."""
    period = clamp(period or START_PERIOD, LADDER)
    rings = [Ring.over(memory.ring(vcpu), SAMPLE_TYPE, Kind.LOAD) for vcpu in range(memory.vcpus)]
    return RingSampler(
        "emulated",
        f"cache misses and stores of the emulated machine on {memory.vcpus} CPUs",
        rings,
        EmulatedControl(memory, period, timestamps=timestamps, pairs=pairs),
        PageTableAttribution(proc, clock),
        capabilities=CAPABILITIES["emulated"],
        period=period,
        ladder=LADDER,
        counts_instructions=True,
        pairs=pairs,
    )


class EmulatedControl:
    """Writes the control words of the emulated PMU; owns the mapped memory."""

    def __init__(self, memory: SharedMemory, period: int, *, timestamps: bool, pairs: bool) -> None:
        self._memory = memory
        self._period, self._store_factor = period, 1
        self._timestamps = timestamps
        self._pairs = pairs
        self._on = False
        self.cpus = range(memory.vcpus)
        self.record_s = PEBS_RECORD.seconds(buffered=not timestamps)
        self.thins_stores = not timestamps

    @property
    def now_s(self) -> float:
        """Modelled time: the guest's clock, which the daemon has, runs unevenly faster."""
        return self._memory.clock_ps * 1e-12

    def start(self) -> None:
        """Start sampling; records that an earlier reader left in the rings are skipped."""
        for vcpu in range(self._memory.vcpus):
            words = self._memory.ring(vcpu)[_HEAD_AND_TAIL].view(np.uint64)
            words[1] = words[0]
        self._on = True
        self._apply()

    def stop(self) -> None:
        """Stop sampling."""
        self._on = False
        self._memory.stop_sampling()

    def set_period(self, period: int, store_factor: int = 1) -> None:
        """Sample one in ``period`` load misses; with pairs, twice."""
        self._period, self._store_factor = period, store_factor
        if self._on:
            self._apply()

    def _apply(self) -> None:
        pair_period = partner(self._period) if self._pairs else 0
        self._memory.sample(
            self._period,
            scaled(self._period, STORE_SCALE * self._store_factor),
            _LDLAT_NS,
            pair_period,
            scaled(self._period, PREFETCHED_SCALE),
            each_interrupts=self._timestamps,
        )

    def close(self) -> None:
        """Stop sampling if this reader started it, and unmap the memory."""
        if self._on:  # not that of another daemon, which `hmd doctor` must not stop
            self._memory.stop_sampling()
        self._memory.close()
