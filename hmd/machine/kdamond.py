"""Our own kdamond: regions of processes' memory with a count of accesses.

Takes pids, gives for each of them regions of its address space with a count of accesses
(Documentation/admin-guide/mm/damon/usage.rst; Linux 6.6 or newer, CONFIG_DAMON_VADDR). Regions
that were read do not say of which target they are, so each target has a scheme of its own, with
the action ``stat``, which does nothing, and a filter for that target.

Settings cost a write each (some 10 µs), a look at the regions waits for one or two aggregation
intervals and costs about 20 µs a region. Who may use DAMON is ``damon_claim``'s matter.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.damon import DamonError, Kdamonds
from hmd.machine.process import PROC, ProcessId, identify, read_stat

_MOST = 2**32 - 1
_MOST_BYTES = 2**64 - 1
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Monitoring:
    """How DAMON looks: intervals in µs, and how many regions there are over all targets.

    Each ``sample_us`` one page of each region is looked at; what was seen in ``aggregation_us``
    is the region's count. ``update_us``: mappings are looked up this often.
    """

    sample_us: int
    aggregation_us: int
    update_us: int
    regions_min: int = 10
    regions_max: int = 400

    @property
    def most_accesses(self) -> int:
        """The count of a region whose page was seen accessed at each look."""
        return max(1, self.aggregation_us // self.sample_us)


@dataclass(frozen=True, slots=True)
class Regions:
    """Regions of one process with accesses, by address; columns of shape ``(n,)``.

    ``start`` and ``end`` (exclusive) are addresses, ``accesses`` looks that found an access.
    """

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    accesses: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        """Return the number of regions."""
        return len(self.start)


class Kdamond:
    """The first kdamond, which is ours: one context, a target and a scheme a process.

    What another does with it while it is off is left alone.
    """

    def __init__(self, kdamonds: Kdamonds, proc: Path = PROC) -> None:
        self._all = kdamonds
        self._proc = proc
        self._folder = kdamonds.path / "0/contexts/0"
        self._identity = kdamonds.identity(0)
        self._pid: int | None = None
        self._thread: ProcessId | None = None
        self._ticks = 0
        self._past_ticks = 0
        self._targets = 0

    @property
    def running(self) -> bool:
        """True while it monitors; it ends by itself with its last target."""
        return self._pid is not None and self._all.is_on(0) and self._all.thread(0) == self._pid

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's threads since this object was made, in seconds."""
        if self._thread is not None:
            stat = read_stat(self._thread.pid, self._proc)
            if stat is not None and stat.process == self._thread:
                self._ticks = stat.cpu_ticks
        return (self._past_ticks + self._ticks) / _TICKS_A_SECOND

    def start(self, pids: Sequence[int], monitoring: Monitoring) -> None:
        """Monitor these processes and no others; regions are found anew.

        Raises DamonError: EINVAL also where one of them has gone, EBUSY where the kdamond has
        become another's.
        """
        self.stop()
        if self._all.is_on(0) or self._all.identity(0) != self._identity:
            raise DamonError(errno.EBUSY, "the kdamond of hmd has been taken")
        write = self._all.write
        write("0/contexts/nr_contexts", 1)
        context = "0/contexts/0"
        write(f"{context}/operations", "vaddr")
        intervals = f"{context}/monitoring_attrs/intervals"
        write(f"{intervals}/sample_us", monitoring.sample_us)
        write(f"{intervals}/aggr_us", monitoring.aggregation_us)
        write(f"{intervals}/update_us", monitoring.update_us)
        regions = f"{context}/monitoring_attrs/nr_regions"
        write(f"{regions}/max", max(monitoring.regions_max, monitoring.regions_min * len(pids)))
        write(f"{regions}/min", monitoring.regions_min)
        write(f"{context}/targets/nr_targets", len(pids))
        write(f"{context}/schemes/nr_schemes", len(pids))
        for index, pid in enumerate(pids):
            write(f"{context}/targets/{index}/pid_target", pid)
            self._tell_accessed(f"{context}/schemes/{index}", index)
        write("0/state", "on")
        self._targets = len(pids)
        self._pid = self._all.thread(0)
        # In a container /proc may not show it.
        self._thread = identify(self._pid, self._proc) if self._pid else None

    def _tell_accessed(self, scheme: str, target: int) -> None:
        """Let a scheme take all regions of one target that were accessed, to do nothing."""
        write = self._all.write
        write(f"{scheme}/action", "stat")
        pattern = f"{scheme}/access_pattern"
        write(f"{pattern}/sz/max", _MOST_BYTES)
        write(f"{pattern}/nr_accesses/min", 1)
        write(f"{pattern}/nr_accesses/max", _MOST)
        write(f"{pattern}/age/max", _MOST)
        write(f"{scheme}/filters/nr_filters", 1)
        filtered = f"{scheme}/filters/0"
        write(f"{filtered}/type", "target")
        write(f"{filtered}/damon_target_idx", target)
        # What does not match is left out.
        write(f"{filtered}/matching", "N")

    def stop(self) -> None:
        """Stop monitoring. Raises DamonError."""
        self._past_ticks = round(self.cpu_s * _TICKS_A_SECOND)
        if self.running:
            self._all.switch_off(0)
        self._pid, self._thread, self._ticks = None, None, 0

    def look(self) -> list[Regions] | None:
        """Return the regions of each target that were accessed in the aggregation that ends now.

        Waits for that. None where it does not run (any more). Raises DamonError.
        """
        try:
            self._all.write("0/state", "update_schemes_tried_regions")
        except DamonError as error:
            if error.errno in (errno.EINVAL, errno.EPERM) and not self.running:
                return None
            raise
        return [self._regions(target) for target in range(self._targets)]

    def _regions(self, target: int) -> Regions:
        folder = self._folder / f"schemes/{target}/tried_regions"
        rows: list[tuple[int, int, int]] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                names = [name for name in os.listdir(fd) if name.isdigit()]  # noqa: PTH208
                rows = [_region(fd, name) for name in names]
            finally:
                os.close(fd)
        rows.sort()
        columns = np.array(rows, np.uint64).reshape(len(rows), 3)
        return Regions(columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].astype(np.uint32))


def _region(folder: int, name: str) -> tuple[int, int, int]:
    return (
        _number(folder, f"{name}/start"),
        _number(folder, f"{name}/end"),
        _number(folder, f"{name}/nr_accesses"),
    )


def _number(folder: int, name: str) -> int:
    # Thousands a second: a Path and a resolved prefix each would cost more than the kernel does.
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return int(os.read(fd, 32))
    finally:
        os.close(fd)
