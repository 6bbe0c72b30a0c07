# SPDX-License-Identifier: MIT
"""Clocks of recordings: monotonic and modelled time."""

import time
from typing import Any

from hmd.linux.emulator_memory import Clock, SharedMemory, find_device


def test_monotonic_clock_same_for_all_cpus() -> None:
    clock = Clock()
    before = time.monotonic_ns()
    assert before <= clock.now_ns() <= clock.now_ns(1) <= time.monotonic_ns()
    clock.close()


def test_modelled_clock_reads_time_of_cpu_or_machine(emulated_memory: Any) -> None:
    device = find_device(emulated_memory.sysfs)
    assert device is not None
    clock = Clock(SharedMemory.open(device))
    emulated_memory.clock(machine_ps=9_000_999, vcpu=1, vcpu_ps=7_000_000)
    assert (clock.kind, clock.now_ns()) == ("modelled", 9000)
    assert (clock.now_ns(0), clock.now_ns(1)) == (0, 7000)
    clock.close()
    clock.close()
