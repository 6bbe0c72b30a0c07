# SPDX-License-Identifier: MIT
"""DAMON, the kernel's access monitor: hmd's kdamonds in /sys/kernel/mm/damon/admin.

``Kdamonds`` is the tree (Documentation/admin-guide/mm/damon/usage.rst). Its files return EBUSY, to
readers too, while another write waits for a kdamond; both are therefore retried for a while.
``KdamondThread`` switches one kdamond on and off, and leaves it alone once another program has
taken it (:mod:`hmd.linux.damon_ownership`).

``Kdamond`` monitors regions of processes' memory (Linux 6.6, CONFIG_DAMON_VADDR). A region read
from sysfs does not name its target, so each target has a scheme of its own, with the action
``stat``, which does nothing, and a filter for that target. The caller sets the regions: DAMON's
splitting is prevented, and its merging as far as possible. A changed setting costs one write (about
10 µs), a changed region two; reading waits for one or two aggregation intervals and costs about 10
µs per region.

``CacheKdamond`` demotes page cache without accesses, by the DAMOS action migrate_cold with the
filters ``anon`` and ``young`` (mm/damon/paddr.c; Linux 6.11, CONFIG_DAMON_PADDR): the kernel checks
accessed bits and reads of one page in each of up to a thousand regions, and moves file pages of
regions without any. Set-up takes some 30 writes, about 1 ms.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UnavailableError, unavailable_code
from hmd.linux.procfs import (
    PROC,
    ProcessId,
    absent,
    identify,
    read_int,
    read_stat,
    read_text,
    write_text,
)

KDAMONDS = "kernel/mm/damon/admin/kdamonds"
BUSY_S = 15.0
"""DAMON's files return EBUSY while another write waits, at most two aggregation intervals."""

EXCLUSIVE_MODULES: Final = ("damon_stat", "damon_reclaim", "damon_lru_sort")
"""Kernel features that run DAMON for themselves alone: damon_start() (mm/damon/core.c) then refuses
sysfs with EBUSY. DAMON_STAT_ENABLED_DEFAULT starts damon_stat at boot (Linux 6.17)."""

_RETRY_S = 0.01
_STATE_S = 0.1

Write = Callable[[Path, str], None]
Answer = TypeVar("Answer")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

PATIENCE = 16
"""Aggregation intervals that a read waits for at most."""

_MOST = 2**32 - 1
_NEVER_US = 3600 * 10**6
_REGIONS_LEAST = 3  # which damon_set_attrs() asks for
_MOST_BYTES = 2**64 - 1
REGIONS_LEAST, REGIONS_MOST = 10, 1000

CHECKS_PER_WINDOW: Final = 20
"""Checks of a region per aggregation."""

WINDOWS: Final = 2
"""Aggregations without an access after which a region counts as unused."""

_UPDATE_WINDOWS: Final = 10
_QUOTA_MS: Final = 1000


