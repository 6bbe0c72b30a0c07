# SPDX-License-Identifier: MIT
"""Waits for memory of the daemon's targets, counted by an event that every kernel has."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from hmd.daemon import memory_waits
from hmd.daemon.memory_waits import MemoryWaits
from hmd.linux.procfs import ProcessId, identify
from hmd.sample.instruction_counts import InstructionCounter, PerfInstructions, counting
from tests.fakes.open_descriptors import open_descriptors

SOFTWARE, TASK_CLOCK = 1, 1  # counts nanoseconds that a task ran
CLOCK = counting(SOFTWARE, TASK_CLOCK)


def waits() -> MemoryWaits:
    """Return a counter for which all time is waiting."""
    return MemoryWaits(PerfInstructions((), stalls=[(CLOCK, CLOCK)]))


def me() -> ProcessId:
    found = identify(os.getpid())
    assert found is not None
    return found


def burn(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def test_waits_are_those_since_the_last_call() -> None:
    counter, rate = waits(), np.ones(1)
    assert counter.read([me()], ["a"], rate, 10.0) == {}
    burn(0.05)
    found = counter.read([me()], ["a"], rate, 20.0)["a"]
    assert found.share == 1.0
    assert 0.004 < found.cpus < 1
    assert counter.read([me()], ["a"], rate, 20.0) == {}
    counter.close()


def test_waits_of_processes_without_accesses_need_not_be_known() -> None:
    counter, processes, both = waits(), [me(), ProcessId(2**22 - 1, 1)], ["a", "a"]
    for now_s in (10.0, 20.0):
        found = counter.read(processes, both, np.array([1.0, 0.0]), now_s)
        burn(0.02)
    assert found["a"].share == 1.0
    counter.close()


def test_waits_of_target_with_threads_beyond_the_limit_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = "import time\nwhile True: time.sleep(0)"
    spinners = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range(2)]
    first, second = (identify(each.pid) for each in spinners)
    assert first is not None
    assert second is not None
    monkeypatch.setattr(memory_waits, "MAX_THREADS", 1)
    before = open_descriptors()
    counter, rates = waits(), np.array([1.0, 0.5])
    counter.read([first, second], ["a", "b"], rates, 10.0)
    time.sleep(0.3)
    assert counter.read([first, second], ["a", "b"], rates, 20.0).keys() == {"a"}
    time.sleep(0.3)
    assert counter.read([first, second], ["a", "a"], rates, 30.0) == {}
    assert open_descriptors() == before + 2
    # They are no targets any more.
    counter.read([], [], np.empty(0), 40.0)
    assert open_descriptors() == before
    counter.close()
    for spinner in spinners:
        spinner.kill()
        spinner.wait()


def test_waits_without_an_event_are_not_known() -> None:
    counter = MemoryWaits(InstructionCounter("not counted"))
    for now_s in (10.0, 20.0):
        assert counter.read([me()], ["a"], np.ones(1), now_s) == {}
