# SPDX-License-Identifier: MIT
"""Memory that processes of this host share is tracked once: memfd, shared mappings, files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.hostile.scale_cases import NeighbourCase, compiled, neighbours
from hmd.base.units import MIB, PAGE_BYTES
from hmd.heat.table import HeatTable
from hmd.linux.mappings import read_mappings
from hmd.linux.processes import ProcessWatcher
from hmd.linux.procfs import ProcessId
from hmd.linux.targets import TargetSpec
from hmd.residency.sweep import ResidencySweep, SweepSettings
from hmd.sample.access_batch import AccessBatch
from tests.system.heat.waiting_children import children

SIZE = 16 * MIB
PAGES = SIZE // PAGE_BYTES
SETTINGS = SweepSettings(step_s=10.0, mappings_ticks=1, max_sweep_ticks=1)


_MAPPED: list[mmap.mmap] = []
"""What a child keeps mapped."""


def touch(memory: mmap.mmap, first: int, last: int) -> None:
    for page in range(first, last):
        memory[page * PAGE_BYTES] = 1


def swept(sweep: ResidencySweep, table: HeatTable, ticks: int = 3) -> None:
    for _ in range(ticks):
        table.update(sweep.attribute_to_owner(AccessBatch.empty(), table))
        sweep.step(table)


def pages_within(table: HeatTable, slot: int, addresses: tuple[int, int]) -> int:
    """Return the pages that the table has of a process in some addresses."""
    columns, used = table.chunks.columns, table.chunks.used
    rows = np.flatnonzero(columns.process[:used] == slot)
    count = 0
    for row in rows.tolist():
        page = columns.address[row] + np.arange(512, dtype=np.uint64) * np.uint64(PAGE_BYTES)
        there = columns.node[columns.page_slot[row]] != -1
        inside = (page >= np.uint64(addresses[0])) & (page < np.uint64(addresses[1]))
        count += int(np.count_nonzero(there & inside))
    return count


def address_of(process: ProcessId, path: str) -> tuple[int, int]:
    """The mapping of SIZE bytes by its path: other tests may have left smaller shared ones."""
    mappings = read_mappings(process.pid)
    assert mappings is not None
    sized = mappings.end - mappings.start == SIZE
    [row] = [i for i, name in enumerate(mappings.path) if path in name and sized[i]]
    return int(mappings.start[row]), int(mappings.end[row])


def shared_counts(table: HeatTable, path: str) -> list[int]:
    return [
        pages_within(table, slot, address_of(process, path))
        for slot, process in enumerate(table.processes)
    ]


def memfd() -> int:
    descriptor = os.memfd_create("hmd-segment")
    os.ftruncate(descriptor, SIZE)
    return descriptor


def maps(descriptor: int, first: int, last: int) -> Callable[[], None]:
    """Return work that maps a file and touches some of its pages."""

    def work() -> None:
        memory = mmap.mmap(descriptor, SIZE)
        _MAPPED.append(memory)
        touch(memory, first, last)

    return work


def test_memfd_of_four_processes_counted_once() -> None:
    descriptor = memfd()
    table, sweep = HeatTable(), ResidencySweep(SETTINGS)
    with children(*[maps(descriptor, 0, PAGES)] * 4) as processes:
        table.track_processes(processes)
        swept(sweep, table)
        assert shared_counts(table, "hmd-segment") == [PAGES, 0, 0, 0]
    os.close(descriptor)


def test_pages_that_only_one_process_touched_counted_there() -> None:
    """The kernel finds and moves a page only where it is in the page table."""
    descriptor = memfd()
    works = [maps(descriptor, *part) for part in ((0, 700), (300, 1000), (999, 1500))]
    table, sweep = HeatTable(), ResidencySweep(SETTINGS)
    with children(*works) as processes:
        table.track_processes(processes)
        swept(sweep, table)
        counts = shared_counts(table, "hmd-segment")
    os.close(descriptor)
    assert counts == [700, 300, 500]


def test_segment_of_exited_process_counted_by_another() -> None:
    descriptor = memfd()
    table, sweep = HeatTable(), ResidencySweep(SETTINGS)
    with children(*[maps(descriptor, 0, PAGES)] * 3) as processes:
        table.track_processes(processes)
        swept(sweep, table)
        table.track_processes(processes[1:])
        swept(sweep, table)
        assert sorted(shared_counts(table, "hmd-segment")) == [0, PAGES]
    os.close(descriptor)


def test_samples_of_shared_pages_fold_to_the_process_that_counts_them() -> None:
    descriptor = memfd()
    table, sweep = HeatTable(), ResidencySweep(SETTINGS)
    with children(*[maps(descriptor, 0, PAGES)] * 2) as processes:
        table.track_processes(processes)
        swept(sweep, table)
        start = [address_of(process, "hmd-segment")[0] for process in processes]
        batch = samples([0, 1, 1], [start[0], start[1] + 8 * PAGE_BYTES + 5, PAGE_BYTES])
        folded = sweep.attribute_to_owner(batch, table)
    os.close(descriptor)
    assert folded.process.tolist() == [0, 0, 1]
    assert folded.address.tolist() == [start[0], start[0] + 8 * PAGE_BYTES + 5, PAGE_BYTES]


def samples(process: list[int], address: list[int]) -> AccessBatch:
    return AccessBatch.of(np.array(address, np.uint64), np.array(process, np.int32))


@pytest.mark.parametrize("kind", ["anonymous", "file"])
def test_shared_mapping_of_forks_counted_once(kind: str, tmp_path: Path) -> None:
    if kind == "file":
        path = tmp_path / "segment"
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), SIZE)
    else:
        memory, path = mmap.mmap(-1, SIZE), Path("/dev/zero")
    table, sweep = HeatTable(), ResidencySweep(SETTINGS)
    with children(*[lambda: touch(memory, 0, PAGES)] * 3) as processes:
        table.track_processes(processes)
        swept(sweep, table)
        assert shared_counts(table, str(path)) == [PAGES, 0, 0]
    memory.close()


def test_processes_of_one_address_space_tracked_as_one(tmp_path: Path) -> None:
    case = NeighbourCase("spaces", ("threads", 20, 400), 20)
    table, sweep = HeatTable(), ResidencySweep(SETTINGS)
    program = compiled(tmp_path)
    with neighbours(program, case):
        processes = ProcessWatcher([TargetSpec("n", exe=str(program))]).scan()["n"]
        assert len(processes) == 21
        table.track_processes(processes)
        swept(sweep, table)
        movable, fixed = table.resident_pages(8)
        [owner] = np.flatnonzero((movable + fixed).sum(axis=1)).tolist()
        pages = int((movable + fixed).sum())
        # Samples of any of them are the owner's; when it is gone, another has the pages.
        batch = samples([3, 20], [5 * PAGE_BYTES, 6 * PAGE_BYTES])
        assert sweep.attribute_to_owner(batch, table).process.tolist() == [owner, owner]
        table.track_processes(processes[:owner] + processes[owner + 1 :])
        swept(sweep, table)
        movable, fixed = table.resident_pages(8)
        assert np.count_nonzero((movable + fixed).sum(axis=1)) == 1
        assert abs(int((movable + fixed).sum()) - pages) < 16