class DamonError(UnavailableError):
    """A failed write to DAMON's files; ``errno`` is the kernel's."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"DAMON: {what}: {_advice(code)}")
        self.errno = code
        self.exit_code = unavailable_code(code)


def _advice(code: int) -> str:
    match code:
        case errno.EACCES | errno.EPERM:
            return "not permitted: run hmd as root"
        case errno.EROFS:
            return (
                "/sys is read-only here: allow /sys/kernel/mm/damon (ReadWritePaths= in the unit)"
            )
        case errno.ENOENT:
            return "not in this kernel: it takes Linux 6.6 or newer with CONFIG_DAMON_VADDR"
        case errno.EBUSY:
            return "in use by another: stop damo, damon_reclaim, damon_lru_sort or damon_stat"
        case errno.EINVAL:
            return "refused by this kernel: it takes Linux 6.6 or newer with CONFIG_DAMON_VADDR"
        case _:
            return os.strerror(code)


class Kdamonds:
    """The kdamonds of this machine.

    ``write`` writes a pseudo file or raises OSError; after EBUSY it is called again for up to
    ``busy_s``.
    """

    def __init__(self, sysfs: Path, write: Write = write_text, busy_s: float = BUSY_S) -> None:
        self.path = sysfs / KDAMONDS
        self._modules = sysfs / "module"
        self._write = write
        self._busy_s = busy_s

    @property
    def count(self) -> int | None:
        """Number of kdamonds, None where this kernel has no DAMON or it may not be read."""
        return read_int(self.path / "nr_kdamonds")

    @property
    def is_forbidden(self) -> bool:
        """Whether this kernel has DAMON and this user may not read its files (mode 0600)."""
        return self.count is None and (self.path / "nr_kdamonds").exists()

    def exclusive_module(self) -> str | None:
        """Return the kernel feature that runs DAMON for itself alone, or None."""
        for name in EXCLUSIVE_MODULES:
            parameters = self._modules / name / "parameters"
            on = (read_text(parameters / "enabled") or "").strip() in ("Y", "1")
            if on and read_int(parameters / "kdamond_pid") != -1:
                return name
        return None

    def running(self) -> dict[int, int | None]:
        """Return the thread of each running kdamond, None for one whose files are busy."""
        return {i: self._thread(i, _STATE_S) for i in range(self.count or 0) if self.is_on(i)}

    def is_on(self, index: int) -> bool:
        """Return True while a kdamond runs, and where its files are busy."""
        try:
            return self._read(f"{index}/state", _STATE_S) == "on"
        except DamonError:
            return True

    def thread(self, index: int) -> int | None:
        """Return the pid of a kdamond's thread, None where it has none or its files are busy."""
        return self._thread(index, self._busy_s)

    def _thread(self, index: int, busy_s: float) -> int | None:
        try:
            pid = int(self._read(f"{index}/pid", busy_s) or -1)
        except DamonError:
            return None
        return pid if pid > 0 else None

    def configured(self) -> bool:
        """Return True where a program has set a kdamond up."""
        each = range(self.count or 0)
        return any(read_int(self.path / f"{i}/contexts/nr_contexts") for i in each)

    def set_count(self, count: int) -> None:
        """Replace all kdamonds by this many new ones. Raises DamonError."""
        self.write("nr_kdamonds", count)

    def identity(self, index: int) -> int | None:
        """Return a number that only this directory of the kdamond has: its inode number."""
        try:
            return (self.path / str(index)).stat().st_ino
        except OSError as error:
            if absent(error):
                return None
            raise

    def switch_off(self, index: int) -> None:
        """Stop a kdamond, our own or another program's, if it runs. Raises DamonError."""
        # It may end meanwhile, with its last target.
        deadline = time.monotonic() + self._busy_s
        while self.is_on(index):
            try:
                self.write(f"{index}/state", "off")
            except DamonError as error:
                if error.errno not in (errno.EINVAL, errno.EPERM):
                    raise
            if time.monotonic() > deadline:
                raise DamonError(errno.EBUSY, f"kdamond {index} does not stop")

    def write(self, name: str, value: object) -> None:
        """Write a file below ``kdamonds``; retries while it is busy. Raises DamonError."""
        path, text = self.path / name, str(value)
        _while_busy(lambda: self._write(path, text), self._busy_s, f"{name} = {text}")

    def _read(self, name: str, busy_s: float) -> str | None:
        return _while_busy(lambda: read_text(self.path / name), busy_s, name)


def _while_busy(ask: Callable[[], Answer], busy_s: float, what: str) -> Answer:
    """Return the answer; retries while it is EBUSY. Raises DamonError."""
    deadline = time.monotonic() + busy_s
    while True:
        try:
            return ask()
        except OSError as error:
            code = error.errno or errno.EIO
            if code != errno.EBUSY or time.monotonic() >= deadline:
                raise DamonError(code, what) from None
        time.sleep(_RETRY_S)


