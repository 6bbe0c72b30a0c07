# SPDX-License-Identifier: MIT
"""Columns of samples as the emulated machine's rings give them: a page-table root and addresses."""

from __future__ import annotations

import struct

import numpy as np

from hmd.sample.perf_ring import RecordColumns, Ring, SampleType

TYPE = SampleType.TID | SampleType.ADDR | SampleType.PHYS_ADDR


def columns_of(samples: list[tuple[int, int, int]]) -> RecordColumns:
    """Return columns of (root, virtual, physical), read from a ring."""
    size = 1 << 16
    memory = np.zeros(4096 + size, np.uint8)
    written = b"".join(struct.pack("<IHHIIQQ", 9, 0, 32, r, 0, v, p) for r, v, p in samples)
    memory[4096 : 4096 + len(written)] = np.frombuffer(written, np.uint8)
    memory[1024:1032].view(np.uint64)[0] = len(written)
    columns = RecordColumns(2048)
    Ring.over(memory, TYPE).drain(columns)
    assert columns.count == len(samples)
    return columns
