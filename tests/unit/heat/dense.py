"""Rates of a table by chunk and page, for tests that know where pages are stored."""

from __future__ import annotations

import numpy as np

from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.heat_table import HeatTable
from hmd.heat.page_columns import PageRates
from hmd.machine.topology import Node, Topology

ONE_NODE = Topology((Node(0, (0,), 1 << 30, (10,), 0),))


def dense_rates(table: HeatTable) -> PageRates:
    """Return rates of shape ``(chunks, 512)``: 0 where no page is; all rows of a huge page."""
    pages = table.view(ONE_NODE)
    used = table.chunks.used
    found = PageRates(
        np.zeros((used, CHUNK_PAGES), np.float32), np.zeros((used, CHUNK_PAGES), np.float32)
    )
    for dense, column in zip(found, (pages.rate, pages.support), strict=True):
        dense.reshape(-1)[pages.number] = column
        huge = table.chunks.columns.huge[:used]
        dense[huge] = dense[huge, :1]
    return found
