"""Processes that share an address space, which is tracked for the first of them.

Takes an order of address spaces, such as kcmp(2) has, and gives the process that each process's
pages and samples count for. A process costs one comparison, a new one as many as bisection takes:
14 of 10,000 processes. A process that executes a program has another address space, which is
noticed when it is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.machine.process_id import ProcessId

Compare: TypeAlias = Callable[[ProcessId, ProcessId], int | None]
"""Returns 0 for one address space, else the sign of an order; None where that is not known."""


class SpaceOwners:
    """The first process of each address space.

    ``_ordered`` are the owners by address space, as they were when they were last asked for: an
    owner that has executed a program since may be out of order, so that others are not found until
    it is asked for. Only a comparison makes a process another's.
    """

    def __init__(self, compare: Compare) -> None:
        self._compare = compare
        self._ordered: list[ProcessId] = []
        self._owner: dict[ProcessId, ProcessId] = {}
        self._processes: tuple[ProcessId, ...] = ()
        self._slots: npt.NDArray[np.int32] | None = None

    def keep(self, processes: Sequence[ProcessId]) -> None:
        """Forget other processes; those that shared their address spaces are asked for again."""
        self._processes, self._slots = tuple(processes), None
        tracked = set(processes)
        self._ordered = [process for process in self._ordered if process in tracked]
        self._owner = {
            process: owner
            for process, owner in self._owner.items()
            if process in tracked and owner in tracked
        }

    def known(self, process: ProcessId) -> ProcessId | None:
        """Return what ``find`` last returned of a process."""
        return self._owner.get(process)

    def find(self, process: ProcessId) -> ProcessId:
        """Return the process that the address space of a process is tracked for: often itself."""
        known = self._owner.get(process)
        if known is not None and known != process and self._compare(process, known) == 0:
            return known
        place, owner = self._search(process)
        if known == process:
            if place < len(self._ordered) and self._ordered[place] == process:
                return process
            self._ordered.remove(process)
            place, owner = self._search(process)
        if owner == process:
            self._ordered.insert(place, process)
        self._owner[process], self._slots = owner, None
        return owner

    def slots(self) -> npt.NDArray[np.int32] | None:
        """Return the owner of each process, both as places in ``keep``; None if all are their own.

        Shape ``(processes,)``.
        """
        if len(self._ordered) == len(self._owner):
            return None
        if self._slots is None:
            place = {process: slot for slot, process in enumerate(self._processes)}
            self._slots = np.array(
                [place[self._owner.get(process, process)] for process in self._processes], np.int32
            )
        return self._slots

    def _search(self, process: ProcessId) -> tuple[int, ProcessId]:
        """Return the place of a process among the owners, and the owner with its address space."""
        low, high = 0, len(self._ordered)
        while low < high:
            middle = (low + high) // 2
            other = self._ordered[middle]
            order = 0 if other == process else self._compare(process, other)
            if order == 0:
                return middle, other
            if order is not None and order < 0:
                high = middle
            else:
                low = middle + 1
        return low, process
