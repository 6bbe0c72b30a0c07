# SPDX-License-Identifier: MIT
"""CPU time of processes, from readings of some of them per tick."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hmd.linux.procfs import ProcessId, ProcessStat, identify
from hmd.linux.procfs import read_stat as read
from hmd.tick.estimates import CpuUse, ProcessReading, ProcessReadings

PER_S = os.sysconf("SC_CLK_TCK")
BUSY, HALF = ProcessId(10, 1), ProcessId(11, 1)
BOTH = (BUSY, HALF)


def own_process() -> ProcessId:
    own = identify(os.getpid())
    assert own is not None
    return own


def reading(slot: int, process: ProcessId, cpu_s: float) -> ProcessReading:
    ticks = round(cpu_s * PER_S)
    stat = ProcessStat(process.pid, process.start_ticks, 1, b"program", b"R", 0, ticks, 0)
    return ProcessReading(slot, stat)


def used(ticks: int) -> CpuUse:
    """Two processes after so many ticks, of which one is busy and one sleeps half of the time."""
    use = CpuUse()
    for tick in range(ticks):
        readings = [reading(0, BUSY, tick), reading(1, HALF, tick / 2)]
        use.add_readings(BOTH, readings, 100.0 + tick)
    return use


def test_nothing_is_known_before_two_readings() -> None:
    assert np.isnan(used(1).max_cpus(BOTH)).tolist() == [True, True]


def test_cpu_time_per_second() -> None:
    assert used(30).max_cpus(BOTH) == pytest.approx([1.0, 0.5], abs=0.01)


def test_cpu_time_is_at_most_a_step_more_than_was_counted() -> None:
    # In ticks as long as a step, a process that is always busy may show none at first.
    use = CpuUse()
    for tick in range(3):
        use.add_readings((BUSY,), [reading(0, BUSY, 0.0)], 1.0 + tick / PER_S)
        assert tick == 0 or use.max_cpus((BUSY,))[0] > 0.5


def test_processes_keep_what_is_known_of_them() -> None:
    use = used(30)
    new = ProcessId(12, 7)
    use.add_readings((new, HALF), [], 130.0)
    cpus = use.max_cpus((new, HALF))
    assert np.isnan(cpus[0])
    assert cpus[1] == pytest.approx(0.5, abs=0.1)


def test_of_other_processes_than_the_last_ticks_nothing_is_known() -> None:
    assert np.isnan(used(30).max_cpus((HALF,))).tolist() == [True]


def test_own_process_is_read_from_the_kernel() -> None:
    own = next(iter(ProcessReadings().read_next((own_process(),), read)))
    assert own.slot == 0
    assert own.stat.resident_bytes > 0


def test_process_that_has_exited_or_whose_pid_is_reused_is_not_read() -> None:
    other = ProcessId(own_process().pid, own_process().start_ticks + 1)
    assert ProcessReadings().read_next((other, ProcessId(0, 1)), read) == []
