"""hmd's own kdamond: regions of processes' memory with access counts.

Takes pids, gives for each the regions of its address space with their access counts
(Documentation/admin-guide/mm/damon/usage.rst; Linux 6.6 or newer, CONFIG_DAMON_VADDR). A region
read from sysfs does not name its target, so each target has a scheme of its own, with the action
``stat``, which does nothing, and a filter for that target.

The caller sets the regions: DAMON's splitting is prevented, and its merging as far as possible.

A changed setting costs one write (about 10 µs), a changed region two. Reading the regions waits for
one or two aggregation intervals and costs about 10 µs per region. Exclusive use of DAMON is the
subject of ``damon_ownership``.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.damon.damon_sysfs import DamonError, Kdamonds
from hmd.machine.damon.kdamond_thread import KdamondThread
from hmd.machine.process_id import PROC
from hmd.machine.procfs import absent

PATIENCE = 16
"""Aggregation intervals that a read waits for at most."""

_MOST = 2**32 - 1
_NEVER_US = 3600 * 10**6
_REGIONS_LEAST = 3  # which damon_set_attrs() asks for
_MOST_BYTES = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Monitoring:
    """DAMON's intervals, in µs.

    Every ``sample_us`` DAMON checks one page of each region; the accesses found within
    ``aggregation_us`` are the region's count.
    """

    sample_us: int
    aggregation_us: int

    @property
    def most_accesses(self) -> int:
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
