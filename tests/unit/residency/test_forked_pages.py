# SPDX-License-Identifier: MIT
"""Private pages of modelled forks, through sweeps, writes, exits and samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES
from hmd.heat.table import HeatTable
from hmd.linux.mappings import Mappings, parse_maps
from hmd.linux.procfs import ProcessId
from hmd.linux.resident_pages import PageSharing
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import ResidencySweep, SweepSettings
from hmd.sample.access_batch import AccessBatch

START = 64 * CHUNK_BYTES
PAGES = 2048


class Forks:
    """Processes with the same private memory: ``copy`` has who has which copy of each page."""

    def __init__(self, count: int) -> None:
        self.copy = {pid: [0] * PAGES for pid in range(1, count + 1)}

    def mappings(self, pid: int) -> Mappings | None:
        end = START + PAGES * PAGE_BYTES
        line = f"{START:x}-{end:x} rw-p 00000000 00:00 0\n"
        return parse_maps(line.encode()) if pid in self.copy else None

    def huge_pages(self, pid: int, mappings: Mappings) -> npt.NDArray[np.uint64]:
        del pid, mappings
        return np.empty(0, np.uint64)

    def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        return np.full(len(addresses), 1 if pid in self.copy else -3, np.int16)

    def write(self, pid: int, first: int, last: int) -> None:
        self.copy[pid][first:last] = [pid] * (last - first)

    def exclusive(self, pid: int, page: int) -> bool:
        return [pages[page] for pages in self.copy.values()].count(self.copy[pid][page]) == 1


class ForkedMemory(ModelledMemory):
    def __init__(self, forks: Forks) -> None:
        super().__init__(forks)
        self.forks, self.read = forks, 0

    def fork_family(self, process: ProcessId) -> str:
        return "program" if process.pid in self.forks.copy else ""

    def sharing(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint8]:
        self.read += len(addresses)
        pages = ((addresses.astype(np.int64) - START) // PAGE_BYTES).tolist()
        alone = [self.forks.exclusive(process.pid, page) for page in pages]
        return np.where(alone, PageSharing.ALONE, PageSharing.FORKED).astype(np.uint8)


def setting(
    count: int, *, move_shared: bool = True
) -> tuple[HeatTable, Forks, ForkedMemory, ResidencySweep]:
    """Return a table of some forks, the oldest last: process ids do not say who is older."""
    table, forks = HeatTable(), Forks(count)
    table.track_processes([ProcessId(pid, 100 - pid) for pid in forks.copy])
    memory = ForkedMemory(forks)
    settings = SweepSettings(max_sweep_ticks=2, mappings_ticks=1, move_shared=move_shared)
    return table, forks, memory, ResidencySweep(settings, memory, lambda: 0.0)


def ticks(table: HeatTable, sweep: ResidencySweep, count: int = 8) -> None:
    for _ in range(count):
        table.update(sweep.attribute_to_owner(AccessBatch.empty(), table))
        sweep.step(table)


def pages(table: HeatTable) -> list[int]:
    movable, fixed = table.resident_pages(2)
    return [int(count) for count in (movable + fixed).sum(axis=1)]


def samples(process: list[int], page: list[int]) -> AccessBatch:
    return AccessBatch.of(
        np.array(page, np.uint64) * np.uint64(PAGE_BYTES) + np.uint64(START),
        np.array(process, np.int32),
    )


def test_pages_of_forks_counted_once_in_the_oldest() -> None:
    table, _, _, sweep = setting(20)
    ticks(table, sweep)
    assert pages(table) == [0] * 19 + [PAGES]


def test_fork_takes_no_page_and_no_heat_from_its_parent() -> None:
    table, forks, _, sweep = setting(1)
    ticks(table, sweep)
    parent = table.processes[0]
    forks.copy[2] = [0] * PAGES
    table.track_processes([ProcessId(2, 200), parent])
    slot = table.processes.index(parent)
    ticks(table, sweep, 1)
    assert pages(table)[slot] == PAGES
    ticks(table, sweep)
    assert pages(table)[slot] == sum(pages(table)) == PAGES


def test_page_written_since_the_fork_counts_in_both() -> None:
    table, forks, _, sweep = setting(3)
    ticks(table, sweep)
    forks.write(1, 0, 700)
    forks.write(3, 600, 800)
    ticks(table, sweep)
    # Pages 600 to 699 have three copies: of the first, the last, and the one in between.
    # Of the next 100, the last has a copy, and one of the others counts theirs.
    first, between, last = pages(table)
    assert last == PAGES
    assert (first, between) in {(700, 200), (800, 100)}


def test_pages_of_an_exited_parent_counted_by_a_fork() -> None:
    table, forks, _, sweep = setting(4)
    ticks(table, sweep)
    del forks.copy[4]
    table.track_processes(table.processes[:3])
    ticks(table, sweep)
    assert sorted(pages(table)) == [0, 0, PAGES]


def test_samples_count_where_the_page_does() -> None:
    table, forks, _, sweep = setting(2)
    forks.write(1, 0, 512)
    ticks(table, sweep)
    folded = sweep.attribute_to_owner(samples([0, 0, 1, -1], [3, 1000, 1000, 1000]), table)
    assert folded.process.tolist() == [0, 1, 1, -1]
    assert folded.address.tolist() == samples([0] * 4, [3, 1000, 1000, 1000]).address.tolist()


def test_process_without_forks_is_not_asked_who_shares() -> None:
    table, forks, memory, sweep = setting(2)
    ticks(table, sweep)
    assert memory.read
    del forks.copy[1]
    table.track_processes(table.processes[1:])
    memory.read = 0
    ticks(table, sweep)
    assert pages(table) == [PAGES]
    assert not memory.read


@pytest.mark.parametrize("move_shared", [True, False])
def test_shared_pages_unmovable_unless_shared_pages_may_move(move_shared: bool) -> None:
    table, forks, _, sweep = setting(2, move_shared=move_shared)
    forks.write(1, 0, 512)
    ticks(table, sweep)
    movable, fixed = table.resident_pages(2)
    # 512 pages have two copies, one each; the others are of both.
    shared = PAGES - 512
    assert int(movable.sum()) == 2 * 512 + (shared if move_shared else 0)
    assert int(fixed.sum()) == (0 if move_shared else shared)


def test_pages_movable_in_the_next_step_when_the_last_fork_has_exited() -> None:
    table, forks, _, sweep = setting(2, move_shared=False)
    sweep.settings = replace(sweep.settings, max_sweep_ticks=32)
    ticks(table, sweep, 40)
    movable, _ = table.resident_pages(2)
    assert int(movable.sum()) == 0
    del forks.copy[1]
    table.track_processes(table.processes[1:])
    ticks(table, sweep, 1)
    movable, _ = table.resident_pages(2)
    assert int(movable.sum()) == PAGES


def test_shared_pages_of_refused_process_unmovable_after_next_sweep() -> None:
    """A fork whose parent belongs to no target: only the refused move shows that it shares."""
    table, _, _, sweep = setting(2, move_shared=False)
    table.track_processes(table.processes[:1])
    ticks(table, sweep)
    movable, _ = table.resident_pages(2)
    assert int(movable.sum()) == PAGES
    sweep.record_refused_moves([table.processes[0]])
    ticks(table, sweep, 1)
    movable, fixed = table.resident_pages(2)
    assert (int(movable.sum()), int(fixed.sum())) == (0, PAGES)
