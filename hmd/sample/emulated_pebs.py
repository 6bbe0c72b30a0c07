# SPDX-License-Identifier: MIT
"""Sampling on the emulated machine: its plugin writes PEBS-like records into mapped rings.

The rings have the layout of perf's, so the same reader drains them. A sample contains an address
space, not a process (``PageTableAttribution``). Times are those of the CPU's modelled clock, and
latencies are nanoseconds of it; each row contains the instruction count of its CPU. The events are
those of Intel's PMU (https://perfmon-events.intel.com):

- loads that miss the last-level cache (MEM_LOAD_RETIRED.L3_MISS); with pairs, two counters of
  different period count them; with ``loads: latency``, loads that a tag has followed, in user mode
  (MEM_TRANS_RETIRED.LOAD_LATENCY), scaled by the counter of misses (``TaggedLoads``); on a machine
  with IBS, misses of tagged ops
- loads of lines that the prefetcher has asked for, which are no such misses
  (MEM_LOAD_RETIRED.FB_HIT), by a counter of a longer period;
- all stores (MEM_INST_RETIRED.ALL_STORES), also of a longer period. A store that hit the
  first-level cache is dropped by the reader of the rings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.base.errors import MissingError, NotPermittedError
from hmd.linux.checks import Capability, read_privileges
from hmd.linux.emulator_memory import Selection, SharedMemory, find_device
from hmd.linux.procfs import PROC, SYSFS
from hmd.sample.access_batch import Kind
from hmd.sample.attribution import PageTableAttribution
from hmd.sample.perf_ring import Ring, SampleType
from hmd.sample.periods import (
    PEBS_RECORD,
    PRIME_PERIODS,
    SHORT_PRIME_PERIODS,
    STORE_PERIOD_RATIO,
    clamp,
    scaled_period,
    second_period,
)
from hmd.sample.ring_sampler import RingControl, RingSampler
from hmd.sample.sampler import DEFAULTS, SampleSettings

PERIODS = (*SHORT_PRIME_PERIODS, *PRIME_PERIODS)
START_PERIOD = 199
PREFETCH_PERIOD_RATIO = 32
"""Factor by which prefetched loads are sampled more rarely than misses.

Such a load is worth 1/32 of a miss at least (``_LEAST_SHARE`` in hmd/heat/counting.py): a
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
    settings: SampleSettings = DEFAULTS,
    proc: Path = PROC,
    sysfs: Path = SYSFS,
    clock: Callable[[], float] = time.monotonic,
) -> RingSampler:
    """Return the sampler of the emulated machine that hmd runs in; its period is in misses (199).

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
    memory.tag_loads(tagged=settings.loads == "latency")
    period = clamp(settings.period or START_PERIOD, PERIODS)
    rings = [
        Ring.over(memory.ring(vcpu), SAMPLE_TYPE, Kind.LOAD, cpu=vcpu)
        for vcpu in range(memory.vcpus)
    ]
    tagged = memory.selection is Selection.TAGGED
    kernel_mode = settings.kernel_mode and not tagged
    mode = "user and kernel mode" if kernel_mode else "user mode"
    return RingSampler(
        "emulated",
        f"cache misses and stores of the emulated machine in {mode} on {memory.vcpus} CPUs",
        rings,
        EmulatedControl(memory, period, settings, kernel_mode=kernel_mode),
        PageTableAttribution(proc, clock),
        period=period,
        periods=PERIODS,
        optional=("instructions", *settings.code_columns),
        pairs=settings.pairs,
        scale_loads=TaggedLoads(memory) if tagged else None,
    )


class TaggedLoads:
    """Scales samples of tagged loads by the misses that a counter beside them has seen.

    How many misses a tagged one stands for depends on the program: none is tagged while another is
    in flight. So the ratio is that of each CPU over its last reads, of which each counts twice as
    much as the one before.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._before = self._misses()
        self._recent = np.zeros((2, memory.vcpus))

    def __call__(
        self, counted: npt.NDArray[np.uint32], cpu: npt.NDArray[np.uint16]
    ) -> npt.NDArray[np.uint32]:
        """Return the misses that each sample stands for; all columns have shape ``(n,)``."""
        now = self._misses()
        tagged = np.bincount(cpu, counted, minlength=len(now))[: len(now)]
        self._recent = self._recent / 2 + np.stack([now - self._before, tagged])
        self._before = now
        misses, tags = self._recent
        ratio = np.maximum(misses / np.maximum(tags, 1.0), 1.0)
        return np.rint(counted * ratio[cpu]).astype(np.uint32)

    def _misses(self) -> npt.NDArray[np.float64]:
        vcpus = range(self._memory.vcpus)
        return np.array([self._memory.vcpu_sum(vcpu, "load_misses") for vcpu in vcpus], np.float64)


class EmulatedControl(RingControl):
    """Writes the control words of the emulated PMU; owns the mapped memory."""

    def __init__(
        self, memory: SharedMemory, period: int, settings: SampleSettings, *, kernel_mode: bool
    ) -> None:
        self._memory = memory
        self._period, self._store_multiplier = period, 1
        self._timestamps = timestamps = settings.timestamps
        self._pairs, self._kernel_mode = settings.pairs, kernel_mode
        self._on = False
        self.record_s = PEBS_RECORD.seconds(buffered=not timestamps)
        self.adapts_store_period = not timestamps

    @property
    def active(self) -> bool:
        """False while the timing model is off: nothing is sampled then."""
        return self._memory.running and self._memory.armed

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

    def set_period(self, period: int, store_multiplier: int = 1) -> None:
        """Sample one in ``period`` load misses; with pairs, twice."""
        self._period, self._store_multiplier = period, store_multiplier
        if self._on:
            self._apply()

    def _apply(self) -> None:
        pair_period = second_period(self._period) if self._pairs else 0
        self._memory.sample(
            self._period,
            scaled_period(self._period, STORE_PERIOD_RATIO * self._store_multiplier),
            _LDLAT_NS,
            pair_period,
            scaled_period(self._period, PREFETCH_PERIOD_RATIO),
            each_interrupts=self._timestamps,
            kernel_mode=self._kernel_mode,
        )

    def close(self) -> None:
        """Stop sampling if this reader started it, and unmap the memory."""
        if self._on:  # not that of another daemon, which `hmd doctor` must not stop
            self._memory.stop_sampling()
        self._memory.close()
