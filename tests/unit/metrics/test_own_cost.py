# SPDX-License-Identifier: MIT
"""The daemon's own cost, as the kernel counts it for this process."""

import mmap
import os
import time
from pathlib import Path

from hmd.base.units import PAGE_BYTES
from hmd.metrics.observer import OwnCost


def test_own_cost_cpu_time_counted_since_construction() -> None:
    own = OwnCost()
    before_s = own.cpu_s
    assert before_s < 0.05
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    assert 0.05 <= own.cpu_s - before_s < 1.0


def test_own_cost_resident_memory_grows_with_touched_pages() -> None:
    own = OwnCost()
    before = own.resident_bytes
    statm = Path(f"/proc/{os.getpid()}/statm").read_text().split()
    assert abs(before - int(statm[1]) * PAGE_BYTES) < 8 << 20
    # Not of the heap, which may hold 64 MiB that earlier tests touched and freed.
    with mmap.mmap(-1, 64 << 20) as mapped:
        mapped[::PAGE_BYTES] = b"1" * (len(mapped) // PAGE_BYTES)
        assert own.resident_bytes - before > 48 << 20
