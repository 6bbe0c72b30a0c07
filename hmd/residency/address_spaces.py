# SPDX-License-Identifier: MIT
"""Address spaces as the sweep needs them: where pages may be, which are large, which are shared.

A process may have 65,530 mappings and more, and a daemon tracks thousands of processes, so the
sweep keeps a summary of at most 48 KiB per address space instead of mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.settings import CHUNK_BYTES
from hmd.linux.huge_pages import huge_throughout
from hmd.linux.mappings import (
    PROCESS_MOST,
    MappingKind,
    Mappings,
    SharedRange,
    range_bytes,
    runs_guests,
)
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import ProcessId
from hmd.linux.targets import SafeRegex

Addresses: TypeAlias = npt.NDArray[np.uint64]
Patterns: TypeAlias = tuple[SafeRegex, ...]
Run: TypeAlias = tuple[int, int]
"""First and last chunk number of a run of chunks."""

MAX_RUNS: Final = 256
"""Runs of a summary; beyond it, the smallest gaps between runs count as mapped."""
MAX_ZONES: Final = 1024
"""Changes between movable and unmovable; beyond it, pages are unmovable."""


@dataclass(frozen=True, slots=True)
class AddressSpaceSummary:
    """Where a process may have pages.

    ``runs`` are ascending and disjoint. ``edges``, shape ``(k,)``, are the addresses at which
    pages begin to be ``movable`` or cease to be. What lies between two mappings belongs to the
    first: it has no pages.
    """

    runs: list[Run]
    edges: Addresses
    movable: npt.NDArray[np.bool_]

    def movable_at(self, addresses: Addresses) -> npt.NDArray[np.bool_]:
        """Return for each address whether its page may be moved; shape as ``addresses``."""
        if not len(self.edges):
            return np.zeros(len(addresses), np.bool_)
        zone = np.searchsorted(self.edges, addresses, side="right") - 1
        return (zone >= 0) & self.movable[zone]


@dataclass(frozen=True, slots=True)
class SummaryPart:
    """What a summary needs of some mappings; columns of shape ``(n,)`` in order of address."""

    start: Addresses
    end: Addresses
    movable: npt.NDArray[np.bool_]


def accessible_part(mappings: Mappings) -> SummaryPart:
    """Return the mappings that may have pages: neither only reserved nor the kernel's."""
    useful = mappings.accessible & (mappings.kind != MappingKind.SPECIAL)
    return SummaryPart(mappings.start[useful], mappings.end[useful], mappings.movable[useful])


class SummaryReading:
    """Mappings of one process that are being read, over as many steps as it takes."""

    def __init__(
        self,
        process: ProcessId,
        pieces: Generator[Mappings, None, None],
        kept: Patterns,
    ) -> None:
        """Own the pieces; mappings whose path matches one of ``kept`` are unmovable."""
        self.process, self.parts = process, list[SummaryPart]()
        self.shared: list[SharedRange] = []
        self.runs_guests = False
        self._pieces, self._kept = pieces, kept
        self._huge: list[Addresses] = []

    def read(self, over: Callable[[], bool]) -> bool:
        """Read pieces until there are no more or ``over``; return whether all are read."""
        for piece in self._pieces:
            self.parts.append(accessible_part(piece.keeping(self._kept) if self._kept else piece))
            self._huge.append(huge_throughout(piece))
            self.runs_guests |= runs_guests(piece.path)
            self.shared = nlargest(PROCESS_MOST, [*self.shared, *piece.shared], key=range_bytes)
            if over():
                return False
        return True

    def summarise(self) -> tuple[AddressSpaceSummary, Addresses]:
        """Return the summary of what was read, and the huge pages that its details show."""
        return summarise_space(self.parts), np.concatenate(self._huge)

    def close(self) -> None:
        """Stop reading."""
        self._pieces.close()


def summarise_space(parts: Sequence[SummaryPart]) -> AddressSpaceSummary:
    """Return the summary of an address space, whose parts come in order of address."""
    if not parts:
        return AddressSpaceSummary([], np.empty(0, np.uint64), np.empty(0, np.bool_))
    start, end = (np.concatenate([getattr(p, name) for p in parts]) for name in ("start", "end"))
    movable = np.concatenate([part.movable for part in parts])
    turns = np.flatnonzero(np.diff(movable, prepend=~movable[:1]))
    edges, kinds = start[turns[:MAX_ZONES]], movable[turns[:MAX_ZONES]]
    if len(turns) > MAX_ZONES:
        kinds[-1] = False
    return AddressSpaceSummary(_runs(start, end), edges, kinds)


