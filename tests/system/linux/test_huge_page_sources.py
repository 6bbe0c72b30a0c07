# SPDX-License-Identifier: MIT
"""Huge pages by PAGEMAP_SCAN and by page flags, on this host."""

import os
from typing import Any

import numpy as np
import pytest

from hmd.linux.huge_pages import HugeSource, huge_by_flags, huge_source
from hmd.linux.resident_pages import resident_ranges

BLOCK = 2 << 20


def test_huge_pages_by_scan_and_by_flags_are_the_same(huge_block: Any) -> None:
    if huge_source() is not HugeSource.SCAN:
        pytest.skip("this kernel has no PAGEMAP_SCAN")
    first = -(-huge_block.ctypes.data // BLOCK) * BLOCK
    blocks = np.arange(first, first + 7 * BLOCK, BLOCK, dtype=np.uint64)
    flags = huge_by_flags(os.getpid(), blocks)
    assert flags is not None
    ranges = resident_ranges(os.getpid(), first, first + 7 * BLOCK, 1 << 20)
    scan = [start for one in ranges if one.huge for start in range(one.start, one.end, BLOCK)]
    assert flags.tolist() == scan
