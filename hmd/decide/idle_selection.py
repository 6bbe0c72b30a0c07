"""Which pages to send out of memory: those of the slowest tier that were idle for very long.

Takes for how long pages were idle, gives rows for :mod:`hmd.migrate.pageout`, the longest idle
first. The same for every policy, and off unless a time is set. About 10 ns a page.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.plan_rows import moves_of
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.heat_table import HeatTable
from hmd.units import PAGE_BYTES

OUT: Final = -1
"""Instead of a node: swap, zram, or the file that a page is of."""


def idle_pages(heat: HeatTable, machine: MachineView, idle_s: float, most_bytes: int) -> Plan:
    """Return up to ``most_bytes`` of pages that were not sampled for ``idle_s``, to go ``OUT``.

    Of movable pages on the slowest tier; a page that has just come counts from then on.
    """
    used, columns = heat.chunks.used, heat.chunks.columns
    nodes = nodes_of(machine, 0.0, 0)
    if not nodes.tiers:
        return Plan.empty(heat.processes)
    ticks = heat.idle().ticks
    long = (nodes.of_pages(columns.node[:used]) == nodes.tiers - 1) & (
        ticks >= max(idle_s / machine.tick_s, 1.0)
    )
    long[:, 1:] &= ~columns.huge[:used, None]
    page = np.flatnonzero(long)
    page = page[np.argsort(-ticks.reshape(-1)[page], kind="stable")]
    size = np.where(columns.huge[page // CHUNK_PAGES], CHUNK_PAGES, 1)
    fits = np.cumsum(size) <= min(most_bytes, 1 << 62) // PAGE_BYTES
    page, size = page[fits], size[fits]
    source = columns.node.reshape(-1)[page]
    out, no_rate = np.full(len(page), OUT, np.int16), np.zeros(len(page), np.float32)
    return moves_of(heat, page, size, source, out, no_rate)
