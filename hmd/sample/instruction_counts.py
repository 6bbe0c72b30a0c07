# SPDX-License-Identifier: MIT
"""What recorded processes execute, and how long they wait for memory, next to their samples.

With the CPU's PMU: user mode, exact; waits of loads, where the core has an event for them. On the
emulated machine: its CPUs are counted, not its processes, so what a CPU did is divided among the
processes that ran there; waits are those of loads, stores and streams.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from hmd._native import lib
from hmd.linux.emulator_memory import SharedMemory
from hmd.linux.processes import ThreadTimes, last_cpu, thread_times
from hmd.linux.procfs import PROC, SYSFS, ProcessId
from hmd.sample.cpu_models import find_raw_events, read_cpu_model
from hmd.sample.memory_events import read_device
from hmd.sample.perf_events import PerfError, PerfEvent, enable_event, open_event

InstructionSource: TypeAlias = Literal["pmu", "emulated"]

# perf_event_open(2); of a core of two kinds, the PMU's type goes into the upper half of config
# (perf_event_attr, PERF_PMU_TYPE_SHIFT).
_TYPE_HARDWARE = 0
_COUNT_CYCLES, _COUNT_INSTRUCTIONS = 0, 1
_PMU_TYPE_SHIFT = 32
_TOTAL_TIME_ENABLED, _TOTAL_TIME_RUNNING = 1, 2
_NO_SUCH_EVENT = (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP)
_READ = struct.Struct("=QQQ")  # value, time enabled, time running


class Executed(NamedTuple):
    """Instructions of a process, how long its threads waited for memory, and ran meanwhile.

    0 where not counted.
    """

    instructions: int = 0
    stalled_ns: int = 0
    ran_ns: int = 0


class InstructionCounter:
    """Counts instructions and waits of processes; this base class counts none.

    ``source`` is None where nothing is counted; ``detail`` is what is counted, or why nothing is.
    """

    source: InstructionSource | None = None

    def __init__(self, detail: str) -> None:
        self.detail = detail

    def start(self, processes: Sequence[ProcessId]) -> None:
        """Count these processes and their children from now on."""

    def read(self, threads: Mapping[ProcessId, ThreadTimes]) -> Mapping[ProcessId, Executed]:
        """Return counts since the start, by ``threads``' times; some include their children."""
        return {}

    def cpu_busy_ns(self, cpu: int) -> int | None:
        """Return for how long a CPU has run since the start, by a modelled clock; else None."""
        return None

    def moved_bytes(self) -> Sequence[tuple[int, int]]:
        """Return what the memory of each node has read and written; empty where not counted."""
        return ()

    def stop(self, processes: Iterable[ProcessId]) -> None:
        """Count these processes no longer."""

    def close(self) -> None:
        """Stop counting and free all resources; may be called twice."""


