# SPDX-License-Identifier: MIT
"""Huge pages by PAGEMAP_SCAN and by page flags, on this host."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.linux import huge_pages
from hmd.linux.huge_pages import HugeSource, candidate_spans
from hmd.linux.mappings import read_mappings


def test_huge_pages_by_scan_and_by_flags_are_the_same(huge_block: Any) -> None:
    maps = read_mappings(os.getpid())
    assert maps is not None
    first = -(-huge_block.ctypes.data // (2 << 20)) * (2 << 20)
    spans = candidate_spans(maps)
    inside = (spans[:, 0] <= first) & (first < spans[:, 1])
    assert inside.sum() == 1
    spans = np.array([[first, min(first + (14 << 20), int(spans[inside, 1][0]))]], np.uint64)
    proc = Path("/proc")
    scan = huge_pages._from_scan(os.getpid(), spans, proc)
    flags = huge_pages._from_flags(os.getpid(), spans, proc)
    if scan is None:
        pytest.skip("this kernel has no PAGEMAP_SCAN")
    assert flags is not None
    assert scan.source == HugeSource.SCAN
    assert flags.source == HugeSource.FLAGS
    assert scan.address.tolist() == flags.address.tolist()
