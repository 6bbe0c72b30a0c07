# SPDX-License-Identifier: MIT
"""Where memory lies that the sweep has not reached yet: the kernel's totals.

A sweep takes minutes at 1 % of a CPU. Until a process has been swept once, how its resident size
lies on nodes is taken from the first of these:

1. /proc/PID/numa_maps (proc_pid_numa_maps(5)), exact, where it may be read: 0.1 µs per page;
2. memory.numa_stat of its cgroup (Documentation/admin-guide/cgroup-v2.rst): shares of the group;
3. the use of nodes by all programs: shares of the machine.

Pages that several processes map count for each of them in the first two. Together with what the
sweep has found, a node has at most what the kernel counts for all programs on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_BYTES, PAGE_BYTES
from hmd.linux.cgroups import CGROUPS, group_of, memory_by_node
from hmd.linux.memory_policy import MemoryBindings, count_own_pages
from hmd.linux.process_table import ProcessTable, carry_over
from hmd.linux.procfs import PROC, SYSFS, ProcessId
from hmd.linux.topology import Topology, read_node_use

REFRESH_S: Final = 10.0
"""Time between two readings, at least; new processes are read at once."""
REFRESH_SHARE: Final = 0.001
"""Share of a CPU that readings of the same processes may take."""
READING_S: Final = 0.1
"""CPU time after which a reading takes shares of groups instead of numa_maps."""

Pages = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ResidentTotals:
    """Resident ``pages``, ``(processes, nodes)``, of which sweeps found a ``known`` share each."""

    pages: Pages
    known: npt.NDArray[np.float64]

    @property
    def known_share(self) -> float:
        """The share of all pages that is known; 1 where there are none."""
        sums = self.pages.sum(axis=1)
        return float((sums * self.known).sum() / sums.sum()) if sums.any() else 1.0


class KernelTotals:
    """Adds the kernel's totals to what sweeps have found; costs 20 to 100 µs per process read."""

    def __init__(
        self,
        bindings: MemoryBindings,
        proc: Path = PROC,
        sysfs: Path = SYSFS,
        cgroups: Path = CGROUPS,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._bindings, self._proc, self._sysfs = bindings, proc, sysfs
        self._cgroups, self._clock = cgroups, clock
        self._table = ProcessTable()
        self._expected, self._room = np.zeros((0, 0)), np.zeros(0)
        self._due_s, self._unswept = float("-inf"), 0

    def complete(
        self,
        swept: Pages,
        processes: tuple[ProcessId, ...],
        unswept: Collection[ProcessId],
        resident_bytes: Callable[[ProcessId], int],
        topology: Topology,
        now_s: float,
    ) -> ResidentTotals:
        """Return the totals after a tick; ``swept`` are the pages that were found one by one.

        ``resident_bytes`` is the last known size of a process, 0 where none is.
        """
        known = np.ones(len(processes))
        if not unswept:
            return ResidentTotals(swept, known)
        former = self._table.replace(processes)
        if now_s >= self._due_s or swept.shape[1:] != self._expected.shape[1:]:
            begun_s, self._expected = self._clock(), np.zeros(swept.shape)
            self._read(unswept, resident_bytes, topology)
            spent_s = self._clock() - begun_s
            self._due_s = now_s + max(REFRESH_S, spent_s / REFRESH_SHARE)
        elif former is not None:
            self._expected = carry_over(self._expected, former)
            known_before = {p for p, slot in zip(processes, former, strict=True) if slot >= 0}
            self._read([p for p in unswept if p not in known_before], resident_bytes, topology)
        if len(unswept) != self._unswept:
            self._expected[[slot for slot, p in enumerate(processes) if p not in unswept]] = 0.0
        self._unswept = len(unswept)
        sums = swept.sum(axis=1)
        # What is missing lies where more is expected than was found; moves may have changed that.
        more = np.maximum(self._expected - swept, 0.0)
        missing = np.maximum(self._expected.sum(axis=1) - sums, 0.0)
        share = np.divide(missing, more.sum(axis=1), out=np.zeros(len(sums)), where=missing > 0)
        rest = more * share[:, None]
        room = np.maximum(self._room - swept.sum(axis=0), 0.0)
        rest *= np.minimum(1.0, room / np.maximum(rest.sum(axis=0), 1.0))
        pages = swept + rest.astype(np.int64)
        np.divide(sums, pages.sum(axis=1), out=known, where=pages.any(axis=1))
        return ResidentTotals(pages, known)

    def _read(
        self,
        unread: Collection[ProcessId],
        resident_bytes: Callable[[ProcessId], int],
        topology: Topology,
    ) -> None:
        """Read how many pages of some processes are expected on each node."""
        nodes = self._expected.shape[1]
        uses = {node.id: read_node_use(node.id, self._sysfs) for node in topology.nodes}
        used = ((n, u.program_bytes + u.hugetlb_pages * HUGE_PAGE_BYTES) for n, u in uses.items())
        self._room = _by_node(used, nodes) / PAGE_BYTES
        groups: dict[str, npt.NDArray[np.float64]] = {}
        end_s = self._clock() + READING_S
        sizes = sorted(((resident_bytes(p), p) for p in unread), reverse=True)
        for size, process in sizes:
            if not size:
                break
            slot, pages = self._table.slot_of(process), size / PAGE_BYTES
            if self._clock() < end_s or self._bindings.is_known(process):
                split = _by_node(self._bindings.of(process).node_pages, nodes)
                if split.any():
                    self._expected[slot] = split * max(pages / split.sum(), 1.0)
                    continue
            group = group_of(process.pid, self._proc)
            if group not in groups:
                groups[group] = _by_node(memory_by_node(group, self._cgroups).items(), nodes)
            split = groups[group] if groups[group].any() else self._room
            self._expected[slot] = split * (pages / max(split.sum(), 1.0))


class OffFastest:
    """Counts what targets have off the fastest tier: the proof for those that are never slow.

    By numa_maps, read anew, at most every ``REFRESH_S`` and in ``REFRESH_SHARE`` of a CPU. Of
    processes with large page tables, and after ``READING_S``, as the totals above have it: these
    include the page cache of files that a process maps.
    """

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.thread_time) -> None:
        self._proc, self._clock = proc, clock
        self._due_s, self._bytes = float("-inf"), dict[str, int]()

    def by_target(
        self,
        processes: Mapping[ProcessId, str],
        resident: Mapping[ProcessId, Pages],
        fastest: Collection[int],
        now_s: float,
    ) -> Mapping[str, int]:
        """Return the bytes of each target; ``resident`` are pages by node as the totals say."""
        if now_s < self._due_s and self._bytes.keys() == set(processes.values()):
            return self._bytes
        begun_s, found = self._clock(), dict.fromkeys(processes.values(), 0)
        for process, target in processes.items():
            counted = None
            if self._clock() < begun_s + READING_S:
                counted = count_own_pages(process.pid, self._proc)
            if counted is None:
                counted = tuple(enumerate(resident[process].tolist()))
            found[target] += sum(n for node, n in counted if node not in fastest) * PAGE_BYTES
        spent_s = self._clock() - begun_s
        self._due_s, self._bytes = now_s + max(REFRESH_S, spent_s / REFRESH_SHARE), found
        return found


def _by_node(counted: Iterable[tuple[int, float]], nodes: int) -> npt.NDArray[np.float64]:
    split = np.zeros(nodes)
    for node, amount in counted:
        if node < nodes:
            split[node] += amount
    return split
