# SPDX-License-Identifier: MIT
"""Settings and counters of the heat table."""

from __future__ import annotations

from dataclasses import dataclass


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
    ``store_weight``: what a store counts for compared with a load.
    ``max_page_slots``: chunks of 2 MiB whose pages are counted one by one; others have one count.
    """

    cooling_samples: int | None = None
    cooling_samples_per_page: float = 16.0
    window_pages_per_sample: float = 8.0
    min_window_samples: int = 256
    change_threshold: float = 3.0
    store_weight: float = 1.0
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
