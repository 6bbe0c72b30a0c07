# SPDX-License-Identifier: MIT
"""Private memory of real forks is counted once, and pages that they share are unmovable."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from hmd.base.units import MIB, PAGE_BYTES
from hmd.heat.table import HeatTable
from hmd.linux.processes import fork_family
from hmd.linux.procfs import ProcessId, identify
from hmd.linux.resident_pages import PageSharing, page_sharing
from hmd.residency.sweep import ResidencySweep, SweepSettings
from hmd.sample.access_batch import AccessBatch
from tests.system.heat.waiting_children import children

SIZE = 16 * MIB
PAGES = SIZE // PAGE_BYTES
SETTINGS = SweepSettings(step_s=10.0, mappings_ticks=1, max_sweep_ticks=1)
FORKS = 8


class Memory:
    """Private memory of this process, all of it touched; forks have it too."""

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.map = mmap.mmap(-1, SIZE, flags=flags)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        self.write(0, PAGES)
        self._byte = ctypes.c_char.from_buffer(self.map)
        start = ctypes.addressof(self._byte)
        self.span = (start, start + SIZE)
        self.addresses = np.arange(*self.span, PAGE_BYTES, dtype=np.uint64)

    def write(self, first: int, last: int) -> None:
        for page in range(first, last):
            self.map[page * PAGE_BYTES] = 1


def forks(count: int, work: Callable[[int], None]) -> AbstractContextManager[list[ProcessId]]:
    """Forks of this process that have done their work and then wait."""
    return children(*[partial(work, number) for number in range(count)])


def this() -> ProcessId:
    process = identify(os.getpid())
    assert process is not None
    return process


def swept(sweep: ResidencySweep, table: HeatTable, ticks: int = 4) -> None:
    for _ in range(ticks):
        table.update(sweep.attribute_to_owner(AccessBatch.empty(), table))
        sweep.step(table)


def counted(table: HeatTable, memory: Memory) -> list[int]:
    """Return the pages that the table has of the memory, by process."""
    return [
        int(np.count_nonzero(table.nodes_at(np.full(PAGES, slot, np.int32), memory.addresses) >= 0))
        for slot in range(len(table.processes))
    ]


def test_memory_of_forks_counted_once_in_their_parent() -> None:
    memory, table, sweep = Memory(), HeatTable(), ResidencySweep(SETTINGS)
    with forks(FORKS, lambda _: None) as children:
        table.track_processes([*children, this()])
        swept(sweep, table)
        assert counted(table, memory) == [0] * FORKS + [PAGES]


def test_pages_that_forks_have_written_count_in_each() -> None:
    memory, table, sweep = Memory(), HeatTable(), ResidencySweep(SETTINGS)
    with forks(FORKS, lambda number: memory.write(0, 100 * number)) as children:
        table.track_processes([*children, this()])
        swept(sweep, table)
        assert counted(table, memory) == [100 * number for number in range(FORKS)] + [PAGES]


def test_forks_without_their_parent_counted_once_and_taken_over() -> None:
    """The parent belongs to no target here."""
    memory, table, sweep = Memory(), HeatTable(), ResidencySweep(SETTINGS)
    with forks(FORKS, lambda _: None) as children:
        table.track_processes(children)
        swept(sweep, table)
        assert sorted(counted(table, memory)) == [0] * (FORKS - 1) + [PAGES]
        owner = int(np.argmax(counted(table, memory)))
        table.track_processes(children[:owner] + children[owner + 1 :])
        swept(sweep, table)
        assert sorted(counted(table, memory)) == [0] * (FORKS - 2) + [PAGES]


def test_samples_of_forks_count_where_their_pages_do() -> None:
    memory, table, sweep = Memory(), HeatTable(), ResidencySweep(SETTINGS)
    with forks(2, lambda number: memory.write(0, 64 * number)) as children:
        table.track_processes([*children, this()])
        swept(sweep, table)
        batch = AccessBatch.of(
            memory.addresses[[3, 900, 3, 900]] + np.uint64(8), np.array([0, 0, 1, 1], np.int32)
        )
        folded = sweep.attribute_to_owner(batch, table)
        assert folded.process.tolist() == [2, 2, 1, 2]
        assert folded.address.tolist() == batch.address.tolist()


def test_shared_pages_of_forks_are_unmovable_until_the_forks_are_gone() -> None:
    memory, table, sweep = Memory(), HeatTable(), ResidencySweep(SETTINGS)
    with forks(1, lambda _: None) as children:
        table.track_processes([*children, this()])
        swept(sweep, table)
        _, fixed = table.resident_pages(8)
        assert int(fixed[1].sum()) >= PAGES
        before = int(fixed[1].sum())
    table.track_processes([this()])
    swept(sweep, table)
    _, fixed = table.resident_pages(8)
    assert int(fixed.sum()) <= before - PAGES
    del memory


def test_page_sharing_shows_forks_writes_and_files() -> None:
    memory, segment = Memory(), mmap.mmap(-1, SIZE)
    segment[: 4 * PAGE_BYTES] = bytes(4 * PAGE_BYTES)
    byte = ctypes.c_char.from_buffer(segment)
    pages = ctypes.addressof(byte) + np.arange(8, dtype=np.uint64) * np.uint64(PAGE_BYTES)
    alone = page_sharing(os.getpid(), memory.addresses)
    assert (alone == PageSharing.ALONE).all()

    def work(_: int) -> None:
        memory.write(0, 100)
        assert segment[0] == segment[3 * PAGE_BYTES] == 0

    with forks(1, work) as children:
        for pid in (os.getpid(), children[0].pid):
            found = page_sharing(pid, memory.addresses)
            assert (found[:100] == PageSharing.ALONE).all()
            assert (found[100:] == PageSharing.FORKED).all()
        shared = page_sharing(os.getpid(), pages)
        assert shared[[0, 3]].tolist() == [PageSharing.FILE] * 2
        assert (shared[4:] == PageSharing.ALONE).all()


def test_fork_family_ends_with_exec() -> None:
    with forks(2, lambda _: None) as children:
        families = {fork_family(process) for process in (*children, this())}
        assert len(families) == 1
        assert families != {""}
    with forks(1, lambda _: os.setuid(64711)) as [other_user]:
        assert fork_family(other_user) not in {fork_family(this()), ""}
    assert fork_family(ProcessId(os.getpid(), 1)) == ""
