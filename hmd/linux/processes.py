# SPDX-License-Identifier: MIT
"""The processes of each target, now; families of forks, and threads.

Each ``scan`` lists /proc. It reads stat of new processes, of those that match a target, and of each
other one at intervals, but not of those that the caller knows to run by their pidfds. Executable,
arguments, user and cgroup are read for new processes, after a change of name (exec), and at
intervals. Costs about 6 µs per process and scan with 10,000 processes (bench/stages/scan.py).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from hmd.linux.procfs import (
    PROC,
    ProcessId,
    ProcessStat,
    alive,
    read_bytes,
    read_live_stat,
    read_stat_fields,
)
from hmd.linux.targets import Selector, TargetSpec, folder_of

SCAN_BLOCK: Final = 64
"""Processes that are read at a time: 1 to 10 ms of CPU time."""

_STATUS_BYTES: Final = 1024
_UIDS: Final = re.compile(rb"^Uid:\s+(\d+)\s", re.MULTILINE)

_START_TIME, _CODE, _STACK, _HEAP = 19, 23, 25, 44
"""Fields 22, 26, 28 and 47 of /proc/PID/stat (proc_pid_stat(5)), counted from the state."""

_ADDRESS_BITS: Final = (39, 42, 47, 48, 52, 56)
"""Where user addresses end, by architecture and number of levels of page tables."""

_FIXED_STACK_BYTES: Final = 8 << 20
"""A stack so near to the end of all addresses is not at a random one: of random ones of x86, one
in 2,000 is."""

ThreadTimes: TypeAlias = Mapping[int, int]
"""CPU time of each thread in nanoseconds, by its id."""

_PROCESSOR = 36  # of the fields of stat after the name, which is the second of 52


@dataclass(slots=True)
class _Known:
    """A process of the last scan, with the results of the selectors: empty where none matches.

    ``settled`` processes (kernel threads, and those that have been known for ``reread_s``) are not
    read at each scan unless they are ``wanted``: part of a target.
    """

    process: ProcessId
    stat: ProcessStat
    inode: int
    asked_s: float
    fits: tuple[bool, ...] = ()
    settled: bool = False
    wanted: bool = False


@dataclass(slots=True)
class _Target:
    """A selector and its state between scans."""

    selector: Selector
    # Pids of the configuration with the process that had the pid when it was first seen: a pid
    # that is given to another process later does not select that one.
    pinned: dict[int, ProcessId] = field(default_factory=dict)
    # Processes followed from a parent; they stay when the parent exits.
    followed: set[ProcessId] = field(default_factory=set)
    admitted: set[ProcessId] = field(default_factory=set)


class ProcessWatcher:
    """Finds the processes of targets.

    A process belongs to the first target that it matches. Kernel threads and the calling process
    belong to none. A child whose parent was never seen alive (it forked and exited between two
    scans) is not followed: select such services by cgroup or unit. An old process that becomes
    another program, user or cgroup is noticed within ``reread_s``, a young one at once, as is a
    user that becomes known. Raises ConfigError for a wrong regular expression.
    """

    def __init__(
        self,
        targets: Sequence[TargetSpec],
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
        reread_s: float = 30.0,
    ) -> None:
        self._targets = [_Target(Selector(spec)) for spec in targets]
        self._sizes = any(spec.min_rss_bytes for spec in targets)
        self._proc = proc
        self._clock = clock
        self._reread_s = reread_s
        self._own_pid = os.getpid()
        self._known: dict[int, _Known] = {}
        self._users_looked_up_s = clock()
        self.reads = self.evaluated = 0
        """Files of stat read, and processes for which the selectors were evaluated."""

    def scan(
        self,
        between: Callable[[], None] = lambda: None,
        runs: Callable[[ProcessId], bool] = lambda _: False,
    ) -> Mapping[str, tuple[ProcessId, ...]]:
        """Return the processes of each target by its name, ascending; a target may have none.

        ``between`` is called after every ``SCAN_BLOCK`` processes. ``runs`` returns whether a
        process is known to run, so that its stat is not read.
        """
        now_s = self._clock()
        # A user that is known from now on may select any process: read them all again.
        before = {} if self._resolve_users(now_s) else self._known
        self._known = {}
        for place, (pid, inode) in enumerate(self._listing(), 1):
            if place % SCAN_BLOCK == 0:
                between()
            known = self._recall(before.get(pid), pid, inode, now_s, runs)
            if known is not None:
                # Of a process whose first thread has ended, another thread is known.
                self._known[known.process.pid] = known
        fitting = [known for known in self._known.values() if known.fits]
        children = self._children() if self._follows(fitting) else {}
        taken: set[ProcessId] = set()
        found: dict[str, tuple[ProcessId, ...]] = {}
        for i, target in enumerate(self._targets):
            roots = {known.process for known in fitting if known.fits[i]}
            members = self._members(roots, target, children) - taken
            taken |= members
            found[target.selector.spec.name] = tuple(sorted(members))
        return found

    def resident_bytes(self, process: ProcessId) -> int:
        """Return the resident size of a process as last read, 0 if it never was."""
        known = self._known.get(process.pid)
        return known.stat.resident_bytes if known and known.process == process else 0

    def same(self, process: ProcessId) -> bool:
        """Return whether a pid is still of the process of the last scan, exited or not."""
        known = self._known.get(process.pid)
        if known is not None and known.inode and known.process == process:
            try:
                if Path(f"{self._proc}/{process.pid}").stat().st_ino == known.inode:
                    return True
            except OSError:
                return False
        return alive(process, self._proc)

    def _resolve_users(self, now_s: float) -> bool:
        """Look unknown users up again where that is due; returns whether one was found."""
        if now_s - self._users_looked_up_s < self._reread_s:
            return False
        self._users_looked_up_s = now_s
        found = [target.selector.resolve_user() for target in self._targets]
        return any(found)

    def _listing(self) -> list[tuple[int, int]]:
        """Return pid and inode of every process that may belong to a target.

        The inode of a /proc/PID stays the same while the process lives and /proc remembers it
        (fs/proc/base.c, proc_fill_cache()).
        """
        specs = [t.selector.spec for t in self._targets]
        if all(spec.selects_by_pid_only for spec in specs):
            return [(pid, 0) for pid in sorted({pid for spec in specs for pid in spec.pids})]
        with os.scandir(self._proc) as entries:
            return [(int(e.name), e.inode()) for e in entries if e.name.isdigit()]

    def _recall(
        self,
        known: _Known | None,
        pid: int,
        inode: int,
        now_s: float,
        runs: Callable[[ProcessId], bool],
    ) -> _Known | None:
        """Return the state of a process now, None after its exit; evaluate selectors if due."""
        same = known is not None and known.inode == inode
        due = known is None or now_s - known.asked_s >= self._reread_s
        if known is not None and same and known.settled and not known.wanted and not due:
            return known
        if known is not None and same and due and not self._sizes and runs(known.process):
            known.asked_s, known.settled, known.wanted = now_s, True, False
            return self._ask(known)
        stat = read_live_stat(pid, self._proc)
        self.reads += 1
        if stat is None or stat.exited or pid == self._own_pid:
            return None
        if known is None or known.process.start_ticks != stat.start_ticks:
            # Spread the next read over the period, for processes that started together.
            asked_s = now_s - self._reread_s * (pid % 16) / 16
            return self._ask(_Known(stat.process, stat, inode, asked_s, settled=stat.kernel_thread))
        renamed = known.stat.name != stat.name  # exec(2) keeps pid and start time
        known.stat, known.inode, known.wanted = stat, inode, False
        if due:
            known.asked_s = now_s
            known.settled = True
        return self._ask(known) if due or renamed else known

    def _ask(self, known: _Known) -> _Known:
        if known.stat.kernel_thread:
            return known
        pid = known.process.pid
        folder = folder_of(self._proc, pid)
        fits = tuple(t.selector.fits(pid, folder) for t in self._targets)
        known.fits = fits if any(fits) else ()
        self.evaluated += 1
        return known

    def _follows(self, fitting: Sequence[_Known]) -> bool:
        """Return True where some process may have children to follow."""
        return any(
            target.followed or (target.selector.spec.follow_children and fitting)
            for target in self._targets
        )

    def _children(self) -> dict[int, list[ProcessId]]:
        children: dict[int, list[ProcessId]] = {}
        for known in self._known.values():
            children.setdefault(known.stat.parent_pid, []).append(known.process)
        return children

    def _members(
        self,
        roots: set[ProcessId],
        target: _Target,
        children: Mapping[int, Sequence[ProcessId]],
    ) -> set[ProcessId]:
        spec = target.selector.spec
        members = _pin(target.pinned, roots) if spec.pids else roots
        if spec.follow_children:
            members = self._follow(members, target, children)
        if spec.exclude:
            excludes = target.selector.excludes
            members = {p for p in members if not excludes(folder_of(self._proc, p.pid))}
        for process in members:
            self._known[process.pid].wanted = True
        if spec.min_rss_bytes:
            members = self._admit(members, target)
        return members

    def _follow(
        self,
        roots: set[ProcessId],
        target: _Target,
        children: Mapping[int, Sequence[ProcessId]],
    ) -> set[ProcessId]:
        """Return roots and their descendants, and those followed earlier that still run."""
        members = roots | {p for p in target.followed if self._lives(p)}
        queue = list(members)
        while queue:
            parent = queue.pop()
            for child in children.get(parent.pid, ()):
                # The parent of a settled process may have exited and its pid been reused; no child
                # is older than its parent.
                if child not in members and child.start_ticks >= parent.start_ticks:
                    members.add(child)
                    queue.append(child)
        target.followed = members - roots
        return members

    def _lives(self, process: ProcessId) -> bool:
        known = self._known.get(process.pid)
        return known is not None and known.process == process

    def _admit(self, members: set[ProcessId], target: _Target) -> set[ProcessId]:
        """Return those of the minimum size, or admitted earlier and still half as large."""
        min_rss_bytes = target.selector.spec.min_rss_bytes
        target.admitted = {
            process
            for process in members
            if self._known[process.pid].stat.resident_bytes
            >= (min_rss_bytes // 2 if process in target.admitted else min_rss_bytes)
        }
        return target.admitted


def _pin(pinned: dict[int, ProcessId], roots: set[ProcessId]) -> set[ProcessId]:
    for process in roots:
        pinned.setdefault(process.pid, process)
    return {process for process in roots if pinned[process.pid] == process}


def fork_family(process: ProcessId, proc: Path = PROC) -> str:
    """Return what all forks of a program have in common, and no other process; about 50 µs.

    A fork has the addresses of its parent; execve(2) chooses new ones at random. So processes of
    one user whose code, heap and stack begin at the same addresses are forks of one process. Empty
    where that is not known: the process has exited, may not be inspected, or has addresses that are
    not random.
    """
    fields = read_stat_fields(process.pid, proc)
    status = read_bytes(f"{proc}/{process.pid}/status", _STATUS_BYTES) or b""
    uid = _UIDS.search(status)
    try:
        start_ticks = int(fields[_START_TIME])
        code, stack, heap = (int(fields[at]) for at in (_CODE, _STACK, _HEAP))
    except (IndexError, ValueError):
        return ""
    fixed = any(0 < (1 << bits) - stack < _FIXED_STACK_BYTES for bits in _ADDRESS_BITS)
    if uid is None or start_ticks != process.start_ticks or not stack or fixed:
        return ""
    return f"{int(uid[1])}:{code:x}:{stack:x}:{heap:x}"


def count_threads(pid: int, proc: Path = PROC) -> int:
    """Return the number of threads, 0 of a process that has exited; in 2 µs, however many."""
    try:
        return max((proc / str(pid) / "task").stat().st_nlink - 2, 0)
    except OSError:
        return 0


def thread_times(pid: int, proc: Path = PROC) -> ThreadTimes | None:
    """Return CPU time of each live thread (schedstat); None where the process has exited."""
    times: dict[int, int] = {}
    try:
        threads = [entry.name for entry in (proc / str(pid) / "task").iterdir()]
    except OSError:
        return None
    for thread in threads:
        words = (read_bytes(proc / str(pid) / "task" / thread / "schedstat") or b"").split()
        if words and words[0].isdigit():
            times[int(thread)] = int(words[0])
    return times


def last_cpu(pid: int, proc: Path = PROC) -> int | None:
    """Return the CPU that a thread, or a process's first, ran on last; None where it has exited."""
    fields = read_stat_fields(pid, proc)
    return int(fields[_PROCESSOR]) if len(fields) > _PROCESSOR else None