class PerfInstructions(InstructionCounter):
    """Counts with perf events on each thread, which new threads and children inherit.

    So a process's count includes its children, which have no counts of their own. A thread that
    starts while the events of its process are being opened may be missed. Multiplexed events are
    extrapolated. Waits are the share of cycles in which nothing executes, of the time.
    """

    source = "pmu"

    def __init__(
        self,
        events: Sequence[PerfEvent],
        proc: Path = PROC,
        stalls: Sequence[tuple[PerfEvent, PerfEvent]] = (),
    ) -> None:
        """Raise ``PerfError`` where ``events`` cannot be opened.

        ``stalls`` are pairs of the cycles of a kind of core and of those in which it waits; they
        are not counted where they cannot be opened.
        """
        self._events, self._stalls = tuple(events), tuple(stalls)
        self._proc = proc
        self._opened: dict[ProcessId, list[int]] = {}
        self._waits: dict[ProcessId, list[int]] = {}
        for event in self._events:
            lib.hmd_perf_close(open_event(event, 0, -1, what="the count of instructions"))
        try:
            for event in chain.from_iterable(self._stalls):
                lib.hmd_perf_close(open_event(event, 0, -1, what="the count of waits"))
        except PerfError:
            self._stalls = ()
        counted = ", and waits of loads for memory" if self._stalls else ""
        super().__init__(f"instructions in user mode{counted}, a process with its children (PMU)")

    def start(self, processes: Sequence[ProcessId]) -> None:
        """Count these processes; raises ``PerfError``, but not for one that has exited."""
        for process in processes:
            threads = thread_times(process.pid, self._proc) or {}
            opened, waits = (kept.setdefault(process, []) for kept in (self._opened, self._waits))
            for thread in threads:
                opened += self._open(self._events, thread)
                try:
                    waits += self._open(tuple(chain.from_iterable(self._stalls)), thread)
                except PerfError:  # too many files, for example: instructions matter more
                    self._close(self._waits)
                    self._stalls, waits = (), []

    def _open(self, events: Sequence[PerfEvent], thread: int) -> list[int]:
        """Return the events of a thread; none of one that has exited."""
        fds: list[int] = []
        try:
            for event in events:
                fds.append(open_event(event, thread, -1, what="the count of instructions"))
        except PerfError as error:
            for fd in fds:
                lib.hmd_perf_close(fd)
            if error.errno != errno.ESRCH:
                raise
            return []
        for fd in fds:
            enable_event(fd)
        return fds

    def read(self, threads: Mapping[ProcessId, ThreadTimes]) -> Mapping[ProcessId, Executed]:
        """Return counts, including those of processes that have ended."""
        found = {}
        for process, fds in self._opened.items():
            waits = self._waits[process]
            stalled = list(map(_stalled_ns, waits[::2], waits[1::2]))
            found[process] = Executed(
                sum(_read(fd)[0] for fd in fds),
                sum(waited_ns for waited_ns, _ in stalled),
                sum(ran_ns for _, ran_ns in stalled),
            )
        return found

    def stop(self, processes: Iterable[ProcessId]) -> None:
        """Close the events of these processes."""
        for process in processes:
            for kept in (self._opened, self._waits):
                self._close({process: kept.pop(process, [])})

    def close(self) -> None:
        """Close all events."""
        self._close(self._opened)
        self._close(self._waits)
        self._opened = {}

    def _close(self, kept: Mapping[ProcessId, list[int]]) -> None:
        for fds in kept.values():
            for fd in fds:
                lib.hmd_perf_close(fd)
            fds.clear()


