"""Which processes belong to which target, now.

Takes the targets' selectors, gives at each ``scan`` the processes of each target. One pass over
/proc reads one small file (stat) of each process; executable, arguments, user and cgroup are
read only for new processes, for those that changed their name (exec), and again on a clock.
Costs about 20 µs a process and scan (bench/scan.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hmd.machine.process import PROC, ProcessId, ProcessStat, parse_stat
from hmd.machine.pseudofile import absent
from hmd.machine.targets import Selector, TargetSpec, folder_of

__all__ = ["ProcessWatcher", "ScanStats", "TargetSpec"]

_STAT_BYTES = 1024  # 52 numbers of at most 20 digits, and a name of at most 64 bytes


@dataclass(slots=True)
class ScanStats:
    """Counters of a watcher: scans made, processes read, and selectors asked anew."""

    scans: int = 0
    processes: int = 0
    selections: int = 0


@dataclass(slots=True)
class _Known:
    """A process seen at the last scan, with what the selectors said of it."""

    process: ProcessId
    stat: ProcessStat
    fits: tuple[bool, ...] = ()
    asked_s: float = 0.0


@dataclass(slots=True)
class _Target:
    """A selector with what has to be remembered between scans."""

    selector: Selector
    # Pids of the configuration with the process that had the pid when it was first seen: a pid
    # that is given to another process later does not select that one.
    pinned: dict[int, ProcessId] = field(default_factory=dict)
    # Processes followed from a parent; they stay when the parent exits.
    followed: set[ProcessId] = field(default_factory=set)
    admitted: set[ProcessId] = field(default_factory=set)


class ProcessWatcher:
    """Finds the processes of targets, scan after scan.

    A process belongs to the first target that takes it. Kernel threads and the calling process
    belong to none. A child whose parent was never seen alive (it forked and exited between two
    scans) is not followed: select such services by cgroup or unit.
    """

    def __init__(
        self,
        targets: Sequence[TargetSpec],
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
        reread_s: float = 10.0,
    ) -> None:
        """Prepare ``targets``; ``reread_s`` is how long what was read of a process holds.

        Raises ConfigError for a wrong pattern or an unknown user.
        """
        self._targets = [_Target(Selector(spec)) for spec in targets]
        self._proc = proc
        self._clock = clock
        self._reread_s = reread_s
        self._own_pid = os.getpid()
        self._known: dict[int, _Known] = {}
        self.stats = ScanStats()

    def scan(self) -> Mapping[str, tuple[ProcessId, ...]]:
        """Return the processes of each target by its name, ascending; a target may have none."""
        now_s = self._clock()
        self._known = {
            stat.pid: self._recall(stat, now_s) for stat in self._read_stats(self._pids())
        }
        self.stats.scans += 1
        self.stats.processes += len(self._known)
        follow = any(t.selector.spec.follow_children for t in self._targets)
        children = self._children() if follow else {}
        taken: set[ProcessId] = set()
        found: dict[str, tuple[ProcessId, ...]] = {}
        for i, target in enumerate(self._targets):
            members = self._members(i, target, children) - taken
            taken |= members
            found[target.selector.spec.name] = tuple(sorted(members))
        return found

    def _pids(self) -> Iterable[int]:
        specs = [t.selector.spec for t in self._targets]
        if all(spec.selects_by_pid_only for spec in specs):
            return sorted({pid for spec in specs for pid in spec.pids})
        # listdir gives strings: a Path for each of 10,000 entries would cost more than the scan.
        return [int(name) for name in os.listdir(self._proc) if name.isdigit()]  # noqa: PTH208

    def _read_stats(self, pids: Iterable[int]) -> Iterable[ProcessStat]:
        """Yield the status of every process with memory but this one."""
        for pid in pids:
            data = _read_stat(f"{self._proc}/{pid}/stat")
            stat = parse_stat(data) if data else None
            if stat and stat.has_memory and stat.pid != self._own_pid:
                yield stat

    def _recall(self, stat: ProcessStat, now_s: float) -> _Known:
        """Return what is known of a process, asking the selectors where that is due."""
        known = self._known.get(stat.pid)
        if known is None or known.process.start_ticks != stat.start_ticks:
            known = _Known(stat.process, stat)
            # Spread the next reading over the period: a fleet started at once is not read at once.
            self._ask(known, now_s - self._reread_s * (stat.pid % 16) / 16)
        elif known.stat.name != stat.name or now_s - known.asked_s >= self._reread_s:
            # exec(2) keeps pid and start time, and changes the name.
            self._ask(known, now_s)
        known.stat = stat
        return known

    def _ask(self, known: _Known, now_s: float) -> None:
        pid = known.process.pid
        folder = folder_of(self._proc, pid)
        known.fits = tuple(t.selector.fits(pid, folder) for t in self._targets)
        known.asked_s = now_s
        self.stats.selections += 1

    def _children(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for pid, known in self._known.items():
            children.setdefault(known.stat.parent_pid, []).append(pid)
        return children

    def _members(
        self, index: int, target: _Target, children: Mapping[int, list[int]]
    ) -> set[ProcessId]:
        spec = target.selector.spec
        roots = {known.process for known in self._known.values() if known.fits[index]}
        if spec.pids:
            roots = _pin(target.pinned, roots)
        members = roots
        if spec.follow_children:
            members = self._follow(roots, target, children)
        if spec.min_rss_bytes:
            members = self._admit(members, target)
        return members

    def _follow(
        self, roots: set[ProcessId], target: _Target, children: Mapping[int, list[int]]
    ) -> set[ProcessId]:
        """Return roots and all below them, and those followed before that still live."""
        members = set(roots)
        members.update(p for p in target.followed if self._lives(p))
        queue = [process.pid for process in members]
        while queue:
            for pid in children.get(queue.pop(), ()):
                process = self._known[pid].process
                if process not in members:
                    members.add(process)
                    queue.append(pid)
        target.followed = members - roots
        return members

    def _lives(self, process: ProcessId) -> bool:
        known = self._known.get(process.pid)
        return known is not None and known.process == process

    def _admit(self, members: set[ProcessId], target: _Target) -> set[ProcessId]:
        """Keep those that are large enough, or were so and are still half as large."""
        least = target.selector.spec.min_rss_bytes
        target.admitted = {
            process
            for process in members
            if self._known[process.pid].stat.resident_bytes
            >= (least // 2 if process in target.admitted else least)
        }
        return target.admitted


def _pin(pinned: dict[int, ProcessId], roots: set[ProcessId]) -> set[ProcessId]:
    for process in roots:
        pinned.setdefault(process.pid, process)
    return {process for process in roots if pinned[process.pid] == process}


def _read_stat(path: str) -> bytes | None:
    """Return a stat file by one read: the kernel writes it in one piece."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if absent(error):
            return None
        raise
    try:
        return os.read(fd, _STAT_BYTES)
    except OSError as error:
        if absent(error):
            return None
        raise
    finally:
        os.close(fd)
