"""The residency sweep: on which node every page is, sampled or not, by one step per tick.

Takes the processes of a heat table, gives it nodes and huge pages. Pages to demote are cold and
hardly sampled, so samples alone do not find them. A step is bounded in CPU time and in pages (0.2
µs per page); what it took beyond its time, the next ones do without. It asks first for chunks that
samples show to be out of date, then goes on with the processes in turn: their mappings where these
are due, new ones first, then their pages from where it stopped. Of many processes those that hold
much of the memory have a turn of their own, with half of the time. A process whose pages stay on
their nodes is swept less and less often, a process that faults pages in is swept often. A step
after one that found nearly all pages where they were takes half of that one's time, down to a
quarter: of terabytes a sweep takes thousands of ticks, of which most find nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import ABSENT, CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.heat_table import HeatTable
from hmd.machine.pages.shared_ranges import in_namespace
from hmd.machine.process_id import ProcessId
from hmd.residency.forked_pages import ForkedPages
from hmd.residency.large_spaces import LargeSpaces
from hmd.residency.page_claims import DETAILS_MOST
from hmd.residency.page_query import QueriedMachine, ask_nodes
from hmd.residency.process_turn import ProcessTurn
from hmd.residency.shared_pages import SharedPages
from hmd.residency.space_outline import (
    OutlineReading,
    Patterns,
    less,
    outline_of,
    within,
)
from hmd.residency.space_owners import SpaceOwners
from hmd.residency.swept_memory import KernelMemory, SweptMemory
from hmd.residency.swept_space import SweptSpace
from hmd.sample.access_batch import AccessBatch

Addresses: TypeAlias = npt.NDArray[np.uint64]

_NO_PAGES: Final = np.empty(0, np.uint64)
_LEFT_RUNS: Final = 2048
"""Runs that a sweep may have before it; a process that keeps mapping is swept from the start."""


_TURN_STEPS: Final = 64
"""Steps that one process may take in a row."""

_CALM: Final = 64
"""A sweep or a step is calm if fewer than one page in so many has changed."""

_LEAST_PACE: Final = 1 / 4
"""Share of its time that a step takes at least, however calm the last ones were."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How many pages a step asks for, and how often processes are swept.

    ``pages_per_step`` and ``step_s`` (of CPU time) bound a step; it makes at least one query. After
    calm ones it takes down to a quarter of ``step_s``.
    Mappings are read every ``mappings_ticks`` ticks. A process is swept at least every
    ``sweep_ticks_most`` ticks, as far as steps suffice. Of files that several processes map, the
    pages of ``shared_units`` times 2 MiB are counted one by one, in 1 KiB each where they are used.
    Pages that several processes map are unmovable unless ``move_shared``.
    """

    pages_per_step: int = 1 << 18
    step_s: float = 0.01
    mappings_ticks: int = 4
    sweep_ticks_most: int = 32
    shared_units: int = DETAILS_MOST
    move_shared: bool = False


class ResidencySweep:
    """Keeps a heat table's nodes up to date, some pages a step."""

    def __init__(
        self,
        settings: SweepSettings | None = None,
        memory: SweptMemory | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.settings = settings or SweepSettings()
        self._memory: SweptMemory = memory or KernelMemory()
        self._clock = clock
        self._end_s = self._owed_s = 0.0
        self._pace, self._recorded, self._changed = 1.0, 0, 0
        self._spaces: dict[ProcessId, SweptSpace] = {}
        self._kept: dict[ProcessId, Patterns] = {}
        self._processes: tuple[ProcessId, ...] = ()
        self._slots: dict[ProcessId, int] = {}
        self._reading: OutlineReading | None = None
        self._shared = SharedPages(self.settings.shared_units)
        self._forks = ForkedPages(self.settings.shared_units)
        self._refused: set[ProcessId] = set()
        self._owners = SpaceOwners(self._memory.compare)
        self._large = LargeSpaces(self._memory.resident_bytes)
        # Of the large processes, and of all.
        self._reads = ProcessTurn(), ProcessTurn()
        self._sweeps = ProcessTurn(), ProcessTurn()

    def keep(self, patterns: Mapping[ProcessId, Patterns]) -> None:
        """Make pages unmovable whose mapping's path matches a pattern of their process.

        A process whose patterns have changed is swept from the start.
        """
        for process in patterns.keys() | self._kept.keys():
            if patterns.get(process) != self._kept.get(process):
                self._spaces.pop(process, None)
        self._kept = dict(patterns)

    def expect(self, sizes: Mapping[ProcessId, int]) -> None:
        """Take the resident bytes of processes that are new in the next step, where known."""
        self._large.expect(sizes)

    def fold(self, batch: AccessBatch, heat: HeatTable) -> AccessBatch:
        """Return samples of a table's processes as if each page were accessed where it counts.

        A page that several processes map counts for one of them.
        """
        self._follow(heat.processes)
        slots = self._owners.slots()
        if slots is not None:
            unknown = batch.process < 0
            process = np.where(unknown, batch.process, slots[batch.process])
            batch = replace(batch, process=process.astype(np.int32))
        return self._forks.fold(self._shared.fold(batch), heat)

    def refused(self, processes: Iterable[ProcessId]) -> None:
        """Note that pages of these processes could not be moved: others map them too.

        They are swept from the start; such pages are unmovable as long as it is so.
        """
        for process in set(processes) - self._refused:
            self._refused.add(process)
            self._restart(process)

    def step(self, heat: HeatTable) -> int:
        """Ask for the nodes of some pages; returns how many."""
        begun_s, pages = self._clock(), self.settings.pages_per_step
        left_s = self.settings.step_s * self._pace - self._owed_s
        asked = self._recorded = self._changed = 0
        if left_s > 0:
            self._follow(heat.processes)
            self._end_s = begun_s + left_s * 8 / 16
            asked = self._ask_stale(heat, pages // 2)
            self._end_s = begun_s + left_s * 9 / 16
            groups = self._large.survey(self._over), heat.processes
            for turn, group, share in zip(self._reads, groups, (10 / 16, 12 / 16), strict=True):
                self._end_s = begun_s + left_s * share
                turn.follow(group)
                self._read_some(heat, turn)
            for turn, group, share in zip(self._sweeps, groups, (14 / 16, 1.0), strict=True):
                self._end_s = begun_s + left_s * share
                turn.follow(group)
                asked += self._sweep_some(heat, turn, pages - asked)
            self._set_pace()
        self._owed_s = max(0.0, self._clock() - begun_s - left_s)
        return asked

    def _set_pace(self) -> None:
        """Set the share of its time that the next step takes, from what this one's sweeps found."""
        if self._changed * _CALM >= max(self._recorded, 1):
            self._pace = 1.0
        elif self._recorded:
            self._pace = max(self._pace / 2, _LEAST_PACE)

    def _over(self) -> bool:
        return self._clock() >= self._end_s

    def _follow(self, processes: tuple[ProcessId, ...]) -> None:
        """Forget processes that are not tracked any more; turns go on where they were."""
        if processes is self._processes:
            return
        self._shared.keep(processes)
        alone = self._forks.keep(processes)
        self._owners.keep(processes)
        self._large.follow(processes)
        slots = self._slots = {process: slot for slot, process in enumerate(processes)}
        self._refused = {process for process in self._refused if process in slots}
        self._spaces = {p: space for p, space in self._spaces.items() if p in slots}
        self._processes = processes
        for process in alone:
            self._restart(process)

    def _restart(self, process: ProcessId) -> None:
        """Sweep a process from the start: which of its pages may move has changed."""
        space = self._spaces.get(process)
        if space is not None and space.tracked:
            space.left = deque(space.outline.runs)

    def _read_some(self, heat: HeatTable, turn: ProcessTurn) -> None:
        """Read the mappings of the next processes for which that is due."""
        begun = self._slots.get(self._reading.process) if self._reading else None
        if begun is not None and not self._read_due(heat, begun):
            return
        for process in turn.round():
            if not self._read_due(heat, self._slots[process]):
                return  # it goes on in the next step
            if self._over():
                turn.pass_on()
                return

    def _read_due(self, heat: HeatTable, slot: int) -> bool:
        """Read a process's mappings where that is due; return whether that is complete."""
        process, tick = heat.processes[slot], heat.clocks.tick
        space, reading = self._spaces.get(process), self._reading
        if reading is None or reading.process != process:
            if space is not None and tick - space.read < self.settings.mappings_ticks:
                return True
            if reading is not None:
                reading.close()
                self._reading = None
            if not self._is_own(heat, slot):
                return True
            pieces, kept = self._memory.pieces(process), self._kept.get(process, ())
            reading = self._reading = OutlineReading(process, pieces, kept)
        if not reading.read(self._over):
            return False
        self._reading = None
        self._take(heat, slot, reading)
        return True

    def _is_own(self, heat: HeatTable, slot: int) -> bool:
        """Return whether a process's address space is tracked for it, not for another process."""
        process, tick = heat.processes[slot], heat.clocks.tick
        before, owner = self._owners.known(process), self._owners.find(process)
        if owner == process:
            return True
        if before != owner:
            self._shared.take(process, ())
            self._forks.join(process, "")
            chunks = heat.chunks
            chunks.remove(np.flatnonzero(chunks.columns.process[: chunks.used] == slot))
            heat.changed()
        self._spaces[process] = SweptSpace(outline_of([]), _NO_PAGES, tick, tick, tracked=False)
        return False

    def _sweep_some(self, heat: HeatTable, turn: ProcessTurn, pages: int) -> int:
        """Sweep the next processes for which that is due; return the pages asked for."""
        asked = 0
        for process in turn.round():
            if asked >= pages:
                break
            space = self._spaces.get(process)
            if space is not None:
                asked += self._continue(heat, self._slots[process], space, pages - asked)
                turn.steps += 1
                if space.left and turn.steps < _TURN_STEPS:
                    break  # its turn goes on in the next step
            if self._over():
                turn.pass_on()
                break
        return asked

    def _take(self, heat: HeatTable, slot: int, reading: OutlineReading) -> None:
        """Put new chunks first in the sweep, remove unmapped ones."""
        process, tick = reading.process, heat.clocks.tick
        if reading.shared or self._shared.shares(process):
            namespace = self._memory.mount_namespace(process)
            self._shared.take(process, in_namespace(reading.shared, namespace))
        self._forks.join(process, self._memory.fork_family(process) if reading.parts else "")
        if not reading.parts:
            self._spaces.pop(process, None)
            return
        outline, huge = reading.outline()
        space = self._spaces.get(process)
        if space is None:
            space = SweptSpace(outline, huge, tick, tick, deque(outline.runs))
            self._spaces[process] = space
            self._forks.begun(process)
        lost = less(space.outline.runs, outline.runs)
        space.left.extendleft(reversed(less(outline.runs, space.outline.runs)))
        if len(space.left) > _LEFT_RUNS:
            space.left = deque(outline.runs)
        space.outline, space.huge, space.read, space.tracked = outline, huge, tick, True
        if not lost:
            return  # chunks of samples outside all mappings are stale, and found to have no pages
        known = heat.chunks.columns.address[: heat.chunks.used]
        known = known[heat.chunks.columns.process[: heat.chunks.used] == slot]
        gone = known[~within(known, outline.runs)]
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
            for start in np.sort(starts[slots == slot]).tolist():
                if space is None or not space.tracked or (asked and self._over()):
                    break
                around = (start, start + CHUNK_BYTES)
                asked += self._ask(heat, slot, space, around, CHUNK_PAGES)[0]
        return asked

    def _continue(self, heat: HeatTable, slot: int, space: SweptSpace, pages: int) -> int:
        """Ask for the next chunks of a process's sweep, or begin one that is due."""
        process, tick = heat.processes[slot], heat.clocks.tick
        if not space.left:
            if tick - space.begun < space.sweep_ticks:
                return 0
            space.begun = tick
            space.asked = space.changed = 0
            space.left.extend(space.outline.runs)
            self._forks.begun(process)
        asked = 0
        while space.left and asked < pages and not (asked and self._over()):
            first, last = space.left.popleft()
            start, end = first * CHUNK_BYTES, (last + 1) * CHUNK_BYTES
            until = self._shared.ahead(process, start, end)
            if until == start:
                before = space.asked, space.changed
                count, until = self._ask(heat, slot, space, (start, end), pages - asked)
                asked += count
                self._recorded += space.asked - before[0]
                self._changed += space.changed - before[1]
            if until < end:
                space.left.appendleft((until // CHUNK_BYTES, last))
            if self._over():
                break
        if not space.left:
            self._forks.swept(process)
            calm = space.changed * _CALM < space.asked
            ticks = space.sweep_ticks * 2 if calm else space.sweep_ticks // 2
            space.sweep_ticks = min(max(1, ticks), self.settings.sweep_ticks_most)
        return asked

    def _ask(
        self, heat: HeatTable, slot: int, space: SweptSpace, span: tuple[int, int], pages: int
    ) -> tuple[int, int]:
        """Ask for the nodes of the next resident pages, about ``pages``, and record them.

        Returns the number of pages asked for, and the address up to which all is known.
        """
        known, shared = (space.outline, space.huge), self.settings.move_shared
        machine = QueriedMachine(self._memory, self._shared, self._forks, self._refused, shared)
        answered = ask_nodes(heat, slot, known, span, pages, machine)
        space.changed += answered.changed
        space.asked += answered.recorded
        return answered.asked, answered.until
