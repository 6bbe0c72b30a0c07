"""The layout of the heat table, which its kernels and its callers share."""

from __future__ import annotations

from typing import Final

from hmd.units import HUGE_PAGE_PAGES, PAGE_BYTES

#: Pages in a chunk: 2 MiB of address space, the size of a huge page.
CHUNK_PAGES: Final = HUGE_PAGE_PAGES
CHUNK_BYTES: Final = CHUNK_PAGES * PAGE_BYTES
#: Pages in a block: 64 KiB of neighbours, whose heat is judged together.
BLOCK_PAGES: Final = 16
CHUNK_BLOCKS: Final = CHUNK_PAGES // BLOCK_PAGES
#: Exposure is kept in a byte; this is all of the process's clock.
FULL_EXPOSURE: Final = 255
#: In the ``node`` column: a page that is absent, or was not looked at yet.
ABSENT: Final = -1
#: In the ``node`` column: a page that must stay on node n is kept as ``FIXED - n``.
FIXED: Final = -2
