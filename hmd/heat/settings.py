# SPDX-License-Identifier: MIT
"""Settings, counters and layout of the heat table."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class HeatSettings:
    """How samples become heat. The defaults adapt to the memory of each process.

    ``cooling_samples``: history is halved after this many samples of its process; None means
    ``cooling_samples_per_page`` times its resident pages.
    ``window_pages_per_sample``: a window closes, and the history that it contradicts is discarded,
    when there is one sample per this many resident pages; smaller is more certain.
    ``min_window_samples``: no window closes with fewer samples.
    ``change_threshold``: deviation, in standard deviations, from which history loses weight. Of
    thousands of pages that are tested, one in twenty deviates by two by chance, one in 370 by
    three.
    ``max_page_slots``: chunks of 2 MiB whose pages are counted one by one; others have one count.
    """

    cooling_samples: int | None = None
    cooling_samples_per_page: float = 16.0
    window_pages_per_sample: float = 8.0
    min_window_samples: int = 256
    change_threshold: float = 3.0
    max_page_slots: int = 2048


@dataclass(slots=True)
class HeatStats:
    """Counters since the table was made; ``chunks``, ``page_slots``, ``bytes`` are current values.

    ``ignored`` counts samples of no tracked process or no user address, ``windows`` closed windows,
    ``changes`` detected changes of processes (:mod:`hmd.heat.changes`). ``page_slots`` are in use;
    ``page_slots_reassigned`` went to chunks whose pages differ more, ``page_slots_dropped`` were
    given up for lack of memory.
    """

    samples: int = 0
    ignored: int = 0
    windows: int = 0
    changes: int = 0
    page_slots_reassigned: int = 0
    page_slots_dropped: int = 0
    chunks: int = 0
    page_slots: int = 0
    bytes: int = 0
