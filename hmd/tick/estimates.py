# SPDX-License-Identifier: MIT
"""What ticks learn for the policy of processes and of moves, from /proc and from earlier ticks.

:class:`ProcessReadings` reads /proc/PID/stat (proc_pid_stat(5)) of some processes per tick, in
turn, which takes 20 µs each. From that follow :class:`CpuUse`, how many CPUs each process keeps
busy, and :class:`ExpectedAllocations`, how much memory programs are likely to allocate soon.
:class:`CpusetBackoff` leaves processes alone whose moves the kernel refuses, and
:class:`MoveDelay` is how long pages wait from sample to move.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.linux.process_table import ProcessTable, carry_over
from hmd.linux.procfs import ProcessId, ProcessStat
from hmd.linux.topology import NodeMemory
from hmd.migrate import MoveOutcome, MoveStatus
from hmd.policy.plan import Plan

MAX_READS: Final = 32
"""Processes that are read per tick."""
FADE: Final = 1 / 16
"""Share of the expected allocations that a tick takes off."""
FIRST_WAIT_S: Final = 30.0
MAX_WAIT_S: Final = 3600.0
"""How long a process is left alone after the first refusal of its cpuset, and at most."""

_BUSY_RETENTION: Final = 0.9
"""Weight of earlier readings of CPU time when another one is added."""
_CPU_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_DELAY_WEIGHT: Final = 0.2
"""Weight of the last tick with moves in the mean delay."""
_DELAY_RETENTION: Final = 0.95
"""What a tick without moves leaves of the mean delay, and of the delays that it is made of."""

Values = npt.NDArray[np.float64]


class ProcessReading(NamedTuple):
    """The status of the process at ``slot``."""

    slot: int
    stat: ProcessStat


class ProcessReadings:
    """Reads ``MAX_READS`` of the processes at each call, in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def read_next(
        self, processes: tuple[ProcessId, ...], stat: Callable[[int], ProcessStat | None]
    ) -> list[ProcessReading]:
        """Return the next ones that still run; ``stat`` returns the status of a pid, or None."""
        found = []
        for place in range(self._turn, self._turn + min(MAX_READS, len(processes))):
            slot = place % len(processes)
            now = stat(processes[slot].pid)
            if now is not None and now.process == processes[slot]:
                found.append(ProcessReading(slot, now))
        self._turn = (self._turn + MAX_READS) % max(len(processes), 1)
        return found


class CpuUse:
    """An upper bound of the CPUs that each process keeps busy; older readings fade."""

    def __init__(self) -> None:
        self._table = ProcessTable()
        # By process: the time of its last reading, 0 before the first, and its CPU ticks then.
        self._last: Values = np.zeros((0, 2))
        # By process: CPU seconds and seconds between readings.
        self._sums: Values = np.zeros((0, 2))

    def add_readings(
        self,
        processes: tuple[ProcessId, ...],
        readings: Sequence[ProcessReading],
        now_s: float,
    ) -> None:
        """Add the readings of a tick, whose slots are those of ``processes``."""
        former = self._table.replace(processes)
        if former is not None:
            self._last = carry_over(self._last, former)
            self._sums = carry_over(self._sums, former)
        for slot, stat in readings:
            then_s, ticks = self._last[slot]
            self._last[slot] = now_s, stat.cpu_ticks
            if then_s and now_s > then_s:
                used_s = (stat.cpu_ticks - ticks) * _CPU_TICK_S
                self._sums[slot] = self._sums[slot] * _BUSY_RETENTION + (used_s, now_s - then_s)

    def max_cpus(self, processes: tuple[ProcessId, ...]) -> Values:
        """Return an upper bound of the busy CPUs per process of the last tick; NaN: not known."""
        cpus = np.full(len(processes), np.nan)
        if processes == self._table.processes:
            used_s, elapsed_s = self._sums.T
            most_s = used_s + _CPU_TICK_S  # the last step was counted only in part
            np.divide(most_s, elapsed_s, out=cpus, where=elapsed_s > 0)
        return cpus


