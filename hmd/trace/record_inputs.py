"""Inputs of a recording: access samples, the clock of their times, instruction counts.

The three belong together: the emulated machine's samples have modelled time, and its CPUs count
instructions; everywhere else times are CLOCK_MONOTONIC, and the CPU's PMU counts, if there is one.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from hmd.errors import MissingError, UnavailableError
from hmd.machine.clock import Clock, ModelledClock, MonotonicClock
from hmd.machine.plugin_memory import SharedMemory, find_device
from hmd.machine.process_id import PROC
from hmd.sample.auto_select import SampleSettings, open_sampler
from hmd.sample.instruction_counts import (
    EmulatedInstructions,
    InstructionCounter,
    count_instructions,
)
from hmd.sample.sampler import Sampler
from hmd.sample.task_events import TaskEvents


@dataclass(frozen=True, slots=True)
class ClockPair:
    """A time by the recording's clock, and the same time by CLOCK_MONOTONIC."""

    ns: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Open sources of a recording; sample times are those of ``clock``.

    ``tasks`` is None where the kernel does not permit task events, and in the emulated machine,
    whose samples name no process that has ended: children are then those that /proc shows.
    """

    sampler: Sampler
    clock: Clock
    counter: InstructionCounter
    tasks: TaskEvents | None = None

    def now(self, cpu: int | None = None) -> ClockPair:
        """Return the present time; by a CPU's clock if each CPU has one."""
        return ClockPair(self.clock.now_ns(cpu), time.monotonic_ns())


def open_sources(
    settings: SampleSettings,
    opened: contextlib.ExitStack,
    proc: Path = PROC,
    sysfs: Path = Path("/sys"),
) -> Sources:
    """Open the sampler of the settings, its clock and its counter; ``opened`` closes them.

    Raises MissingError if no sampler works here.
    """
    settings = replace(settings, timestamps=True)
    sampler = open_sampler(settings, proc, sysfs).sampler
    opened.callback(sampler.close)
    clock: Clock = MonotonicClock()
    tasks: TaskEvents | None = None
    if sampler.capabilities.modelled_clock:
        clock = ModelledClock(_memory(sysfs))
        opened.callback(clock.close)
        counter: InstructionCounter = EmulatedInstructions(_memory(sysfs), proc)
    else:
        counter = count_instructions(proc, sysfs)
        with contextlib.suppress(UnavailableError):
            tasks = TaskEvents(sysfs)
            opened.callback(tasks.close)
    opened.callback(counter.close)
    return Sources(sampler, clock, counter, tasks)


def _memory(sysfs: Path) -> SharedMemory:
    device = find_device(sysfs)
    if device is None:
        raise MissingError(
            "the emulated machine's shared memory is not there any more: boot it again"
        )
    return SharedMemory.open(device)
