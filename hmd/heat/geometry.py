# SPDX-License-Identifier: MIT
"""The layout of the heat table, which its kernels and its callers share."""

from __future__ import annotations

from typing import Final

from hmd.base.units import HUGE_PAGE_PAGES, PAGE_BYTES

#: Pages per chunk, which has the size of a huge page: 512, 2 MiB, with base pages.
CHUNK_PAGES: Final = HUGE_PAGE_PAGES
CHUNK_BYTES: Final = CHUNK_PAGES * PAGE_BYTES
#: Pages per block of neighbours, whose heat is estimated together.
BLOCK_PAGES: Final = 16
CHUNK_BLOCKS: Final = CHUNK_PAGES // BLOCK_PAGES
#: Parts of a coarse chunk, 64 at most: a bit for each shows whether samples hit it.
PROBE_PARTS: Final = min(64, CHUNK_PAGES)
PROBE_PART_PAGES: Final = CHUNK_PAGES // PROBE_PARTS
#: Exposure is stored in a byte; this value is all of the process's history.
FULL_EXPOSURE: Final = 255
#: In the ``node`` column: a page that is absent, or that no sweep has reached.
ABSENT: Final = -1
#: In the ``node`` column: an unmovable page on node n is stored as ``FIXED - n``.
FIXED: Final = -2
#: What a move adds to a page's wear; wear halves in about ten ticks.
MOVE_WEAR: Final = 64
