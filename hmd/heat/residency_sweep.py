"""The residency sweep: on which node every page is, sampled or not, by one step per tick.

Takes the processes of a heat table, gives it nodes and huge pages. Pages to demote are cold and
hardly sampled, so samples alone do not find them. A step is bounded in time and in pages (0.2 µs
per page). It asks first for chunks that samples show to be out of date, then for new mappings, then
continues where the last step stopped. A process whose pages stay on their nodes is swept less and
less often, a process that faults pages in is swept often.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED
from hmd.heat.heat_table import HeatTable
from hmd.machine.huge_pages import read_huge_pages
from hmd.machine.mappings import MappingKind, Mappings, read_mappings
from hmd.machine.move_pages import query_nodes
from hmd.machine.process_id import PROC, ProcessId
from hmd.units import PAGE_BYTES

Addresses: TypeAlias = npt.NDArray[np.uint64]
#: First and last chunk number of a run of chunks.
Run: TypeAlias = tuple[int, int]
Patterns: TypeAlias = tuple[re.Pattern[str], ...]

#: Chunks per query: about 2 ms.
_QUERY_CHUNKS: Final = 16
_OFFSETS: Final = np.arange(CHUNK_PAGES, dtype=np.uint64) * np.uint64(PAGE_BYTES)


class AddressSpaces(Protocol):
    """What the sweep reads from the machine, by pid."""

    def mappings(self, pid: int) -> Mappings | None:
        """Return the mappings, None if the process is gone or access is not permitted."""
        ...

    def huge_pages(self, pid: int, mappings: Mappings) -> Addresses:
        """Return the starts of huge pages."""
        ...

    def nodes(self, pid: int, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Return the node of each page, below 0 if it is not resident."""
        ...


