"""Pages of 1 GiB that cannot move: those of hugetlbfs without a free one in a node's pool.

move_pages(2) fails with ENOMEM for such a page as it does on a full node
(:mod:`hmd.machine.nodes.hugetlb_pools`). The two differ in the size of the page, in
/proc/PID/numa_maps, and the free pages of the node's pool. numa_maps walks the process's page
tables, so it is read only where the node has none free and the process has such pages, of which the
pool bounds the number: HugetlbPages in /proc/PID/status, which costs the same for any process.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.machine.pages.mappings import read_mappings
from hmd.machine.process_id import PROC, ProcessId
from hmd.machine.procfs import read_bytes, read_int
from hmd.units import GIB, KIB

_SYSFS: Final = Path("/sys")
_POOL: Final = f"hugepages/hugepages-{GIB // KIB}kB"
_GIGANTIC: Final = re.compile(
    rb"^([0-9a-f]+) .*\bkernelpagesize_kB=%d$" % (GIB // KIB), re.MULTILINE
)
_HUGETLB: Final = re.compile(rb"^HugetlbPages:\s+([0-9]+) kB$", re.MULTILINE)


class GiganticPages:
    """Says which pages of a process are of 1 GiB and find none free on a node."""

    def __init__(self, proc: Path = PROC, sysfs: Path = _SYSFS) -> None:
        self._proc, self._nodes = proc, sysfs / "devices/system/node"

    def __call__(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64], node: int
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the shape of the addresses."""
        lacking = np.zeros(len(addresses), np.bool_)
        if not self._are_used() or read_int(self._nodes / f"node{node}" / _POOL / "free_hugepages"):
            return lacking
        if not self._has_hugetlb(process.pid):
            return lacking
        starts = self._mapping_starts(process.pid)
        mappings = read_mappings(process.pid, self._proc) if len(starts) else None
        if mappings is None or not len(mappings):
            return lacking
        row = np.searchsorted(mappings.start, addresses, side="right").astype(np.intp) - 1
        inside = (row >= 0) & (addresses < mappings.end[row])
        lacking[inside] = np.isin(mappings.start[row[inside]], starts)
        return lacking

    def _are_used(self) -> bool:
        """Return whether any node has such pages."""
        return any(read_int(path) for path in self._nodes.glob(f"node*/{_POOL}/nr_hugepages"))

    def _has_hugetlb(self, pid: int) -> bool:
        """Return whether a process has 1 GiB of hugetlbfs pages or more."""
        found = _HUGETLB.search(read_bytes(self._proc / str(pid) / "status") or b"")
        return found is not None and int(found[1]) >= GIB // KIB

    def _mapping_starts(self, pid: int) -> npt.NDArray[np.uint64]:
        """Return the starts of the mappings that have such pages, ascending."""
        text = read_bytes(self._proc / str(pid) / "numa_maps") or b""
        return np.array([int(start, 16) for start in _GIGANTIC.findall(text)], np.uint64)