def _runs(start: Addresses, end: Addresses) -> list[Run]:
    if not len(start):
        return []
    chunk = np.uint64(CHUNK_BYTES)
    first = (start // chunk).astype(np.int64)
    last = ((end - np.uint64(1)) // chunk).astype(np.int64)
    gaps = first[1:] - last[:-1]
    breaks = np.flatnonzero(gaps > 1)
    if len(breaks) >= MAX_RUNS:
        widest = np.argpartition(gaps[breaks], -MAX_RUNS + 1)[-MAX_RUNS + 1 :]
        breaks = breaks[np.sort(widest)]
    firsts = first[np.concatenate(([0], breaks + 1))].tolist()
    lasts = last[np.concatenate((breaks, [len(last) - 1]))].tolist()
    return list(zip(firsts, lasts, strict=True))


def subtract_runs(runs: list[Run], known: list[Run]) -> list[Run]:
    """Return the parts of ``runs`` outside ``known``; both ascending and disjoint."""
    new: list[Run] = []
    at = 0
    for first, last in runs:
        begin = first
        while at < len(known) and known[at][1] < begin:
            at += 1
        here = at
        while here < len(known) and known[here][0] <= last:
            if known[here][0] > begin:
                new.append((begin, known[here][0] - 1))
            begin = known[here][1] + 1
            here += 1
        if begin <= last:
            new.append((begin, last))
    return new


def within(addresses: Addresses, runs: list[Run]) -> npt.NDArray[np.bool_]:
    """Return which addresses lie in a run."""
    if not runs:
        return np.zeros(len(addresses), np.bool_)
    bounds = np.array(runs, np.uint64)
    number = addresses // np.uint64(CHUNK_BYTES)
    row = np.searchsorted(bounds[:, 0], number, side="right") - 1
    inside: npt.NDArray[np.bool_] = (row >= 0) & (number <= bounds[row, 1])
    return inside


FEW: Final = 128
"""Processes of which none is called large."""

_LARGE: Final = 4
"""A large process has so many times the mean size."""


class LargeProcesses:
    """Finds processes of four times the mean size: of 10,000, a hundred may hold nearly all memory.

    The sweep goes to these first. A resident size costs 20 µs of a process, its mappings and pages
    a millisecond and more; so sizes are read in turn, some in each step. Where there are few
    processes, none is large. ``resident_bytes`` returns the size of a process now, 0 if it is gone.
    """

    def __init__(self, resident_bytes: Callable[[ProcessId], int]) -> None:
        self._read = resident_bytes
        self._processes: tuple[ProcessId, ...] = ()
        self._bytes = np.zeros(0, np.int64)
        self._expected: Mapping[ProcessId, int] = {}
        self._turn = 0
        self._large: tuple[ProcessId, ...] | None = None
        self._least = 0

    def set_resident_bytes(self, sizes: Mapping[ProcessId, int]) -> None:
        """Take sizes that were read elsewhere, for processes that are followed from now on."""
        self._expected = sizes

    def set_processes(self, processes: tuple[ProcessId, ...]) -> None:
        """Take other processes; sizes that are known stay."""
        known = {**self._expected, **dict(zip(self._processes, self._bytes.tolist(), strict=True))}
        self._turn = min(self._turn, max(len(processes) - 1, 0))
        self._bytes = np.array([known.get(process, 0) for process in processes], np.int64)
        self._processes, self._expected, self._large = processes, {}, None

    def find_large(self, over: Callable[[], bool]) -> tuple[ProcessId, ...]:
        """Read the sizes of the next processes until ``over``; return the large processes.

        The list is made again when one grows large or is large no more, in each round, and when
        other processes are followed.
        """
        count = len(self._processes)
        if count <= FEW:
            return ()
        for _ in range(count):
            before, now = self._bytes[self._turn], self._read(self._processes[self._turn])
            self._bytes[self._turn] = now
            self._turn = (self._turn + 1) % count
            if self._turn == 0 or (now >= self._least) != (before >= self._least):
                self._large = None
            if over():
                break
        if self._large is None:
            self._large = self._list_large()
        return self._large

    def _list_large(self) -> tuple[ProcessId, ...]:
        self._least = max(_LARGE * int(self._bytes.sum()) // len(self._processes), 1)
        order = np.argsort(-self._bytes, kind="stable")
        large = order[self._bytes[order] >= self._least]
        return tuple(self._processes[slot] for slot in large.tolist())


Compare: TypeAlias = Callable[[ProcessId, ProcessId], int | None]
"""Returns 0 for one address space, else the sign of an order; None where that is not known."""


class AddressSpaceOwners:
    """The first process of each address space (CLONE_VM), for which pages and samples of it count.

    It is found by bisection in an order of address spaces such as kcmp(2) has: 14 comparisons for a
    new process among 10,000, one for a known process. ``_ordered`` are the owners as they were when
    they were last asked for: one that has executed a program since may be out of order, so that
    others are not found until it is asked for. Only a comparison makes a process another's.
    """

    def __init__(self, compare: Compare) -> None:
        self._compare = compare
        self._ordered: list[ProcessId] = []
        self._owner: dict[ProcessId, ProcessId] = {}
        self._processes: tuple[ProcessId, ...] = ()
        self._slots: npt.NDArray[np.int32] | None = None

    def retain_processes(self, processes: Sequence[ProcessId]) -> None:
        """Forget other processes; those that shared their address spaces are asked for again."""
        self._processes, self._slots = tuple(processes), None
        tracked = set(processes)
        self._ordered = [process for process in self._ordered if process in tracked]
        self._owner = {
            process: owner
            for process, owner in self._owner.items()
            if process in tracked and owner in tracked
        }

    def last_owner(self, process: ProcessId) -> ProcessId | None:
        """Return what ``find_owner`` last returned for a process; None before."""
        return self._owner.get(process)

    def find_owner(self, process: ProcessId) -> ProcessId:
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

    def owner_slots(self) -> npt.NDArray[np.int32] | None:
        """Return each retained process's owner's slot, ``(processes,)``; None if all own theirs."""
        if len(self._ordered) == len(self._owner):
            return None
        if self._slots is None:
            owners = [self._owner.get(process, process) for process in self._processes]
            self._slots = ProcessTable(self._processes).slots_of(owners).astype(np.int32)
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
