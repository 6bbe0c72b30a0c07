# SPDX-License-Identifier: MIT
"""How long targets' processes wait for memory, counted beside the samples, where it can be.

With the PMU (:mod:`hmd.sample.instruction_counts`), two events per thread of ``MAX_THREADS`` at
most, of the processes with most accesses; the kernel schedules the sampler's events, which are of
CPUs, before them. Reading takes some 20 µs per thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError
from hmd.linux.emulator_memory import SharedMemory, find_device
from hmd.linux.processes import ThreadTimes, count_threads, thread_times
from hmd.linux.procfs import PROC, SYSFS, ProcessId
from hmd.metrics.demand import Waited
from hmd.sample.instruction_counts import (
    EmulatedInstructions,
    Executed,
    InstructionCounter,
    PerfInstructions,
    stall_events,
)

MAX_THREADS: Final = 128

Values = npt.NDArray[np.float64]


class MemoryWaits:
    """Counts waits of the processes with most accesses, none where the machine does not permit it.

    It owns its ``counter``.
    """

    def __init__(self, counter: InstructionCounter, proc: Path = PROC) -> None:
        self._counter, self._proc = counter, proc
        self._before: dict[ProcessId, Executed] = {}
        self._before_s = 0.0

    @classmethod
    def open(cls, *, modelled: bool, proc: Path = PROC, sysfs: Path = SYSFS) -> MemoryWaits:
        """Count with the CPU's PMU, or with the emulated machine's own counters."""
        with contextlib.suppress(HmdError, OSError):
            if modelled and (device := find_device(sysfs)) is not None:
                return cls(EmulatedInstructions(SharedMemory.open(device), proc), proc)
            if stalls := stall_events(proc, sysfs):
                return cls(PerfInstructions((), proc, stalls), proc)
        return cls(InstructionCounter("not counted"), proc)

    def read(
        self,
        processes: Sequence[ProcessId],
        targets: Sequence[str],
        accesses: Values,
        now_s: float,
    ) -> dict[str, Waited]:
        """Return the waits since the last call of those targets whose active processes all count.

        ``accesses`` per second have the shape ``(processes,)``.
        """
        threads: dict[ProcessId, ThreadTimes] = {}
        free, of_target = MAX_THREADS, dict(zip(processes, targets, strict=True))
        active = np.flatnonzero(accesses > 0)
        for row in active[np.argsort(-accesses[active], kind="stable")][:MAX_THREADS].tolist():
            if count_threads(processes[row].pid, self._proc) > free:
                continue
            found = thread_times(processes[row].pid, self._proc) or {}
            if len(found) <= free:
                threads[processes[row]] = found
                free -= len(found)
        before, elapsed_s = self._before, now_s - self._before_s
        kept = {each: times for each, times in threads.items() if each in before}
        try:
            counted = self._counter.read(kept)
            self._counter.stop(before.keys() - kept.keys())
            if started := threads.keys() - kept.keys():
                self._counter.start(list(started))
        except (HmdError, OSError):
            self.close()
            self._counter, counted = InstructionCounter("refused"), {}
        self._before = {each: counted.get(each, Executed()) for each in threads}
        self._before_s = now_s
        missing = {targets[row] for row in active.tolist() if processes[row] not in kept}
        sums: dict[str, Values] = {}
        for process in kept:
            did = np.subtract(self._before[process], before[process]) * 1e-9
            name = of_target[process]
            sums[name] = sums.get(name, np.zeros(3)) + did
        return {
            name: Waited(float(ran_s) / elapsed_s, min(float(stalled_s / ran_s), 1.0))
            for name, (_, stalled_s, ran_s) in sums.items()
            if name not in missing and ran_s > 0 and elapsed_s > 0
        }

    def close(self) -> None:
        """Stop counting."""
        self._counter.close()