class KdamondThread:
    """The kdamond ``index``; while it is off, changes by other programs are left alone."""

    def __init__(self, kdamonds: Kdamonds, index: int = 0, proc: Path = PROC) -> None:
        self._all, self._index, self._proc = kdamonds, index, proc
        self._identity = kdamonds.identity(index)
        self._pid: int | None = None
        self._thread: ProcessId | None = None
        self._ticks = self._past_ticks = 0

    @property
    def running(self) -> bool:
        """True while it runs; it ends with its last target."""
        on = self._pid is not None and self._all.is_on(self._index)
        return on and self._all.thread(self._index) == self._pid

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's threads since the construction, in seconds."""
        if self._thread is not None:
            stat = read_stat(self._thread.pid, self._proc)
            if stat is not None and stat.process == self._thread:
                self._ticks = stat.cpu_ticks
        return (self._past_ticks + self._ticks) / _TICKS_PER_SECOND

    def check(self) -> None:
        """Raise DamonError, EBUSY, where another program has taken the kdamond, or a module DAMON.

        A start would be retried for ``BUSY_S`` otherwise.
        """
        if module := self._all.exclusive_module():
            raise DamonError(errno.EBUSY, f"{module} has it for itself alone")
        if self._all.is_on(self._index) or self._all.identity(self._index) != self._identity:
            raise DamonError(errno.EBUSY, "the kdamond of hmd has been taken")

    def start(self) -> None:
        """Switch it on, as its files are set up. Raises DamonError."""
        self._all.write(f"{self._index}/state", "on")
        self._pid = self._all.thread(self._index)
        # In a container /proc may not show it.
        self._thread = identify(self._pid, self._proc) if self._pid else None

    def stop(self) -> None:
        """Switch it off, if it runs; waits for a sampling interval. Raises DamonError."""
        self._past_ticks = round(self.cpu_s * _TICKS_PER_SECOND)
        if self.running:
            self._all.switch_off(self._index)
        self._pid, self._thread, self._ticks = None, None, 0


@dataclass(frozen=True, slots=True)
class Monitoring:
    """DAMON's intervals, in µs.

    Every ``sample_us`` DAMON checks one page of each region; the accesses found within
    ``aggregation_us`` are the region's count.
    """

    sample_us: int
    aggregation_us: int

    @property
    def max_accesses(self) -> int:
        """The count of a region whose page was accessed at every check."""
        return max(1, self.aggregation_us // self.sample_us)


@dataclass(frozen=True, slots=True)
class DamonRegions:
    """Regions of one process, by address; columns of shape ``(n,)``.

    ``start`` and ``end`` (exclusive) are addresses, ``accesses`` the checks that found an access.
    """

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    accesses: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        """Return the number of regions."""
        return len(self.start)

    @property
    def accessed(self) -> DamonRegions:
        """The regions that were accessed."""
        rows = self.accesses > 0
        return DamonRegions(self.start[rows], self.end[rows], self.accesses[rows])


_NOTHING = DamonRegions(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))


