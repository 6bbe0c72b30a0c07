# SPDX-License-Identifier: MIT
"""On which nodes the memory of every process and every cgroup is, without a daemon.

Of a process /proc/PID/numa_maps says it (proc_pid_numa_maps(5)): 0.1 µs per page of 4 KiB, with its
mmap lock held for reading. So a round of readings takes a bounded CPU time, those longest unread
and the largest of them first, and a process whose page tables are too large for what is left of it
is passed over. Where a process is not read, the shares of its cgroup stand in (memory.numa_stat,
Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hmd.base.errors import MissingError
from hmd.base.units import PAGE_BYTES
from hmd.linux.cgroups import CGROUPS, group_of, memory_by_node
from hmd.linux.memory_policy import count_pages
from hmd.linux.procfs import (
    PROC,
    ProcessId,
    ProcessStat,
    alive,
    list_pids,
    read_bytes,
    read_live_stat,
)

READING_S: Final = 12.5e-9
"""CPU time of numa_maps per byte of page tables, which have 8 bytes for each page."""

_TABLES: Final = re.compile(rb"^VmPTE:\s+(\d{1,15}) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Memory of a process or, with ``pid`` 0, of a cgroup and those below it.

    ``known`` is "exact", or why ``node_bytes`` are shares of the process's ``group``, and empty
    where that has none: this user may not read it ("forbidden"), or the time was up ("late").
    """

    name: str
    pid: int
    group: str
    total_bytes: int
    node_bytes: Mapping[int, int]
    known: Literal["exact", "forbidden", "late"] = "exact"


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was last read of a process, in which round; ``node_bytes`` None where forbidden."""

    round: int
    group: str
    node_bytes: Mapping[int, int] | None


class ProcessMemory:
    """Reads the memory of all processes, round by round.

    A round takes 60 µs for each process, and for numa_maps at most ``max_s``. What is passed over
    in a round keeps its last reading, so that rounds complete each other.
    """

    def __init__(
        self,
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._proc, self._cgroups, self._clock = proc, cgroups, clock
        self._readings: dict[ProcessId, _Reading] = {}
        self._round = 0

    def read(self, max_s: float) -> list[MemoryRow]:
        """Return a row for each process with memory, in no order."""
        self._round += 1
        stats = [stat for pid in list_pids(self._proc) if (stat := read_live_stat(pid, self._proc))]
        known, self._readings = self._readings, {}
        never = _Reading(0, "", None)
        stats = sorted(
            (stat for stat in stats if stat.has_memory),
            key=lambda stat: (known.get(stat.process, never).round, -stat.resident_bytes),
        )
        end_s = self._clock() + max_s
        shares: dict[str, Mapping[int, int]] = {}
        rows = []
        for stat in stats:
            reading = self._reading(stat, end_s - self._clock()) or known.get(stat.process)
            if reading is not None:
                if reading.node_bytes is None and not alive(stat.process, self._proc):
                    continue
                self._readings[stat.process] = reading
            rows.append(self._row(stat, reading, shares))
        return rows

    def _reading(self, stat: ProcessStat, left_s: float) -> _Reading | None:
        """Read a process, unless that would probably take longer."""
        if left_s <= 0:
            return None
        folder = f"{self._proc}/{stat.pid}"
        tables = _TABLES.search(read_bytes(f"{folder}/status") or b"")
        if tables is not None and int(tables[1]) * 1024 * READING_S > left_s:
            return None
        group, text = group_of(stat.pid, self._proc), read_bytes(f"{folder}/numa_maps")
        counted = None if text is None else dict(count_pages(text))
        return _Reading(
            self._round,
            group,
            counted and {node: pages * PAGE_BYTES for node, pages in counted.items()},
        )

    def _row(
        self, stat: ProcessStat, reading: _Reading | None, shares: dict[str, Mapping[int, int]]
    ) -> MemoryRow:
        name = stat.name.decode(errors="replace")
        group = reading.group if reading else group_of(stat.pid, self._proc)
        if reading is not None and reading.node_bytes is not None:
            of_nodes = reading.node_bytes
            return MemoryRow(name, stat.pid, group, sum(of_nodes.values()), of_nodes)
        if group not in shares:
            shares[group] = memory_by_node(group, self._cgroups) if group else {}
        total = max(sum(shares[group].values()), 1)
        split = {n: of * stat.resident_bytes // total for n, of in shares[group].items()}
        known: Literal["forbidden", "late"] = "late" if reading is None else "forbidden"
        return MemoryRow(name, stat.pid, group, stat.resident_bytes, split, known)


def read_cgroups(
    max_s: float, cgroups: Path = CGROUPS, clock: Callable[[], float] = time.thread_time
) -> tuple[list[MemoryRow], bool]:
    """Return a row for each cgroup with memory, the upper ones first, and whether these are all.

    Some 50 µs each. Counts what programs have mapped, anonymous and of files, without the rest of
    the page cache. Raises MissingError without the memory controller of version 2.
    """
    if b"memory" not in (read_bytes(cgroups / "cgroup.controllers") or b"").split():
        raise MissingError(
            f"{cgroups} has no memory controller of cgroup version 2: boot with "
            "systemd.unified_cgroup_hierarchy=1, or leave out --cgroups"
        )
    end_s, rows = clock() + max_s, list[MemoryRow]()
    waiting = [""]
    for group in waiting:  # grows meanwhile
        if clock() >= end_s:
            return rows, False
        try:
            with os.scandir(f"{cgroups}{group}") as entries:
                below = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except OSError:  # removed meanwhile
            continue
        waiting += [f"{group}/{name}" for name in below]
        of_nodes = memory_by_node(group, cgroups)
        if total := sum(of_nodes.values()):
            rows.append(MemoryRow(group or "/", 0, group or "/", total, of_nodes))
    return rows, True
