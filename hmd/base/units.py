# SPDX-License-Identifier: MIT
"""Sizes that every room shares: pages, cache lines and multiples of bytes.

The size of a page is that of this machine's kernel: 4, 16 or 64 KiB. ``HMD_PAGE_BYTES`` in the
environment sets another one, for a process that reads the traces of another machine: counts of
pages, chunks of heat and compiled kernels all follow ``PAGE_BYTES``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

PAGE_SIZES: Final = (4 * KIB, 16 * KIB, 64 * KIB)
"""Base pages that kernels have: of x86-64 4 KiB, of arm64 any (CONFIG_ARM64_64K_PAGES)."""

PAGE_SIZE_VARIABLE: Final = "HMD_PAGE_BYTES"
"""The environment variable that sets ``PAGE_BYTES``."""


def _page_bytes() -> int:
    """Return the size of a base page; that of the kernel where the variable has none of them."""
    text = os.environ.get(PAGE_SIZE_VARIABLE, "")
    chosen = int(text) if text.isdecimal() else 0
    return chosen if chosen in PAGE_SIZES else os.sysconf("SC_PAGESIZE")


def _huge_page_bytes(page_bytes: int) -> int:
    """Return what one PMD entry maps: of this kernel by sysfs, else a table of 8-byte entries.

    2 MiB with pages of 4 KiB, 32 MiB with 16, 512 MiB with 64.
    """
    if page_bytes == os.sysconf("SC_PAGESIZE"):
        try:
            stated = int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
        except (OSError, ValueError):
            stated = 0
        if stated >= 16 * page_bytes and not stated & (stated - 1):
            return stated
    return page_bytes * page_bytes // 8


PAGE_BYTES: Final = _page_bytes()
"""A base page."""

PAGE_SHIFT: Final = PAGE_BYTES.bit_length() - 1
"""log2 of ``PAGE_BYTES``."""

HUGE_PAGE_BYTES: Final = _huge_page_bytes(PAGE_BYTES)
"""A huge page: what one PMD entry maps (Documentation/admin-guide/mm/transhuge.rst)."""

HUGE_PAGE_PAGES: Final = HUGE_PAGE_BYTES // PAGE_BYTES
"""Base pages in a huge page."""

PAGE_MOVE_COST: Final = 0.5 + 0.5 * PAGE_BYTES / (4 * KIB)
"""What moving a base page costs its program, in moves of 4 KiB: half of one is the copy.

4 KiB take some 2 µs (``hmd.estimate.schedule.PAGE_MOVE_NS``), and copying them at 4 GB/s 1 µs.
"""

MOVE_NS: Final = 3000.0
"""What moving 4 KiB costs its program, in ns, where no policy's ``move_ns`` says otherwise.

More than it takes, so that moves that hardly pay are not made."""

LINE_BYTES: Final = 64
"""A cache line of every supported CPU."""