class KernelAddressSpaces:
    """Address spaces as the kernel reports them."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    def mappings(self, pid: int) -> Mappings | None:
        """Read /proc/PID/maps."""
        return read_mappings(pid, self._proc)

    def huge_pages(self, pid: int, mappings: Mappings) -> Addresses:
        """Read PAGEMAP_SCAN, kpageflags or smaps."""
        found = read_huge_pages(pid, mappings, self._proc)
        return np.empty(0, np.uint64) if found is None else found.address

    def nodes(self, pid: int, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Query move_pages(2)."""
        return query_nodes(pid, addresses)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How many pages a step asks for, and how often processes are swept.

    ``pages_per_step`` and ``step_s`` bound a step; it makes at least one query. Mappings are read
    every ``mappings_ticks`` ticks. A process is swept at least every ``sweep_ticks_most`` ticks, as
    far as steps suffice.
    """

    pages_per_step: int = 1 << 18
    step_s: float = 0.01
    mappings_ticks: int = 4
    sweep_ticks_most: int = 32


@dataclass(slots=True)
class _Space:
    """A process's address space as last read, and the progress of its sweep.

    ``left`` are runs of chunks that the current sweep has not reached. ``asked`` and ``changed``
    count the pages of the sweep; the next one begins ``sweep_ticks`` after ``begun``.
    """

    mappings: Mappings
    huge: Addresses
    runs: list[Run]
    read: int
    begun: int
    left: deque[Run] = field(default_factory=deque)
    asked: int = 0
    changed: int = 0
    sweep_ticks: int = 1


class ResidencySweep:
    """Keeps a heat table's nodes up to date, some pages a step."""

    def __init__(
        self,
        settings: SweepSettings | None = None,
        spaces: AddressSpaces | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or SweepSettings()
        self._machine: AddressSpaces = spaces or KernelAddressSpaces()
        self._clock = clock
        self._end_s = 0.0
        self._spaces: dict[ProcessId, _Space] = {}
        self._kept: dict[ProcessId, Patterns] = {}
        self._turn = 0

    def keep(self, patterns: Mapping[ProcessId, Patterns]) -> None:
        """Make pages unmovable whose mapping's path matches a pattern of their process.

        A process whose patterns have changed is swept from the start.
        """
        for process in patterns.keys() | self._kept.keys():
            if patterns.get(process) != self._kept.get(process):
                self._spaces.pop(process, None)
        self._kept = dict(patterns)

    def step(self, heat: HeatTable) -> int:
        """Ask for the nodes of some pages; returns how many."""
        processes, tick = heat.processes, heat.clocks.tick
        self._end_s = self._clock() + self.settings.step_s
        tracked = set(processes)
        self._spaces = {p: space for p, space in self._spaces.items() if p in tracked}
        for slot, process in enumerate(processes):
            space = self._spaces.get(process)
            if space is None or tick - space.read >= self.settings.mappings_ticks:
                self._read(heat, slot, process, tick)
        asked = self._ask_stale(heat, self.settings.pages_per_step // 2)
        for turn in range(len(processes)):
            if asked >= self.settings.pages_per_step or (asked and self._clock() >= self._end_s):
                break
            slot = (self._turn + turn) % len(processes)
            space = self._spaces.get(processes[slot])
            if space is not None:
                asked += self._continue(heat, slot, space, self.settings.pages_per_step - asked)
        self._turn = (self._turn + 1) % max(1, len(processes))
        return asked

    def _mappings(self, process: ProcessId) -> Mappings | None:
        """Read mappings; those to keep in place are unmovable."""
        found, kept = self._machine.mappings(process.pid), self._kept.get(process, ())
        return found.keeping(kept) if found is not None and kept else found

    def _read(self, heat: HeatTable, slot: int, process: ProcessId, tick: int) -> None:
        """Read mappings and huge pages; put new chunks first in the sweep, remove unmapped ones."""
        mappings = self._mappings(process)
        if mappings is None:
            self._spaces.pop(process, None)
            return
        runs = chunk_runs(mappings)
        space = self._spaces.get(process)
        if space is None:
            huge = self._machine.huge_pages(process.pid, mappings)
            space = _Space(mappings, huge, runs, tick, tick, deque(runs))
            self._spaces[process] = space
        new = _less(runs, space.runs)
        if new:
            space.left.extendleft(reversed(new))
            space.huge = self._machine.huge_pages(process.pid, mappings)
        space.mappings, space.runs, space.read = mappings, runs, tick
        known = heat.chunks.columns.address[: heat.chunks.used]
        known = known[heat.chunks.columns.process[: heat.chunks.used] == slot]
        gone = known[~_within(known, runs)]
        if len(gone):
            heat.place(slot, gone, np.full((len(gone), CHUNK_PAGES), ABSENT, np.int8))

    def _ask_stale(self, heat: HeatTable, pages: int) -> int:
        """Ask for chunks that were never swept, or that have samples of unknown pages."""
        columns, used = heat.chunks.columns, heat.chunks.used
        stale = np.flatnonzero(columns.swept[:used] == 0)
        # The most sampled first, in case there are too many.
        stale = stale[np.argsort(-columns.recent_sum[stale], kind="stable")]
        stale = stale[: max(1, pages // CHUNK_PAGES)]
        slots, starts = columns.process[stale].copy(), columns.address[stale].copy()
        asked = 0
        for slot in np.unique(slots).tolist():
            space = self._spaces.get(heat.processes[slot])
            own = starts[slots == slot]
            for begin in range(0, len(own), _QUERY_CHUNKS):
                if space is None or (asked and self._clock() >= self._end_s):
                    break
                asked += self._ask_chunks(heat, slot, space, own[begin : begin + _QUERY_CHUNKS])
        return asked

    def _continue(self, heat: HeatTable, slot: int, space: _Space, pages: int) -> int:
        """Ask for the next chunks of a process's sweep, or begin one that is due."""
        tick = heat.clocks.tick
        if not space.left:
            if tick - space.begun < space.sweep_ticks:
                return 0
            space.begun = tick
            space.huge = self._machine.huge_pages(heat.processes[slot].pid, space.mappings)
            space.asked = space.changed = 0
            space.left.extend(space.runs)
        asked = 0
        while space.left and asked < pages and not (asked and self._clock() >= self._end_s):
            first, last = space.left.popleft()
            count = min(last - first + 1, _QUERY_CHUNKS, max(1, (pages - asked) // CHUNK_PAGES))
            if first + count <= last:
                space.left.appendleft((first + count, last))
            chunks = np.arange(first, first + count, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
            asked += self._ask_chunks(heat, slot, space, chunks)
        if not space.left:
            calm = space.changed * 64 < space.asked
            ticks = space.sweep_ticks * 2 if calm else space.sweep_ticks // 2
            space.sweep_ticks = min(max(1, ticks), self.settings.sweep_ticks_most)
        return asked

    def _ask_chunks(self, heat: HeatTable, slot: int, space: _Space, chunks: Addresses) -> int:
        """Ask for the nodes of some chunks' pages and record them; returns pages asked for."""
        pid = heat.processes[slot].pid
        huge = np.isin(chunks, space.huge)
        small = (chunks[~huge, None] + _OFFSETS).reshape(-1)
        asked = np.concatenate([chunks[huge], small])
        answer = self._machine.nodes(pid, asked)
        present = answer >= 0
        if not _mapped(space.mappings, asked[present]).all():
            # A page outside every known mapping: the mappings are out of date.
            space.mappings = self._mappings(heat.processes[slot]) or space.mappings
        coded = np.where(present, answer, ABSENT)
        stays = present & ~space.mappings.movable_at(asked)
        coded = np.where(stays, FIXED - coded, coded).astype(np.int8)
        node = np.empty((len(chunks), CHUNK_PAGES), np.int8)
        heads = int(np.count_nonzero(huge))
        node[huge] = coded[:heads, None]
        node[~huge] = coded[heads:].reshape(-1, CHUNK_PAGES)
        space.changed += heat.place(slot, chunks, node, huge)
        space.asked += node.size
        return len(asked)


def chunk_runs(mappings: Mappings) -> list[Run]:
    """Return the runs of chunks that may have pages, ascending and disjoint.

    Memory that is only reserved (no access) has no pages, and special mappings are the kernel's.
    """
    useful = ((mappings.access & 7) != 0) & (mappings.kind != MappingKind.SPECIAL)
    first = (mappings.start[useful] // np.uint64(CHUNK_BYTES)).tolist()
    last = ((mappings.end[useful] - np.uint64(1)) // np.uint64(CHUNK_BYTES)).tolist()
    runs: list[Run] = []
    for a, b in zip(first, last, strict=True):
        if runs and a <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(runs[-1][1], b))
        else:
            runs.append((a, b))
    return runs


def _less(runs: list[Run], known: list[Run]) -> list[Run]:
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


def _within(addresses: Addresses, runs: list[Run]) -> npt.NDArray[np.bool_]:
    """Return which chunks lie in a run."""
    if not runs:
        return np.zeros(len(addresses), np.bool_)
    bounds = np.array(runs, np.uint64)
    return _between(addresses // np.uint64(CHUNK_BYTES), bounds[:, 0], bounds[:, 1])


def _mapped(mappings: Mappings, addresses: Addresses) -> npt.NDArray[np.bool_]:
    """Return which addresses lie in a mapping."""
    if not len(mappings):
        return np.zeros(len(addresses), np.bool_)
    return _between(addresses, mappings.start, mappings.end - np.uint64(1))


def _between(values: Addresses, first: Addresses, last: Addresses) -> npt.NDArray[np.bool_]:
    """Return which values lie in one of the ranges, which are ascending and disjoint."""
    row = np.searchsorted(first, values, side="right") - 1
    inside: npt.NDArray[np.bool_] = (row >= 0) & (values <= last[row])
    return inside
