# SPDX-License-Identifier: MIT
"""A simulated machine: one program's recorded misses, two tiers, and a CPU that migrates pages.

Takes a miss stream and a preset; gives the daemon's stages what the kernel would: where pages are,
mappings, moves, pageout (``AddressSpaces``, ``PageCalls``), free memory. Time is that of the exact
timing model (hmd/emulate/timing): the program's CPU replays its misses, with each page where it is
by then, and migrations copy on a second CPU, so that each takes bandwidth from the other. A page
under migration is unmapped, and the program sleeps at it until the copy is made; at a page that was
paged out, for as long as swapping in takes. 25 to 60 ns per miss.

Pages are allocated at their first access, on the fast node while it has room; those that the
program gives back (:class:`hmd.emulate.recordings.misses.PageFrees`) at their next access. First
touch is this and nothing else. ``row`` is the next miss of the program, which says what it has
accessed so far.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Bools, Int16s, Int64s, Uint64s
from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissOutcomes, MissStream
from hmd.emulate.recordings.replay import (
    END,
    UNMAPPED,
    Layout,
    MissReplay,
    TimingModel,
    frames,
    replayed,
    tiers_of,
)
from hmd.emulate.timing_params import timing_params
from hmd.linux.mappings import Mappings, anonymous_mappings
from hmd.linux.page_calls import MoveFlags
from hmd.linux.procfs import ProcessId, ProcessStat
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.sample.instruction_counts import Executed
from hmd.sample.periods import RecordCost

_ROWS = 1 << 16

FAST, SLOW = 0, 1
"""Node ids of the two tiers, whatever the preset's order."""

OUT: Final = -1
"""Instead of a node: paged out."""

Pages = Int64s


def first_rows(stream: MissStream) -> Int64s:
    """Return the row of the first access to each of the program's pages."""
    first = np.full(stream.pages, len(stream), np.int64)
    # From the end, so that the first of a page's rows is written last.
    for begin in reversed(range(0, len(stream), _ROWS)):
        part = stream.page[begin : begin + _ROWS]
        first[part[::-1]] = np.arange(begin, begin + len(part))[::-1]
    return first[: stream.user_pages]


