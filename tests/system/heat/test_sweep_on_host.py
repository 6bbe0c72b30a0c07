"""The residency sweep over the memory of this very process."""

from __future__ import annotations

import mmap
import os

import numpy as np

from hmd.heat.geometry import CHUNK_BYTES
from hmd.heat.heat_table import HeatTable
from hmd.heat.residency_sweep import ResidencySweep
from hmd.machine.process_id import ProcessId
from hmd.sample.access_batch import AccessBatch
from hmd.units import PAGE_BYTES


def tick(table: HeatTable, sweep: ResidencySweep, address: int | None = None) -> int:
    batch = AccessBatch.empty()
    if address is not None:
        one = np.ones(1, np.uint32)
        zero = np.zeros(1)
        batch = AccessBatch(
            zero.astype(np.int32),
            np.array([address], np.uint64),
            zero.astype(np.uint8),
            zero.astype(np.uint16),
            zero.astype(np.uint32),
            zero.astype(np.uint64),
            zero.astype(np.uint32),
            one,
        )
    table.update(batch)
    return sweep.step(table)


def test_sweep_of_this_process_finds_its_touched_pages() -> None:
    size = 4 * CHUNK_BYTES
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    for page in range(0, size // PAGE_BYTES, 2):
        memory[page * PAGE_BYTES] = 1
    table, sweep = HeatTable(), ResidencySweep()
    table.track([ProcessId(os.getpid(), 1)])
    for _ in range(200):
        tick(table, sweep)
    pages = [start + i * PAGE_BYTES for i in range(size // PAGE_BYTES)]
    aligned = np.array([p - p % CHUNK_BYTES for p in pages], np.uint64)
    found = table.chunks.find(0, aligned)
    assert (found >= 0).all()
    node = np.array(
        [
            table.chunks.columns.node[row, p % CHUNK_BYTES // PAGE_BYTES]
            for row, p in zip(found.tolist(), pages, strict=True)
        ]
    )
    assert (node[::2] >= 0).all()
    movable, _ = table.resident_pages(8)
    assert movable.sum() * PAGE_BYTES > size // 2
