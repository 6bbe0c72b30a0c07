# SPDX-License-Identifier: MIT
"""Private pages that forks have in common (copy on write) are counted, and moved, once.

To a family of forks such pages (:mod:`hmd.linux.resident_pages`) are as those of one file that all
of them map, with addresses for offsets: a page counts in the first process that is found to have
it, and a fork takes none from older processes: it waits until all of these were swept after the
last fork of the family. A page that a process has written since is its own, and counts there. With
forks, about 0.2 µs per page that a sweep asks for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from hmd.base.units import PAGE_BYTES
from hmd.heat.table import HeatTable
from hmd.linux.mappings import FileKey, SharedRange
from hmd.linux.procfs import ProcessId
from hmd.linux.resident_pages import ResidentPart
from hmd.residency.shared_pages import MAX_PAGE_UNITS, SharedPages
from hmd.sample.access_batch import AccessBatch

_ADDRESSES_END: Final = (1 << 56) - PAGE_BYTES
_DEVICE: Final = b"fork"
"""No device: those of files are numbers."""

_Age: TypeAlias = tuple[int, int]
"""Start time and pid: less for an older process."""


@dataclass(slots=True)
class _Family:
    """Its members by age; ``forks`` counts those that joined.

    ``swept`` has what ``forks`` was when the last complete sweep of a member began. All members
    before place ``settled`` are settled.
    """

    members: list[_Age] = field(default_factory=list)
    forks: int = 0
    settled: int = 0
    swept: dict[_Age, int] = field(default_factory=dict)


class ForkFamilies:
    """The families of tracked processes, by what their members have in common."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._key: dict[ProcessId, str] = {}
        self._begun: dict[ProcessId, int] = {}

    def join(self, process: ProcessId, key: str) -> None:
        """Put a process into a family, into none for an empty key."""
        if self._key.get(process, "") == key:
            return
        self.leave(process)
        if key:
            family = self._families.setdefault(key, _Family())
            insort(family.members, _age(process))
            family.forks += 1
            family.settled = 0
            self._key[process] = key

    def leave(self, process: ProcessId) -> None:
        """Take a process out of its family."""
        key = self._key.pop(process, "")
        self._begun.pop(process, None)
        if not key:
            return
        family, age = self._families[key], _age(process)
        place = bisect_left(family.members, age)
        del family.members[place]
        family.swept.pop(age, None)
        family.settled -= place < family.settled
        if not family.members:
            del self._families[key]

    def retain_processes(self, processes: Iterable[ProcessId]) -> set[str]:
        """Forget all other processes; return their families."""
        gone = self._key.keys() - set(processes)
        families = {self._key[process] for process in gone}
        for process in gone:
            self.leave(process)
        return families

    def key(self, process: ProcessId) -> str:
        """Return the family of a process that has others in it; else nothing."""
        key = self._key.get(process, "")
        return key if key and len(self._families[key].members) > 1 else ""

    def members_of(self, key: str, size: int) -> list[ProcessId]:
        """Return the members of a family of that size, the oldest first; else nothing."""
        family = self._families.get(key)
        if family is None or len(family.members) != size:
            return []
        return [ProcessId(pid, start) for start, pid in family.members]

    def begin_sweep(self, process: ProcessId) -> None:
        """Note that a sweep of a process begins."""
        key = self._key.get(process)
        if key is not None:
            self._begun[process] = self._families[key].forks

    def end_sweep(self, process: ProcessId) -> None:
        """Note that it is complete."""
        begun = self._begun.pop(process, None)
        if begun is not None:
            self._families[self._key[process]].swept[_age(process)] = begun

    def waits(self, process: ProcessId) -> bool:
        """Return whether an older process of its family is not settled yet."""
        family = self._families[self._key[process]]
        members, swept = family.members, family.swept
        while family.settled < len(members):
            if swept.get(members[family.settled]) != family.forks:
                break
            family.settled += 1
        return family.settled < len(members) and members[family.settled] < _age(process)


def _age(process: ProcessId) -> _Age:
    return process.start_ticks, process.pid


class ForkedPages:
    """Which process of a family of forks counts each page that several have.

    ``families`` are told of sweeps, ``pages`` of what they find.
    """

    def __init__(self, units: int = MAX_PAGE_UNITS) -> None:
        self.pages, self.families = SharedPages(units), ForkFamilies()
        self._processes: tuple[ProcessId, ...] = ()

    def retain_processes(self, processes: tuple[ProcessId, ...]) -> list[ProcessId]:
        """Forget other processes: what they counted counts nowhere until it is found.

        Returns processes whose last fork is gone, whose pages are all their own now.
        """
        if processes is self._processes:
            return []
        self._processes = processes
        self.pages.retain_processes(processes)
        return [
            alone
            for family in self.families.retain_processes(processes)
            for alone in self._left(family)
        ]

    def join(self, process: ProcessId, family: str) -> None:
        """Set the family of a process, none for an empty name."""
        before = self.families.key(process)
        self.families.join(process, family)
        if before and before != self.families.key(process):
            self.pages.set_mappings(process, ())
            self._left(before)
        if before == family or not self.families.key(process):
            return
        self.pages.set_mappings(process, [_view(family)])
        for other in self.families.members_of(family, 2):  # of whom one was alone before
            self.pages.set_mappings(other, [_view(family)])

    def has_family(self, process: ProcessId) -> bool:
        """Return whether a process has forks, or is one of several."""
        return self.pages.shares(process)

    def select_owned(
        self, heat: HeatTable, slot: int, start: int, part: ResidentPart
    ) -> ResidentPart:
        """Return the pages of a part that a process counts; several processes map all of them.

        While older processes have not settled, it counts those alone that it did before.
        """
        process = heat.processes[slot]
        part = self.pages.select_owned(process, start, part)
        if not self.families.waits(process):
            return part
        pages, huge = (
            one[heat.nodes_at(np.full(len(one), slot, np.int32), one) >= 0]
            for one in (part.pages, part.huge)
        )
        return ResidentPart(pages, huge, part.until)

    def attribute_to_owner(self, batch: AccessBatch, heat: HeatTable) -> AccessBatch:
        """Return samples as if each page were accessed by the process that counts it.

        A page that the sampled process has of its own counts there.
        """
        folded = self.pages.attribute_to_owner(batch)
        if folded is batch:
            return batch
        moved = np.flatnonzero(folded.process != batch.process)
        back = moved[heat.nodes_at(batch.process[moved], batch.address[moved]) >= 0]
        folded.process[back] = batch.process[back]
        return folded

    def _left(self, family: str) -> list[ProcessId]:
        """Forget what the last process of a family counts, and return it."""
        members = self.families.members_of(family, 1)
        for alone in members:
            self.pages.set_mappings(alone, ())
        return members


def _view(family: str) -> SharedRange:
    """Return all addresses of a family, as a mapping of a file."""
    return SharedRange(0, _ADDRESSES_END, 0, FileKey(_DEVICE, 1, family))