class ExpectedAllocations:
    """Memory that programs are likely to allocate soon: what they freed recently, fading.

    Programs that free a buffer tend to allocate another one, and what was just allocated is often
    the hottest: the room that the first one leaves on the fastest tier stays free for it, instead
    of being filled with pages that are barely warm.

    Each target has its own expectation. The memory of all nodes bounds their sum: a fork that exits
    frees no page that its parent still has. ``expected_bytes`` is None before two ticks of the same
    nodes.
    """

    def __init__(self) -> None:
        self.expected_bytes: int | None = None
        self._machine_bytes: int | None = None
        self._room: tuple[tuple[tuple[int, int], ...], int] | None = None
        self._processes: tuple[ProcessId, ...] = ()
        self._sizes: dict[ProcessId, tuple[str, int]] = {}
        self._targets: dict[str, int] = {}

    def add_readings(
        self,
        memory: Sequence[NodeMemory],
        processes: tuple[ProcessId, ...],
        targets: Sequence[str],
        readings: Sequence[ProcessReading],
    ) -> None:
        """Add a tick: the memory of all nodes, and readings of processes with their targets."""
        self._add_processes(processes, targets, readings)
        nodes = tuple((node.node, node.total_bytes) for node in memory)
        room = sum(node.room_bytes for node in memory)
        before, self._room = self._room, (nodes, room)
        if before is not None and before[0] == nodes:
            self._machine_bytes = _expected(self._machine_bytes or 0, room - before[1])
        if self._machine_bytes is not None:
            self.expected_bytes = min(self._machine_bytes, sum(self._targets.values()))

    def _add_processes(
        self,
        processes: tuple[ProcessId, ...],
        targets: Sequence[str],
        readings: Sequence[ProcessReading],
    ) -> None:
        """Compare the size of processes with that of their last reading, by target."""
        freed = dict.fromkeys(targets, 0)
        if processes != self._processes:
            self._processes = processes
            tracked = frozenset(processes)
            for process in [known for known in self._sizes if known not in tracked]:
                # It has exited; its target may have others, which go on.
                target, size = self._sizes.pop(process)
                if target in freed:
                    freed[target] += size
        for slot, now in readings:
            process, target = processes[slot], targets[slot]
            if process in self._sizes:
                freed[target] += self._sizes[process][1] - now.resident_bytes
            self._sizes[process] = target, now.resident_bytes
        self._targets = {
            target: _expected(self._targets.get(target, 0), freed_bytes)
            for target, freed_bytes in freed.items()
        }


def _expected(before: int, freed_bytes: int) -> int:
    """Return the expectation after a tick that freed so much, below 0 if it allocated."""
    return max(int(before * (1 - FADE)) + freed_bytes, 0)


class CpusetBackoff:
    """Processes that policies leave alone, as their cpusets keep pages off the nodes of plans.

    The kernel refuses all of their moves to such a node (cpuset(7), move_pages(2): EACCES). A
    refusal makes a process wait for ``FIRST_WAIT_S``, each further one twice as long, up to
    ``MAX_WAIT_S``: a cpuset may change at any time.
    """

    def __init__(self) -> None:
        self._waits: dict[ProcessId, tuple[float, float]] = {}  # their ends and lengths, in seconds

    def record_refusals(self, plan: Plan, outcome: MoveOutcome, now_s: float) -> None:
        """Record the outcome of a plan's moves; ``now_s`` is the time of its tick."""
        refused = np.unique(plan.process[outcome.status == MoveStatus.CPUSET])
        for slot in refused.tolist():
            process = plan.processes[slot]
            _, wait_s = self._waits.get(process, (0.0, FIRST_WAIT_S / 2))
            wait_s = min(2 * wait_s, MAX_WAIT_S)
            self._waits[process] = now_s + wait_s, wait_s

    def waiting_mask(self, processes: Sequence[ProcessId], now_s: float) -> npt.NDArray[np.bool_]:
        """Return which processes wait, shape ``(processes,)``; others are forgotten."""
        if not self._waits:
            return np.zeros(len(processes), np.bool_)
        self._waits = {p: self._waits[p] for p in processes if p in self._waits}
        ends_s = (self._waits.get(process, (now_s, 0.0))[0] for process in processes)
        return np.fromiter((end_s > now_s for end_s in ends_s), np.bool_, len(processes))


class MoveDelay:
    """Time from the samples of a tick until the pages of its plan have moved: ``mean_s``.

    A mean over ticks with moves, 0 before the second. Of the last three delays the middle one
    counts: the first moves of a daemon take it many times as long, since code and memory are
    touched for the first time. The mean fades in ticks without moves: one that is too long for any
    move to pay is never measured again, as where the daemon was stopped while pages moved.
    """

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._last_s = [0.0, 0.0, 0.0]
        self._read_s, self._ticks, self._moved = 0.0, 0, True

    def start_tick(self, now_s: float) -> None:
        """Start a tick: its samples have been read."""
        if not self._moved:
            self.mean_s *= _DELAY_RETENTION
            self._last_s = [each * _DELAY_RETENTION for each in self._last_s]
        self._read_s, self._moved = now_s, False

    def record_moves(self, begun_s: float, ended_s: float) -> None:
        """Record the moves of a tick; half of them are taken to be done by the middle."""
        delay_s = max((begun_s + ended_s) / 2 - self._read_s, 0.0)
        self._last_s = [*self._last_s[1:], delay_s]
        self._ticks += 1
        self._moved = True
        weight = _DELAY_WEIGHT if self._ticks > 2 else 1.0
        self.mean_s += weight * (median(self._last_s) - self.mean_s)