def next_rows(stream: MissStream) -> Int64s:
    """Return the row of the next access to each page that is given back, or the end; ``(k,)``."""
    if stream.frees is None:
        return np.empty(0, np.int64)
    page, end = stream.frees.page.astype(np.int64), len(stream)
    freed = np.zeros(stream.pages, np.bool_)
    freed[page] = True
    rows = np.flatnonzero(freed[stream.page])
    # By page, then by row: one number for both.
    accesses = np.sort(stream.page[rows].astype(np.int64) * (end + 1) + rows)
    at = np.searchsorted(accesses, page * (end + 1) + stream.frees.row)
    found = np.append(accesses, -1)[at]
    return np.where(found // (end + 1) == page, found % (end + 1), end)


class SimulatedMemory:
    """Where the program's pages are; ``node``, shape ``(pages,)``, may be written."""

    def __init__(self, stream: MissStream, fast_pages: int) -> None:
        pages = stream.user_pages
        self.capacity = (fast_pages, pages)
        self.node = np.full(pages, SLOW, np.int8)
        self._address = stream.page_address[:pages]
        self._first_row = first_rows(stream)
        self._by_first_row = np.argsort(self._first_row, kind="stable")
        self._frees, self._freed = stream.frees, 0
        self._again = next_rows(stream)
        self._end = len(stream)

    def free_until(self, row: int) -> None:
        """Take the pages that the program has given back by ``row`` and not accessed since."""
        if self._frees is None:
            return
        end = int(np.searchsorted(self._frees.row, row, side="right"))
        events = np.arange(self._freed, end)
        self._freed = end
        events = events[self._again[events] >= row]
        if len(events):
            self._first_row[self._frees.page[events]] = self._again[events]
            self._by_first_row = np.argsort(self._first_row, kind="stable")

    @property
    def next_free_row(self) -> int:
        """The row before which the program gives back the next pages, or that of the end."""
        if self._frees is None or self._freed == len(self._frees.row):
            return self._end
        return int(self._frees.row[self._freed])

    def free_pages(self, node: int, row: int) -> int:
        """Return the free pages of a node."""
        taken = np.count_nonzero((self.node == node) & (self._first_row < row))
        return self.capacity[node] - int(taken)

    def find(self, addresses: Uint64s, row: int) -> tuple[Pages, Bools]:
        """Return the page at each address, and whether it is resident."""
        start = addresses - addresses % np.uint64(PAGE_BYTES)
        page = np.minimum(np.searchsorted(self._address, start), len(self._address) - 1)
        return page, (self._address[page] == start) & self._resident(page, row)

    def nodes(self, addresses: Uint64s, row: int) -> Int16s:
        """Return the node of each page, -ENOENT where it is not resident."""
        page, resident = self.find(addresses, row)
        return np.where(resident, self.node[page], -errno.ENOENT).astype(np.int16)

    def in_ranges(self, start: Uint64s, size_bytes: Uint64s, row: int) -> Pages:
        """Return the resident pages of address ranges."""
        begin = np.searchsorted(self._address, start)
        end = np.searchsorted(self._address, start + size_bytes)
        spans = [np.arange(*span) for span in zip(begin.tolist(), end.tolist(), strict=True)]
        page = np.concatenate(spans)
        return page[self._resident(page, row)]

    def mappings(self, row: int) -> Mappings:
        """Return mappings: the runs of pages that the program has accessed so far."""
        here = self._address[self._first_row < row]
        last = np.flatnonzero(np.diff(here, append=np.uint64(0)) != PAGE_BYTES)
        first = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
        return anonymous_mappings(here[first], here[last] + np.uint64(PAGE_BYTES))

    def allocate_ahead(self, row: int, reserved: int) -> Pages:
        """Choose nodes of pages not accessed yet, the first ones fast; return these pages."""
        accessed = int(np.searchsorted(self._first_row[self._by_first_row], row))
        ahead, room = self._by_first_row[accessed:], max(0, self.free_pages(FAST, row) - reserved)
        self.node[ahead[:room]], self.node[ahead[room:]] = FAST, SLOW
        return ahead

    def _resident(self, page: Pages, row: int) -> Bools:
        resident: Bools = (self._first_row[page] < row) & (self.node[page] != OUT)
        return resident


def two_tiers(preset: Preset, pages: tuple[int, int]) -> Topology:
    """Return the preset's two tiers as the kernel would report them, with so many pages each."""
    return Topology(
        tuple(
            Node(
                id=number,
                cpus=(0, 1) if number == FAST else (),
                total_bytes=pages[number] * PAGE_BYTES,
                distances=(10, 20) if number == FAST else (20, 10),
                tier=number,
                read_latency_ns=round(preset.nodes[of].read_latency_ns),
                write_latency_ns=round(preset.nodes[of].write_latency_ns),
                read_bandwidth_mbps=round(preset.nodes[of].read_bandwidth_gbps * 1000),
                write_bandwidth_mbps=round(preset.nodes[of].write_bandwidth_gbps * 1000),
            )
            for number, of in enumerate(tiers_of(preset))
        ),
        tier_source="preset",
    )


class PlacedReplay:
    """The replay of ``stream`` on ``model``, whose pages ``memory`` places.

    ``reserved`` pages of the fast node are kept from allocations. ``frames`` has the physical
    address of each page on the fast and on the slow node.
    """

    def __init__(
        self,
        model: TimingModel,
        stream: MissStream,
        preset: Preset,
        memory: SimulatedMemory,
        outcomes: MissOutcomes | None,
    ) -> None:
        pages = stream.user_pages
        self.memory = memory
        self.frames = [frames(stream, preset, np.full(pages, fast)) for fast in (True, False)]
        self.replay: MissReplay = model.misses(stream, self.frames[SLOW].copy(), outcomes)
        self.reserved = 0
        self.allocate()

    def allocate(self) -> None:
        """Place the pages that are not accessed yet, or not since they were given back."""
        row = self.replay.next
        self.memory.free_until(row)
        pages = self.memory.allocate_ahead(row, self.reserved)
        for node in (FAST, SLOW):
            there = pages[self.memory.node[pages] == node]
            self.replay.page_paddr[there] = self.frames[node][there]

    def run(self, until_ps: int = END) -> int:
        """Replay as ``MissReplay.run`` does; returns the busy time so far, in ps."""
        while True:
            row = self.memory.next_free_row
            busy_ps = self.replay.run(until_ps, row)
            if self.replay.next < row or self.replay.done:
                return busy_ps
            self.allocate()


def first_touch(
    stream: MissStream, preset: Preset, fast_pages: int, into: MissOutcomes | None = None
) -> int:
    """Return the runtime under first touch, in ps: no page moves. As ``replayed`` otherwise."""
    if stream.frees is None:
        return replayed(stream, preset, first_touched(stream, fast_pages), into)
    with TimingModel(timing_params(preset)) as model:
        memory = SimulatedMemory(stream, fast_pages)
        return PlacedReplay(model, stream, preset, memory, into).run()


def first_touched(stream: MissStream, fast_pages: int) -> Layout:
    """Return the pages that first touch puts on the fast node of a program that frees none."""
    layout = np.zeros(stream.user_pages, np.bool_)
    layout[np.argsort(first_rows(stream), kind="stable")[:fast_pages]] = True
    return layout


PROGRAM: Final = ProcessId(1000, 1)
_PROGRAM_CPU, _DAEMON_CPU = 0, 1
_BATCH_PAGES = 512  # unmapped at once: NR_MAX_BATCHED_MIGRATION (mm/migrate.c, Linux 6.3)
_GROUP_PAGES = 16  # copied between two steps of the program
_S_PER_PS = 1e-12
_CPU_TICKS = os.sysconf("SC_CLK_TCK")  # per second, of the CPU time in /proc/PID/stat


@dataclass(frozen=True, slots=True)
class MigrationCost:
    """What moving pages costs apart from the copy itself, and what swapping in costs.

    On the daemon's CPU, in instructions: ``unmap`` for each page of a batch before any is copied,
    ``remap`` for each with its copy. bench/compare/move_cost.py measures 8,300 for both; their
    shares are a guess. Each batch is one TLB shootdown, at the cost that the preset states, and
    takes ``interrupt_ns`` of the program's CPU for the handler, a guess; and ``cold_lines`` per
    page, which its cache held at the page's old frame and has to fetch again: about what two
    programs showed, and more than others do (docs/explanation/simulator.md).

    Paging out costs ``unmap`` and the interrupt. ``swap_in_ns`` is the time that the program sleeps
    at a page that was paged out: 100 us is a read of a fast NVMe SSD with its fault, a guess.
    """

    unmap_instructions: int = 5000
    remap_instructions: int = 5000
    interrupt_ns: float = 1000.0
    cold_lines: int = 12
    swap_in_ns: float = 100_000.0


class SimulatedMachine:
    """The machine, at time 0 and without a resident page; a context manager, which frees the model.

    ``fast_pages`` is how many of the program's pages the fast node can hold.
    """

    def __init__(
        self,
        stream: MissStream,
        preset: Preset,
        fast_pages: int,
        cost: MigrationCost | None = None,
    ) -> None:
        self.stream = stream
        self._memory = SimulatedMemory(stream, fast_pages)
        self.topology = two_tiers(preset, self._memory.capacity)
        self._cost = cost or MigrationCost()
        self._slept_ps = 0
        self.swapped_in = 0
        """Pages that the program has faulted in after they were paged out."""
        self._model_nodes = tiers_of(preset)
        self._read_latency_ns = [preset.nodes[of].read_latency_ns for of in self._model_nodes]
        self.outcomes = MissOutcomes.empty(len(stream))
        sampling = preset.sampling
        record = RecordCost(sampling.record_ns, sampling.interrupt_ns, sampling.buffer_records)
        self.record_s = record.seconds()
        """What a sampling record takes of the program's CPU."""
        params = timing_params(preset)
        self._instruction_ps = params.instruction_ps
        self._model = TimingModel(params)
        self._placed = PlacedReplay(self._model, stream, preset, self._memory, self.outcomes)
        self._replay = self._placed.replay

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._model.close()

    @property
    def done(self) -> bool:
        """True once the program has ended."""
        return self._replay.done

    @property
    def row(self) -> int:
        """The first miss of the stream that is still to come."""
        return self._replay.next

    @property
    def now_s(self) -> float:
        """Time since the start, of the CPU whose clock is furthest ahead."""
        return self._model.clock_ps * _S_PER_PS

    @property
    def program_s(self) -> float:
        """How long the program has run: its CPU was busy, or it slept at an unmapped page."""
        return (self._model.counters(_PROGRAM_CPU).busy_ps + self._slept_ps) * _S_PER_PS

    @property
    def executed(self) -> Executed:
        """What the program has executed so far, and how long its CPU waited, as hmd counts it."""
        counters = self._model.counters(_PROGRAM_CPU)
        stalled_ps = sum(node.stall_ps for node in counters.nodes)
        return Executed(counters.instructions, stalled_ps // 1000, counters.busy_ps // 1000)

    @property
    def misses(self) -> tuple[int, int]:
        """Lines that the program has read so far, from the fast and from the slow node."""
        nodes = self._model.counters(_PROGRAM_CPU).nodes
        fast, slow = (nodes[number] for number in self._model_nodes)
        return (
            fast.load_misses + fast.store_misses + fast.prefetched_lines,
            slow.load_misses + slow.store_misses + slow.prefetched_lines,
        )

    @property
    def page_nodes(self) -> npt.NDArray[np.int8]:
        """Node of each page, shape ``(pages,)``; of pages not yet accessed, where they will be."""
        return self._memory.node

    def run_until(self, time_s: float) -> None:
        """Let the program run to a time of its CPU's clock, or to its end."""
        self._run(round(time_s / _S_PER_PS))

    def stat(self, pid: int) -> ProcessStat | None:
        """Return what /proc/PID/stat shows; None once the program has ended."""
        if self.done or pid != PROGRAM.pid:
            return None
        return ProcessStat(PROGRAM.pid, PROGRAM.start_ticks, 1, b"program", b"R", 0, 0, 0)

    def sized_stat(self, pid: int) -> ProcessStat | None:
        """Return what /proc/PID/stat shows, with resident size and CPU time, which take longer."""
        stat = self.stat(pid)
        if stat is None:
            return None
        used = sum(node.total_bytes - node.free_bytes for node in self.memory())
        busy_ps = self._model.counters(_PROGRAM_CPU).busy_ps
        return replace(stat, resident_bytes=used, cpu_ticks=int(busy_ps * _S_PER_PS * _CPU_TICKS))

    def mappings(self, pid: int) -> Mappings | None:
        """Return mappings: the runs of pages that the program has accessed so far."""
        return self._memory.mappings(self.row) if pid == PROGRAM.pid else None

    def huge_pages(self, pid: int, mappings: Mappings) -> npt.NDArray[np.uint64]:
        """Return the starts of huge pages: there are none."""
        del pid, mappings
        return np.empty(0, np.uint64)

    def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        """Return the node of each page, or its -errno, as move_pages(2) does."""
        if pid != PROGRAM.pid:
            return np.full(len(addresses), -errno.ESRCH, np.int16)
        return self._memory.nodes(addresses, self.row)

    def query_nodes(self, pid: int, addresses: npt.NDArray[np.uint64], /) -> npt.NDArray[np.int16]:
        """Return what ``nodes`` does: the mover's name for it."""
        return self.nodes(pid, addresses)

    def move_pages(
        self,
        pid: int,
        addresses: npt.NDArray[np.uint64],
        nodes: npt.NDArray[np.int32],
        flags: MoveFlags,
        /,
    ) -> tuple[int, npt.NDArray[np.int32]]:
        """Move pages to one node while the program runs on; see ``hmd.linux.page_calls``.

        Returns when the copies are made; -ENOMEM where the node has had no room for all of them.
        """
        del flags
        status = self.nodes(pid, addresses).astype(np.int32)
        target = int(nodes[0])
        page, resident = self._memory.find(addresses, self.row)
        rows = np.flatnonzero(resident & (self._memory.node[page] != target))
        begin = 0
        while begin < len(rows):
            if self.done:
                return -errno.ESRCH, status
            batch = rows[begin : begin + min(_BATCH_PAGES, self.free_pages(target))]
            if not len(batch):
                return -errno.ENOMEM, status
            self._migrate(page[batch], target)
            status[batch] = target
            begin += len(batch)
        return 0, status

    def page_out(
        self,
        process: ProcessId,
        start: npt.NDArray[np.uint64],
        size_bytes: npt.NDArray[np.uint64],
        /,
    ) -> int:
        """Page ranges out; returns their bytes, or -ESRCH once the program has ended."""
        if process != PROGRAM or self.done:
            return -errno.ESRCH
        page = self._memory.in_ranges(start, size_bytes, self.row)
        unmap_ps = len(page) * self._cost.unmap_instructions * self._instruction_ps
        self._model.sleep(_DAEMON_CPU, self._model.clock_ps + unmap_ps)
        self._interrupt(0.0)
        self._memory.node[page] = OUT
        self._replay.page_paddr[page] = UNMAPPED
        self._placed.allocate()
        return len(page) * PAGE_BYTES

    def charge_samples(self, records: int) -> None:
        """Take the time of sampling records, which the PMU has written, of the program's CPU."""
        self._model.sample(_PROGRAM_CPU, records)

    def rest(self) -> None:
        """Halt the daemon's CPU until the next move."""
        self._model.idle(_DAEMON_CPU, self._model.counters(_DAEMON_CPU).instructions)
        self._placed.allocate()

    def memory(self) -> tuple[NodeMemory, ...]:
        """Return how much of each node is free."""
        return tuple(
            NodeMemory(node.id, node.total_bytes, self.free_pages(node.id) * PAGE_BYTES)
            for node in self.topology.nodes
        )

    def free_pages(self, node: int) -> int:
        """Return the free pages of a node."""
        return self._memory.free_pages(node, self.row)

    def _migrate(self, page: npt.NDArray[np.int64], target: int) -> None:
        """Unmap a batch, then copy it group by group; the program runs until it needs a page."""
        self._placed.reserved = len(page) if target == FAST else 0
        self._placed.allocate()
        paddr, cost = self._replay.page_paddr, self._cost
        source, destination = paddr[page].copy(), self._placed.frames[target][page]
        unmap_ps = len(page) * cost.unmap_instructions * self._instruction_ps
        end_ps = self._model.clock_ps + unmap_ps
        self._model.sleep(_DAEMON_CPU, end_ps)
        lost_ns = len(page) * cost.cold_lines * self._read_latency_ns[target]
        self._interrupt(lost_ns)
        paddr[page] = UNMAPPED
        moved = np.zeros(len(page), np.bool_)
        for begin in range(0, len(page), _GROUP_PAGES):
            group = slice(begin, begin + _GROUP_PAGES)
            blocked = self._replay.stopped_at is not None
            end_ps = self._model.copy_pages(
                _DAEMON_CPU, source[group], destination[group], cost.remap_instructions
            )
            if not blocked:
                self._run(end_ps)
                blocked = self._replay.stopped_at is not None
            # Pages that the program gives back meanwhile are not moved.
            there = paddr[page[group]] == UNMAPPED
            moved[group] = there
            paddr[page[group][there]] = destination[group][there]
            if blocked and self._replay.stopped_at is None:
                self._sleep(end_ps)
        self._memory.node[page[moved]] = target
        self._placed.reserved = 0

    def _run(self, until_ps: int) -> None:
        """Let the program run to a time of its CPU's clock; it swaps in what was paged out."""
        self._placed.run(until_ps)
        while (page := self._replay.stopped_at) is not None and self._memory.node[page] == OUT:
            now_ps = self._model.counters(_PROGRAM_CPU).clock_ps
            if now_ps >= until_ps:
                return
            self._sleep(now_ps + round(self._cost.swap_in_ns * 1000))
            node = FAST if self.free_pages(FAST) > self._placed.reserved else SLOW
            self._memory.node[page] = node
            self._replay.page_paddr[page] = self._placed.frames[node][page]
            self.swapped_in += 1
            self._placed.allocate()
            self._placed.run(until_ps)

    def _interrupt(self, lost_ns: float) -> None:
        """Stop the program for a TLB shootdown, and for the time that it loses by it."""
        self._model.shootdown(_DAEMON_CPU, (_PROGRAM_CPU,))
        now_ps = self._model.counters(_PROGRAM_CPU).clock_ps
        self._sleep(now_ps + round((self._cost.interrupt_ns + lost_ns) * 1000))

    def _sleep(self, until_ps: int) -> None:
        """Let the program sleep to a time of its CPU's clock."""
        before = self._model.counters(_PROGRAM_CPU)
        self._model.sleep(_PROGRAM_CPU, until_ps)
        after = self._model.counters(_PROGRAM_CPU)
        self._slept_ps += after.clock_ps - before.clock_ps - (after.busy_ps - before.busy_ps)