class Kdamond:
    """The first kdamond, which hmd has claimed: one context, one target and scheme per process.

    While it is off, changes by other programs are left alone. ``waited_s`` is the wait of the last
    read.
    """

    def __init__(
        self, kdamonds: Kdamonds, proc: Path = PROC, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.waited_s = 0.0
        self._clock = clock
        self._all = kdamonds
        self._folder = kdamonds.path / "0/contexts/0"
        self._thread = KdamondThread(kdamonds, proc=proc)
        self._staged: list[DamonRegions] = []
        self._targets_inode: int | None = None

    @property
    def running(self) -> bool:
        """True while it monitors; it ends with its last target."""
        return self._thread.running

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel threads since the construction, in seconds."""
        return self._thread.cpu_s

    def start(
        self, pids: Sequence[int], regions: Sequence[DamonRegions], monitoring: Monitoring
    ) -> None:
        """Monitor these regions of these processes and no others.

        Raises DamonError: EINVAL also where a process has exited, EBUSY where another program has
        taken the kdamond.
        """
        self.stop()
        self._thread.check()
        self._stage(pids, regions, monitoring)
        self._thread.start()

    def _stage(
        self, pids: Sequence[int], regions: Sequence[DamonRegions], monitoring: Monitoring
    ) -> None:
        """Write all settings; regions only where they changed since the last write."""
        there, self._staged = self._staged, []  # until all is written
        write, context = self._all.write, "0/contexts/0"
        if len(there) != len(pids) or self._targets_inode != self._inode():
            write("0/contexts/nr_contexts", 1)
            write(f"{context}/targets/nr_targets", len(pids))
            there = [_NOTHING] * len(pids)
            self._targets_inode = self._inode()
        write(f"{context}/operations", "vaddr")
        intervals = f"{context}/monitoring_attrs/intervals"
        write(f"{intervals}/sample_us", monitoring.sample_us)
        write(f"{intervals}/aggr_us", monitoring.aggregation_us)
        write(f"{intervals}/update_us", _NEVER_US)
        # DAMON halves its regions while they are no more than half of the most, and merges
        # neighbours that are alike where they are smaller together than all memory over the fewest.
        limits = f"{context}/monitoring_attrs/nr_regions"
        count = max(_REGIONS_LEAST, 2 * sum(map(len, regions)) - 1)
        write(f"{limits}/max", count)
        write(f"{limits}/min", count)
        write(f"{context}/schemes/nr_schemes", len(pids))
        for index, (pid, its) in enumerate(zip(pids, regions, strict=True)):
            target = f"{context}/targets/{index}"
            write(f"{target}/pid_target", pid)
            self._set_regions(f"{target}/regions", its, there[index])
            self._tell_all(f"{context}/schemes/{index}", index)
        self._staged = list(regions)

    def _inode(self) -> int | None:
        """Return the inode number of the first target's directory, which is never reused."""
        try:
            return (self._folder / "targets/0").stat().st_ino
        except OSError as error:
            if absent(error):
                return None
            raise

    def _set_regions(self, folder: str, regions: DamonRegions, there: DamonRegions) -> None:
        write = self._all.write
        if len(regions) != len(there):
            write(f"{folder}/nr_regions", len(regions))
            changed = np.arange(len(regions))
        else:
            changed = np.flatnonzero((regions.start != there.start) | (regions.end != there.end))
        for i in changed.tolist():
            write(f"{folder}/{i}/start", int(regions.start[i]))
            write(f"{folder}/{i}/end", int(regions.end[i]))

    def _tell_all(self, scheme: str, target: int) -> None:
        """Make a scheme apply to all regions of one target, with no action."""
        write = self._all.write
        write(f"{scheme}/action", "stat")
        pattern = f"{scheme}/access_pattern"
        write(f"{pattern}/sz/max", _MOST_BYTES)
        write(f"{pattern}/nr_accesses/max", _MOST)
        write(f"{pattern}/age/max", _MOST)
        write(f"{scheme}/filters/nr_filters", 1)
        filtered = f"{scheme}/filters/0"
        write(f"{filtered}/type", "target")
        write(f"{filtered}/damon_target_idx", target)
        # Regions that do not match are left out.
        write(f"{filtered}/matching", "N")

    def stop(self) -> None:
        """Stop monitoring. Raises DamonError."""
        self._thread.stop()

    def read_regions(self) -> list[DamonRegions] | None:
        """Return the regions of each target, counted in the aggregation that ends then.

        Waits for its end. Returns no regions where the kernel takes longer than ``PATIENCE`` times
        the expected time, None where the kdamond does not run. Raises DamonError.
        """
        begun_s = self._clock()
        found: list[DamonRegions] = []
        # The kernel gives up after two aggregation intervals.
        for _ in range(PATIENCE // 2):
            try:
                self._all.write("0/state", "update_schemes_tried_regions")
            except DamonError as error:
                if error.errno in (errno.EINVAL, errno.EPERM) and not self.running:
                    return None
                raise
            self.waited_s = self._clock() - begun_s
            found = [self._regions(target, its) for target, its in enumerate(self._staged)]
            if any(map(len, found)):
                break
        return found

    def _regions(self, target: int, staged: DamonRegions) -> DamonRegions:
        folder = self._folder / f"schemes/{target}/tried_regions"
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return _NOTHING
        try:
            names = [name for name in os.listdir(fd) if name.isdigit()]  # noqa: PTH208
            names.sort(key=int)
            accesses = _column(fd, names, "nr_accesses").astype(np.uint32)
            if len(names) == len(staged):  # none have been merged
                return DamonRegions(staged.start, staged.end, accesses)
            return DamonRegions(_column(fd, names, "start"), _column(fd, names, "end"), accesses)
        except (FileNotFoundError, NotADirectoryError):
            return _NOTHING
        finally:
            os.close(fd)


def _column(folder: int, names: list[str], file: str) -> npt.NDArray[np.uint64]:
    return np.array([_number(folder, f"{name}/{file}") for name in names], np.uint64)


def _number(folder: int, name: str) -> int:
    # Thousands a second: a Path and a resolved prefix each would cost more than the kernel does.
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return int(os.read(fd, 32))
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class CacheWatch:
    """Page cache without access for ``age_s`` is demoted.

    At most ``bytes_per_s`` are visited per second, in ``cpu_share`` of a CPU's time.
    """

    age_s: float
    bytes_per_s: int
    cpu_share: float


class CacheKdamond:
    """The kdamond ``index`` of those that hmd has claimed."""

    def __init__(self, kdamonds: Kdamonds, index: int, proc: Path = PROC) -> None:
        self._all, self._folder = kdamonds, f"{index}/contexts"
        self._thread = KdamondThread(kdamonds, index, proc)

    @property
    def running(self) -> bool:
        """True while it demotes."""
        return self._thread.running

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's thread so far, in seconds."""
        return self._thread.cpu_s

    def start(self, ranges: Sequence[tuple[int, int]], to_node: int, watch: CacheWatch) -> None:
        """Demote page cache in these physical addresses to a node; raises DamonError."""
        self._thread.stop()
        self._thread.check()
        self._all.write(f"{self._folder}/nr_contexts", 1)
        self._set_monitoring(watch.age_s)
        self._set_ranges(ranges)
        self._set_scheme(to_node, watch)
        self._thread.start()

    def stop(self) -> None:
        """Stop it; raises DamonError."""
        self._thread.stop()

    def _set_monitoring(self, age_s: float) -> None:
        window_us = max(1, round(age_s * 1e6 / WINDOWS))
        self._write(
            {
                "operations": "paddr",
                "monitoring_attrs/intervals/sample_us": max(1, window_us // CHECKS_PER_WINDOW),
                "monitoring_attrs/intervals/aggr_us": window_us,
                "monitoring_attrs/intervals/update_us": _UPDATE_WINDOWS * window_us,
                "monitoring_attrs/nr_regions/max": REGIONS_MOST,
                "monitoring_attrs/nr_regions/min": REGIONS_LEAST,
            }
        )

    def _set_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        regions = "targets/0/regions"
        self._write({"targets/nr_targets": 1, f"{regions}/nr_regions": len(ranges)})
        for index, (start, end) in enumerate(ranges):
            self._write({f"{regions}/{index}/start": start, f"{regions}/{index}/end": end})

    def _set_scheme(self, to_node: int, watch: CacheWatch) -> None:
        scheme = "schemes/0"
        self._write(
            {
                "schemes/nr_schemes": 1,
                f"{scheme}/action": "migrate_cold",
                f"{scheme}/target_nid": to_node,
                f"{scheme}/access_pattern/sz/max": _MOST_BYTES,
                f"{scheme}/access_pattern/nr_accesses/max": 0,
                f"{scheme}/access_pattern/age/min": WINDOWS,
                f"{scheme}/access_pattern/age/max": _MOST,
                f"{scheme}/quotas/bytes": watch.bytes_per_s * _QUOTA_MS // 1000,
                f"{scheme}/quotas/ms": max(1, round(watch.cpu_share * _QUOTA_MS)),
                f"{scheme}/quotas/reset_interval_ms": _QUOTA_MS,
                f"{scheme}/filters/nr_filters": 2,
            }
        )
        for index, kind in enumerate(("anon", "young")):  # pages that match are left alone
            kept = f"{scheme}/filters/{index}"
            self._write({f"{kept}/type": kind, f"{kept}/matching": "Y"})

    def _write(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            self._all.write(f"{self._folder}/0/{name}", value)
