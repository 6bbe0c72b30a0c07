# SPDX-License-Identifier: MIT
"""The residency sweep: on which node every page is, sampled or not, by one step per tick.

Pages to demote are cold and hardly sampled, so samples alone do not find them. A step is bounded in
CPU time and in pages (0.2 µs per page); an overrun is deducted from the next steps. It asks first
for chunks that samples show to be out of date, then goes on with the processes in turn: their
mappings where these are due, new ones first, then their pages from where it stopped. Of many
processes those that hold much of the memory have a turn of their own, with half of the time. A
process whose pages stay on their nodes is swept less and less often. A step's time shrinks to a
quarter while residency is stable: of terabytes a sweep takes thousands of ticks, of which most find
nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.mappings import in_namespace
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import ProcessId
from hmd.residency.address_spaces import (
    AddressSpaceOwners,
    AddressSpaceSummary,
    LargeProcesses,
    Patterns,
    Run,
    SummaryReading,
    subtract_runs,
    summarise_space,
    within,
)
from hmd.residency.forks import ForkedPages
from hmd.residency.memory_reader import MemoryReader, QueryContext, query_span
from hmd.residency.shared_pages import MAX_PAGE_UNITS, SharedPages
from hmd.sample.access_batch import AccessBatch


class RoundRobin:
    """Goes round a list of processes; ``steps`` counts those that the present one has had."""

    def __init__(self) -> None:
        self._processes: tuple[ProcessId, ...] = ()
        self._at = 0
        self.steps = 0

    def set_processes(self, processes: tuple[ProcessId, ...]) -> None:
        """Take another list; the turn goes on where it was, if that process is in it."""
        if processes is self._processes or processes == self._processes:
            return
        if self._at < len(self._processes):
            present = self._processes[self._at]
            self._at = processes.index(present) if present in processes else self._at
        self._processes = processes

    def take_turns(self) -> Iterator[ProcessId]:
        """Yield each process once, from the present one on; it has its turn until ``advance``."""
        for _ in range(len(self._processes)):
            self._at %= len(self._processes)
            yield self._processes[self._at]
            self.advance()

    def advance(self) -> None:
        """Give the turn to the next process."""
        self._at, self.steps = self._at + 1, 0


@dataclass(slots=True)
class SweepState:
    """A process's address space as last read, and the progress of its sweep.

    ``left`` are runs of chunks that the current sweep has not reached. ``asked`` and ``changed``
    count the pages of the sweep; the next one begins ``sweep_ticks`` after ``begun``. ``tracked``
    is False if the address space is shared and another process represents it.
    """

    summary: AddressSpaceSummary
    huge: npt.NDArray[np.uint64]
    read: int
    begun: int
    left: deque[Run] = field(default_factory=deque)
    asked: int = 0
    changed: int = 0
    sweep_ticks: int = 1
    tracked: bool = True


Addresses: TypeAlias = npt.NDArray[np.uint64]

_NO_PAGES: Final = np.empty(0, np.uint64)
_LEFT_RUNS: Final = 2048
"""Runs that a sweep may have before it; a process that keeps mapping is swept from the start."""


_TURN_STEPS: Final = 64
"""Steps that one process may take in a row."""

_CALM: Final = 64
"""A sweep or a step is calm if fewer than one page in so many has changed."""

MAX_WAIT_S: Final = 0.25
"""Time after which a step ends in which it waits for the locks of address spaces: a program that
maps all the time must not stop the daemon. One wait may be longer."""

_LEAST_PACE: Final = 1 / 4
"""Share of its time that a step takes at least, however calm the last ones were."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How many pages a step asks for, and how often processes are swept.

    ``pages_per_step`` and ``step_s`` (of CPU time) bound a step that has no limit of its own; it
    makes at least one query. Mappings are read every ``mappings_ticks`` ticks. A process is swept
    at least every ``max_sweep_ticks`` ticks, as far as steps suffice. Of files that several
    processes map, the pages of ``shared_units`` times 2 MiB are counted one by one, in 1 KiB each
    where they are used. Pages that several processes map are unmovable unless ``move_shared``.
    """

    pages_per_step: int = 1 << 18
    step_s: float = 0.01
    mappings_ticks: int = 4
    max_sweep_ticks: int = 32
    shared_units: int = MAX_PAGE_UNITS
    move_shared: bool = False


@dataclass(frozen=True, slots=True)
class StepLimit:
    """What one step of the sweep may take: queries for pages, and CPU time."""

    pages: int
    cpu_s: float


class ResidencySweep:
    """Keeps a heat table's nodes up to date, some pages a step.

    ``clock`` gives CPU time; ``wall`` time that also passes in waits, by default none.
    """

    def __init__(
        self,
        settings: SweepSettings | None = None,
        memory: MemoryReader | None = None,
        clock: Callable[[], float] = time.thread_time,
        wall: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.settings = settings or SweepSettings()
        self._memory = memory or MemoryReader()
        self._clock, self._wall, self._wall_end_s = clock, wall, 0.0
        self._end_s = self._owed_s = 0.0
        self._pace, self._recorded, self._changed = 1.0, 0, 0
        self._spaces: dict[ProcessId, SweepState] = {}
        self._kept: dict[ProcessId, Patterns] = {}
        self._processes: tuple[ProcessId, ...] = ()
        self._table = ProcessTable()
        self._reading: SummaryReading | None = None
        self._shared = SharedPages(self.settings.shared_units)
        self._forks = ForkedPages(self.settings.shared_units)
        self._refused: set[ProcessId] = set()
        self._guests: set[ProcessId] = set()
        self.unswept: set[ProcessId] = set()
        """Processes some of whose pages no sweep has reached yet, or of which it may not ask."""
        self.refusals: dict[ProcessId, int] = {}
        """The errno of the last query for pages of a process, where the kernel refused it."""
        self._owners = AddressSpaceOwners(self._memory.compare)
        self._large = LargeProcesses(self._memory.resident_bytes)
        # Of the large processes, and of all.
        self._reads = RoundRobin(), RoundRobin()
        self._sweeps = RoundRobin(), RoundRobin()

    def set_keep_patterns(self, patterns: Mapping[ProcessId, Patterns]) -> None:
        """Make pages unmovable by paths of mappings; processes with new patterns start again."""
        for process in patterns.keys() | self._kept.keys():
            if patterns.get(process) != self._kept.get(process):
                self._spaces.pop(process, None)
        self._kept = dict(patterns)

    def set_resident_bytes(self, sizes: Mapping[ProcessId, int]) -> None:
        """Take the resident bytes of processes that are new in the next step, where known."""
        self._large.set_resident_bytes(sizes)

    def attribute_to_owner(self, batch: AccessBatch, heat: HeatTable) -> AccessBatch:
        """Return samples as if each page were accessed by the process that counts it."""
        self._follow(heat.processes)
        slots = self._owners.owner_slots()
        if slots is not None:
            unknown = batch.process < 0
            process = np.where(unknown, batch.process, slots[batch.process])
            batch = replace(batch, process=process.astype(np.int32))
        return self._forks.attribute_to_owner(self._shared.attribute_to_owner(batch), heat)

    def record_refused_moves(self, processes: Iterable[ProcessId]) -> None:
        """Note that pages of these processes could not be moved: others map them too.

        They are swept from the start; such pages are unmovable as long as it is so.
        """
        for process in set(processes) - self._refused:
            self._refused.add(process)
            self._restart(process)

    def set_move_shared(self, move_shared: bool) -> None:
        """Set whether pages that several processes map may move."""
        self.settings = replace(self.settings, move_shared=move_shared)

    def guest_mask(self, processes: Sequence[ProcessId]) -> npt.NDArray[np.bool_]:
        """Return which processes run virtual machines of KVM, shape ``(processes,)``."""
        if not self._guests:
            return np.zeros(len(processes), np.bool_)
        return np.array([process in self._guests for process in processes], np.bool_)

    def step(self, heat: HeatTable, limit: StepLimit | None = None) -> int:
        """Ask for the nodes of some pages, within ``limit`` or the settings; returns how many."""
        limit = limit or StepLimit(self.settings.pages_per_step, self.settings.step_s)
        begun_s, pages = self._clock(), limit.pages
        self._wall_end_s = self._wall() + MAX_WAIT_S
        left_s = limit.cpu_s * self._pace - self._owed_s
        asked = self._recorded = self._changed = 0
        if left_s > 0:
            self._follow(heat.processes)
            self._end_s = begun_s + left_s * 8 / 16
            asked = self._ask_stale(heat, pages // 2)
            self._end_s = begun_s + left_s * 9 / 16
            groups = self._large.find_large(self._over), heat.processes
            for turn, group, share in zip(self._reads, groups, (10 / 16, 12 / 16), strict=True):
                self._end_s = begun_s + left_s * share
                turn.set_processes(group)
                self._read_some(heat, turn)
            for turn, group, share in zip(self._sweeps, groups, (14 / 16, 1.0), strict=True):
                self._end_s = begun_s + left_s * share
                turn.set_processes(group)
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
        return self._clock() >= self._end_s or self._wall() > self._wall_end_s

    def _follow(self, processes: tuple[ProcessId, ...]) -> None:
        """Forget processes that are not tracked any more; turns go on where they were."""
        if processes is self._processes:
            return
        self._shared.retain_processes(processes)
        alone = self._forks.retain_processes(processes)
        self._owners.retain_processes(processes)
        self._large.set_processes(processes)
        self._table = table = ProcessTable(processes)
        self._refused = {process for process in self._refused if process in table}
        self._guests = {process for process in self._guests if process in table}
        self._spaces = {p: space for p, space in self._spaces.items() if p in table}
        self.refusals = {p: number for p, number in self.refusals.items() if p in table}
        new = set(processes).difference(self._processes)
        self.unswept = {process for process in self.unswept if process in table} | new
        self._processes = processes
        for process in alone:
            self._restart(process)

    def _restart(self, process: ProcessId) -> None:
        """Sweep a process from the start: which of its pages may move has changed."""
        space = self._spaces.get(process)
        if space is not None and space.tracked:
            space.left = deque(space.summary.runs)

    def _read_some(self, heat: HeatTable, turn: RoundRobin) -> None:
        """Read the mappings of the next processes for which that is due."""
        begun = self._table.slot_of(self._reading.process) if self._reading else -1
        if begun >= 0 and not self._read_due(heat, begun):
            return
        for process in turn.take_turns():
            if not self._read_due(heat, self._table.slot_of(process)):
                return  # it goes on in the next step
            if self._over():
                turn.advance()
                return

    def _read_due(self, heat: HeatTable, slot: int) -> bool:
        """Read a process's mappings where that is due; return whether that is complete."""
        process, tick = heat.processes[slot], heat.history.tick
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
            reading = self._reading = SummaryReading(process, pieces, kept)
        if not reading.read(self._over):
            return False
        self._reading = None
        self._use_mappings(heat, slot, reading)
        return True

    def _is_own(self, heat: HeatTable, slot: int) -> bool:
        """Return whether a process's address space is tracked for it, not for another process."""
        process, tick = heat.processes[slot], heat.history.tick
        before, owner = self._owners.last_owner(process), self._owners.find_owner(process)
        if owner == process:
            return True
        if before != owner:
            self._shared.set_mappings(process, ())
            self._forks.join(process, "")
            heat.remove_process_chunks(slot)
        self._spaces[process] = SweepState(
            summarise_space([]), _NO_PAGES, tick, tick, tracked=False
        )
        self.unswept.discard(process)
        return False

    def _sweep_some(self, heat: HeatTable, turn: RoundRobin, pages: int) -> int:
        """Sweep the next processes for which that is due; return the pages asked for."""
        asked = 0
        for process in turn.take_turns():
            if asked >= pages:
                break
            space = self._spaces.get(process)
            if space is not None:
                asked += self._continue(heat, self._table.slot_of(process), space, pages - asked)
                turn.steps += 1
                if space.left and turn.steps < _TURN_STEPS:
                    break  # its turn goes on in the next step
            if self._over():
                turn.advance()
                break
        return asked

    def _use_mappings(self, heat: HeatTable, slot: int, reading: SummaryReading) -> None:
        """Put new chunks first in the sweep, remove unmapped ones."""
        process, tick = reading.process, heat.history.tick
        (self._guests.add if reading.runs_guests else self._guests.discard)(process)
        if reading.shared or self._shared.shares(process):
            namespace = self._memory.mount_namespace(process)
            self._shared.set_mappings(process, in_namespace(reading.shared, namespace))
        self._forks.join(process, self._memory.fork_family(process) if reading.parts else "")
        if not reading.parts:
            self._spaces.pop(process, None)
            return
        summary, huge = reading.summarise()
        space = self._spaces.get(process)
        if space is None:
            space = SweepState(summary, huge, tick, tick, deque(summary.runs))
            self._spaces[process] = space
            self._forks.families.begin_sweep(process)
        lost = subtract_runs(space.summary.runs, summary.runs)
        space.left.extendleft(reversed(subtract_runs(summary.runs, space.summary.runs)))
        if len(space.left) > _LEFT_RUNS:
            space.left = deque(summary.runs)
        space.summary, space.huge, space.read, space.tracked = summary, huge, tick, True
        if not lost:
            return  # chunks of samples outside all mappings are stale, and found to have no pages
        known = heat.chunks.columns.address[: heat.chunks.used]
        known = known[heat.chunks.columns.process[: heat.chunks.used] == slot]
        gone = known[~within(known, summary.runs)]
        if len(gone):
            heat.record_nodes(slot, gone, np.full((len(gone), CHUNK_PAGES), ABSENT, np.int8))

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

    def _continue(self, heat: HeatTable, slot: int, space: SweepState, pages: int) -> int:
        """Ask for the next chunks of a process's sweep, or begin one that is due."""
        process, tick = heat.processes[slot], heat.history.tick
        if not space.left:
            if tick - space.begun < space.sweep_ticks:
                return 0
            space.begun = tick
            space.asked = space.changed = 0
            space.left.extend(space.summary.runs)
            self._forks.families.begin_sweep(process)
        asked = 0
        while space.left and asked < pages and not (asked and self._over()):
            first, last = space.left.popleft()
            start, end = first * CHUNK_BYTES, (last + 1) * CHUNK_BYTES
            until = self._shared.skip_owned_elsewhere(process, start, end)
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
            if process not in self.refusals:
                self.unswept.discard(process)
            self._forks.families.end_sweep(process)
            calm = space.changed * _CALM < space.asked
            ticks = space.sweep_ticks * 2 if calm else space.sweep_ticks // 2
            space.sweep_ticks = min(max(1, ticks), self.settings.max_sweep_ticks)
        return asked

    def _ask(
        self, heat: HeatTable, slot: int, space: SweepState, span: tuple[int, int], pages: int
    ) -> tuple[int, int]:
        """Do as ``query_span``; return the pages asked for, and up to where all is known."""
        known, shared = (space.summary, space.huge), self.settings.move_shared
        machine = QueryContext(self._memory, self._shared, self._forks, self._refused, shared)
        answered = query_span(heat, slot, known, span, pages, machine)
        if answered.refused:
            self.refusals[heat.processes[slot]] = answered.refused
        elif answered.asked:
            self.refusals.pop(heat.processes[slot], None)
        space.changed += answered.changed
        space.asked += answered.recorded
        return answered.asked, answered.until
