"""Pages to page out: those of the slowest tier that were idle for very long.

Takes the idle times of pages, gives rows for :mod:`hmd.migrate.pageout`, the longest idle first.
The same for every policy, and off unless a time is configured. About 10 ns per page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hmd.decide.plan import MachineView, Plan
from hmd.decide.planning.plan_rows import moves_of
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

OUT: Final = -1
"""In place of a node: swap, zram, or the file that backs the page."""


def idle_pages(pages: PageView, machine: MachineView, idle_s: float, most_bytes: int) -> Plan:
    """Return up to ``most_bytes`` of pages that were not sampled for ``idle_s``, to go ``OUT``.

    Only movable pages of the slowest tier. The idle time of a new page starts when it appears.
    """
    slowest = len(machine.topology.tiers) - 1
    if slowest < 0:
        return Plan.empty(pages.processes)
    ticks = pages.idle_ticks
    long = ticks >= max(idle_s / machine.tick_s, 1.0)
    rows = np.flatnonzero(long & pages.movable & (pages.tier == slowest))
    rows = rows[np.argsort(-ticks[rows], kind="stable")]
    fits = np.cumsum(pages.size[rows], dtype=np.int64) <= min(most_bytes, 1 << 62) // PAGE_BYTES
    out = pages.take(rows[fits])
    return moves_of(pages.processes, out, np.arange(len(out.size)), np.full(len(out.size), OUT))