def _read(fd: int) -> tuple[int, int]:
    """Return the value of an event, and for how long its threads ran, in ns."""
    value, enabled_ns, running_ns = map(int, _READ.unpack(os.read(fd, _READ.size)))
    counted = running_ns in (0, enabled_ns)
    return (value if counted else value * enabled_ns // running_ns), enabled_ns


def _stalled_ns(cycles_fd: int, stalls_fd: int) -> tuple[int, int]:
    cycles, ran_ns = _read(cycles_fd)
    return min(_read(stalls_fd)[0], cycles) * ran_ns // max(cycles, 1), ran_ns


def instruction_events(sysfs: Path = SYSFS) -> tuple[PerfEvent, ...]:
    """Return the events that count instructions: one per kind of core."""
    cores = [read_device(name, sysfs) for name in ("cpu_core", "cpu_atom", "cpu_lowpower")]
    types = [core.type for core in cores if core is not None] or [0]
    return tuple(
        counting(_TYPE_HARDWARE, _COUNT_INSTRUCTIONS | pmu << _PMU_TYPE_SHIFT) for pmu in types
    )


def stall_events(proc: Path = PROC, sysfs: Path = SYSFS) -> tuple[tuple[PerfEvent, PerfEvent], ...]:
    """Return cycles and those waiting for memory, by kind of core; none without an event for it."""
    found, cpu = [], read_cpu_model(proc, sysfs)
    for name in ("cpu", "cpu_core", "cpu_atom", "cpu_lowpower"):
        device, event = read_device(name, sysfs), find_raw_events(cpu, name).stalls
        if device is not None and event is not None:
            cores = 0 if name == "cpu" else device.type << _PMU_TYPE_SHIFT
            cycles = counting(_TYPE_HARDWARE, _COUNT_CYCLES | cores)
            found.append((cycles, counting(device.type, event.config)))
    return tuple(found)


def counting(event_type: int, config: int) -> PerfEvent:
    """Return an event that counts, is inherited, and can be read by ``PerfInstructions``."""
    read_format = _TOTAL_TIME_ENABLED | _TOTAL_TIME_RUNNING
    return PerfEvent(event_type, config, read_format=read_format, inherit=True)


class EmulatedInstructions(InstructionCounter):
    """Divides what each emulated CPU does among processes, kernel mode included.

    Between two reads, the instructions and waits of a CPU are divided among the threads that ran
    there last, hmd's included, in proportion to their run times: exact for a program alone on its
    CPU, else an estimate. Those of processes that are not recorded are attributed to recorded ones
    there.
    """

    source = "emulated"

    def __init__(self, memory: SharedMemory, proc: Path = PROC) -> None:
        super().__init__(
            "instructions of its CPUs, the kernel's too, shared out by run time (emulated machine)"
        )
        self._memory = memory
        self._proc = proc
        self._ran: dict[int, int] = {}
        self._counts: dict[ProcessId, tuple[int, int, int]] = {}
        self.start(())

    def _now(self) -> list[tuple[int, int, int]]:
        """Return instructions, and ps of waits and of run time, of each CPU."""
        memory = self._memory
        return [
            (
                memory.vcpu_word(n, "instructions"),
                memory.vcpu_sum(n, "stall_ps"),
                memory.vcpu_word(n, "busy_ps"),
            )
            for n in range(memory.vcpus)
        ]

    def start(self, processes: Sequence[ProcessId]) -> None:
        """Count from now on."""
        for process in processes:
            self._ran.update(thread_times(process.pid, self._proc) or {})
        self._ran.update(thread_times(os.getpid(), self._proc) or {})
        self._executed = self._now()
        self._busy_ps = [
            self._memory.vcpu_word(vcpu, "busy_ps") for vcpu in range(self._memory.vcpus)
        ]
        self._moved = [self._memory.node_bytes(node) for node in range(self._memory.nodes)]

    def cpu_busy_ns(self, cpu: int) -> int | None:
        """Return for how long a CPU has run since the start."""
        return (self._memory.vcpu_word(cpu, "busy_ps") - self._busy_ps[cpu]) // 1000

    def moved_bytes(self) -> Sequence[tuple[int, int]]:
        """Return what the memory of each node has read and written since the start."""
        now = [self._memory.node_bytes(node) for node in range(self._memory.nodes)]
        return [(r - r0, w - w0) for (r, w), (r0, w0) in zip(now, self._moved, strict=True)]

    def read(self, threads: Mapping[ProcessId, ThreadTimes]) -> Mapping[ProcessId, Executed]:
        """Return counts of all processes seen so far."""
        executed = self._now()
        did = [
            tuple(now - then for now, then in zip(*pair, strict=True))
            for pair in zip(executed, self._executed, strict=True)
        ]
        self._executed = executed
        of_cpu = [0] * len(did)
        shares: list[tuple[ProcessId, int, int]] = []
        for process, times in threads.items():
            self._counts.setdefault(process, (0, 0, 0))
            for cpu, ran_ns in self._since(times):
                of_cpu[cpu] += ran_ns
                shares.append((process, cpu, ran_ns))
        for cpu, ran_ns in self._since(thread_times(os.getpid(), self._proc) or {}):
            of_cpu[cpu] += ran_ns
        for process, cpu, ran_ns in shares:
            instructions, stalled_ps, busy_ps = (
                before + more * ran_ns // of_cpu[cpu]
                for before, more in zip(self._counts[process], did[cpu], strict=True)
            )
            self._counts[process] = (instructions, stalled_ps, busy_ps)
        return {
            each: Executed(n, stalled_ps // 1000, busy_ps // 1000)
            for each, (n, stalled_ps, busy_ps) in self._counts.items()
        }

    def stop(self, processes: Iterable[ProcessId]) -> None:
        """Forget these processes."""
        for process in processes:
            self._counts.pop(process, None)

    def _since(self, times: ThreadTimes) -> list[tuple[int, int]]:
        """Return CPU and run time of each thread that has run since the last call."""
        found: list[tuple[int, int]] = []
        for thread, time_ns in times.items():
            ran_ns = time_ns - self._ran.get(thread, 0)
            self._ran[thread] = time_ns
            cpu = last_cpu(thread, self._proc) if ran_ns > 0 else None
            if cpu is not None and cpu < len(self._executed):
                found.append((cpu, ran_ns))
        return found

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()


def count_instructions(proc: Path = PROC, sysfs: Path = SYSFS) -> InstructionCounter:
    """Return a counter by the PMU, or one that counts nothing, with the reason."""
    try:
        return PerfInstructions(instruction_events(sysfs), proc, stall_events(proc, sysfs))
    except PerfError as error:
        if error.errno in _NO_SUCH_EVENT:
            return InstructionCounter("not counted: this CPU or virtual machine has no PMU for it")
        return InstructionCounter(f"not counted: {error}")
