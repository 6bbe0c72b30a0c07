"""Inputs of a recording: access samples, the clock of their times, instruction counts.

The three belong together: the emulated machine's samples have modelled time, and its CPUs count
instructions; everywhere else times are CLOCK_MONOTONIC, and the CPU's PMU counts, if there is one.

Samples and task events have a ring per CPU that was online when they were opened, so they are
opened again when CPUs come or go.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from hmd.errors import HmdError, MissingError, UnavailableError
from hmd.machine.clock import Clock, ModelledClock, MonotonicClock
from hmd.machine.cpu_watch import CpuWatch
from hmd.machine.plugin_memory import SharedMemory, find_device
from hmd.machine.process_id import PROC
from hmd.sample.auto_select import SYSFS, SampleSettings, open_sampler
from hmd.sample.capabilities import SamplerName
from hmd.sample.instruction_counts import (
    EmulatedInstructions,
    InstructionCounter,
    NoInstructions,
    count_instructions,
)
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.sampler import Sampler
from hmd.sample.task_events import TaskEvents
from hmd.trace.trace import Losses

RETRY_S: Final = 10.0
"""Time between two attempts to open sources again."""


@dataclass(frozen=True, slots=True)
class ClockPair:
    """A time by the recording's clock, and the same time by CLOCK_MONOTONIC."""

    ns: int
    monotonic_ns: int


@dataclass(slots=True)
class Sources:
    """Open sources of a recording; sample times are those of ``clock``.

    ``tasks`` is None where the kernel does not permit task events, and in the emulated machine,
    whose samples name no process that has ended: children are then those that /proc shows.
    ``earlier`` are the losses of samplers that were closed.
    """

    sampler: Sampler
    clock: Clock
    counter: InstructionCounter
    tasks: TaskEvents | None = None
    earlier: Losses = field(default_factory=Losses)

    def now(self, cpu: int | None = None) -> ClockPair:
        """Return the present time; by a CPU's clock if each CPU has one."""
        return ClockPair(self.clock.now_ns(cpu), time.monotonic_ns())

    @property
    def losses(self) -> Losses:
        """The losses of the recording so far."""
        stats, earlier = self.sampler.stats, self.earlier
        return Losses(earlier.lost + stats.lost, earlier.throttled + stats.throttled)

    def use_sampler(self, sampler: Sampler) -> None:
        """Go on with another sampler; the last one is closed."""
        self.earlier = self.losses
        self.sampler.close()
        self.sampler = sampler

    def use_tasks(self, tasks: TaskEvents) -> None:
        """Go on with other rings of task events; the last ones are closed."""
        if self.tasks is not None:
            self.tasks.close()
        self.tasks = tasks

    def close(self) -> None:
        """Close what may have been opened again; may be called twice."""
        self.sampler.close()
        if self.tasks is not None:
            self.tasks.close()


class SourceRenewal:
    """Opens sources of a recording again where CPUs have come or gone."""

    def __init__(self, settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS) -> None:
        """Start with the CPUs that are online; ``settings`` are those of the recording."""
        self._settings = replace(settings, timestamps=True)
        self._proc, self._sysfs = proc, sysfs
        self._cpus = CpuWatch(sysfs)
        self._due = False
        self._next_s = float("-inf")

    def opened(self, sources: Sources) -> tuple[Sampler | None, TaskEvents | None]:
        """Return a sampler and task events to go on with; None for those that serve as they are.

        The sampler has the name and the period of the last one. Where it cannot be opened, another
        attempt follows in ``RETRY_S``.
        """
        changed, now_s = self._cpus.changed(), time.monotonic()
        if not (changed or (self._due and now_s >= self._next_s)):
            return None, None
        self._due, self._next_s = False, now_s + RETRY_S
        sampler: Sampler | None = None
        tasks: TaskEvents | None = None
        try:
            if sources.tasks is not None:
                tasks = TaskEvents(self._sysfs)
            if _has_ring_per_cpu(sources.sampler):
                sampler = self._opened(sources.sampler)
        except HmdError:
            self._due = True
        return sampler, tasks

    def _opened(self, before: Sampler) -> Sampler:
        name = cast(SamplerName, before.name)
        settings = replace(self._settings, sampler=name, period=before.period)
        return open_sampler(settings, self._proc, self._sysfs, before).sampler


def _has_ring_per_cpu(sampler: Sampler) -> bool:
    return isinstance(sampler, RingSampler) and not sampler.capabilities.modelled_clock


def open_sources(
    settings: SampleSettings,
    opened: contextlib.ExitStack,
    proc: Path = PROC,
    sysfs: Path = SYSFS,
) -> Sources:
    """Open the sampler of the settings, its clock and its counter; ``opened`` closes them.

    Raises MissingError if no sampler works here.
    """
    settings = replace(settings, timestamps=True)
    sampler = open_sampler(settings, proc, sysfs).sampler
    sources = Sources(sampler, MonotonicClock(), NoInstructions("not counted"))
    opened.callback(sources.close)
    if sampler.capabilities.modelled_clock:
        sources.clock = ModelledClock(_memory(sysfs))
        opened.callback(sources.clock.close)
        sources.counter = EmulatedInstructions(_memory(sysfs), proc)
    else:
        sources.counter = count_instructions(proc, sysfs)
        with contextlib.suppress(UnavailableError):
            sources.tasks = TaskEvents(sysfs)
    opened.callback(sources.counter.close)
    return sources


def _memory(sysfs: Path) -> SharedMemory:
    device = find_device(sysfs)
    if device is None:
        raise MissingError(
            "the emulated machine's shared memory is not there any more: boot it again"
        )
    return SharedMemory.open(device)
