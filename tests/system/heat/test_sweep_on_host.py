# SPDX-License-Identifier: MIT
"""The residency sweep over the memory of this very process."""

from __future__ import annotations

import mmap
import os

import numpy as np

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES
from hmd.heat.table import HeatTable
from hmd.linux.huge_pages import HugeSource, huge_source
from hmd.linux.procfs import ProcessId, identify
from hmd.residency.sweep import ResidencySweep, SweepSettings
from tests.unit.heat.swept_tick import tick

MAP_NORESERVE = 0x4000  # asm-generic/mman.h


def test_sweep_of_sparse_address_space_finds_its_pages_in_few_queries() -> None:
    """Page by page, 16 TiB take four billion queries."""
    size = 16 << 40
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, size, flags=flags)
    start = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    touched = [0, size // 3, size - PAGE_BYTES]
    for offset in touched:
        memory[offset] = 1
    this = identify(os.getpid())
    assert this is not None
    table, sweep = HeatTable(), ResidencySweep(SweepSettings(step_s=1.0))
    table.track_processes([this])
    asked = sum(tick(table, sweep) for _ in range(8))
    pages = [start + offset // PAGE_BYTES * PAGE_BYTES for offset in touched]
    found = table.chunks.find(0, np.array([p - p % CHUNK_BYTES for p in pages], np.uint64))
    if huge_source() is HugeSource.SCAN:
        assert (found >= 0).all()
        assert asked < 1 << 20


def test_sweep_of_reused_pid_records_nothing() -> None:
    table, sweep = HeatTable(), ResidencySweep()
    table.track_processes([ProcessId(os.getpid(), 1)])
    for _ in range(8):
        tick(table, sweep)
    assert table.chunks.used == 0


def test_sweep_of_this_process_finds_its_touched_pages() -> None:
    size = 4 * CHUNK_BYTES
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    for page in range(0, size // PAGE_BYTES, 2):
        memory[page * PAGE_BYTES] = 1
    table, sweep = HeatTable(), ResidencySweep()
    this = identify(os.getpid())
    assert this is not None
    table.track_processes([this])
    for _ in range(200):
        tick(table, sweep)
    pages = [start + i * PAGE_BYTES for i in range(size // PAGE_BYTES)]
    aligned = np.array([p - p % CHUNK_BYTES for p in pages], np.uint64)
    found = table.chunks.find(0, aligned)
    assert (found >= 0).all()
    node = np.array(
        [
            table.chunks.columns.node[
                table.chunks.columns.page_slot[row], p % CHUNK_BYTES // PAGE_BYTES
            ]
            for row, p in zip(found.tolist(), pages, strict=True)
        ]
    )
    assert (node[::2] >= 0).all()
    movable, _ = table.resident_pages(8)
    assert movable.sum() * PAGE_BYTES > size // 2
