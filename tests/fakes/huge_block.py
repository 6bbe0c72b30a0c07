# SPDX-License-Identifier: MIT
"""Memory of this process in huge pages, where the kernel gives some."""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt
import pytest

from hmd.linux.mappings import read_mapping_details


def map_huge_block() -> npt.NDArray[np.uint8]:
    """Return 16 MiB, half of them touched; skips the test where less than 4 MiB are huge pages."""
    block = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    block[: 8 << 20 : mmap.PAGESIZE] = b"x" * (8 << 20 >> 12)
    view = np.frombuffer(block, np.uint8)
    details = read_mapping_details(os.getpid())
    assert details is not None
    row = int(np.searchsorted(details.start, view.ctypes.data, side="right")) - 1
    if details.huge_bytes[row] < 4 << 20:
        pytest.skip("this kernel gave no huge pages")
    return view
