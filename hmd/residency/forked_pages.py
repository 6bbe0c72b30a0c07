"""Private pages that forks have in common (copy on write) are counted, and moved, once.

Takes which pages of a process several map (:mod:`hmd.machine.pages.page_sharing`). To a family of
forks (:mod:`hmd.residency.fork_families`) such pages are as those of one file that all of them map,
with addresses for offsets: a page counts in the first process that is found to have it, and a fork
takes none from older processes. A page that a process has written since is its own, and counts
there.

Costs nothing without forks; with them, about 0.2 µs per page that a sweep asks for.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.heat_table import HeatTable
from hmd.machine.pages.resident_pages import ResidentPart
from hmd.machine.pages.shared_ranges import FileKey, SharedRange
from hmd.machine.process_id import ProcessId
from hmd.residency.fork_families import ForkFamilies
from hmd.residency.page_claims import DETAILS_MOST
from hmd.residency.shared_pages import SharedPages
from hmd.sample.access_batch import AccessBatch
from hmd.units import PAGE_BYTES

Addresses = npt.NDArray[np.uint64]

_ADDRESSES_END: Final = (1 << 56) - PAGE_BYTES
_DEVICE: Final = b"fork"
"""No device: those of files are numbers."""


class ForkedPages:
    """Which process of a family of forks counts each page that several have."""

    def __init__(self, units: int = DETAILS_MOST) -> None:
        """Count pages one by one in so many 2 MiB of families."""
        self._pages, self._families = SharedPages(units), ForkFamilies()
        self._processes: tuple[ProcessId, ...] = ()

    def keep(self, processes: tuple[ProcessId, ...]) -> list[ProcessId]:
        """Forget other processes: what they counted counts nowhere until it is found.

        Returns processes whose last fork is gone, whose pages are all their own now.
        """
        if processes is self._processes:
            return []
        self._processes = processes
        self._pages.keep(processes)
        return [alone for family in self._families.keep(processes) for alone in self._left(family)]

    def join(self, process: ProcessId, family: str) -> None:
        """Set the family of a process, none for an empty name."""
        before = self._families.key(process)
        self._families.join(process, family)
        if before and before != self._families.key(process):
            self._pages.take(process, ())
            self._left(before)
        if before == family or not self._families.key(process):
            return
        self._pages.take(process, [_view(family)])
        for other in self._families.pair(family):
            self._pages.take(other, [_view(family)])

    def follows(self, process: ProcessId) -> bool:
        """Return whether a process has forks, or is one of several."""
        return self._pages.shares(process)

    def begun(self, process: ProcessId) -> None:
        """Note that a sweep of a process begins."""
        self._families.begun(process)

    def swept(self, process: ProcessId) -> None:
        """Note that it is complete."""
        self._families.swept(process)

    def own(self, heat: HeatTable, slot: int, start: int, part: ResidentPart) -> ResidentPart:
        """Return the pages of a part that a process counts; several processes map all of them.

        While older processes have not settled, it counts those alone that it did before.
        """
        process = heat.processes[slot]
        part = self._pages.own(process, start, part)
        if not self._families.waits(process):
            return part
        pages, huge = (
            one[heat.nodes_at(np.full(len(one), slot, np.int32), one) >= 0]
            for one in (part.pages, part.huge)
        )
        return ResidentPart(pages, huge, part.until)

    def claim(self, process: ProcessId, span: tuple[int, int], part: ResidentPart) -> None:
        """Note that a process counts the pages of a part, and no others of a span."""
        self._pages.claim(process, span, part)

    def fold(self, batch: AccessBatch, heat: HeatTable) -> AccessBatch:
        """Return samples as if each page were accessed by the process that counts it.

        A page that the sampled process has of its own counts there.
        """
        folded = self._pages.fold(batch)
        if folded is batch:
            return batch
        moved = np.flatnonzero(folded.process != batch.process)
        back = moved[heat.nodes_at(batch.process[moved], batch.address[moved]) >= 0]
        folded.process[back] = batch.process[back]
        return folded

    def _left(self, family: str) -> list[ProcessId]:
        """Forget what the last process of a family counts, and return it."""
        alone = self._families.alone(family)
        for process in alone:
            self._pages.take(process, ())
        return alone


def _view(family: str) -> SharedRange:
    """Return all addresses of a family, as a mapping of a file."""
    return SharedRange(0, _ADDRESSES_END, 0, FileKey(_DEVICE, 1, family))
