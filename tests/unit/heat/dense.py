# SPDX-License-Identifier: MIT
"""Rates of a table by chunk and page, for tests that know where pages are stored."""

from __future__ import annotations

import numpy as np

from hmd.heat.settings import ABSENT, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.heat.view import PageRates
from hmd.linux.topology import Node, Topology

ONE_NODE = Topology((Node(0, (0,), 1 << 30, (10,), 0),))


def dense_rates(table: HeatTable) -> PageRates:
    """Return rates of shape ``(chunks, 512)``: 0 where no page is; all rows of a huge page."""
    columns, used = table.chunks.columns, table.chunks.used
    rates = table.rates()
    found = PageRates(
        np.zeros((used, CHUNK_PAGES), np.float32), np.zeros((used, CHUNK_PAGES), np.float32)
    )
    pages = (rates.page_rate, rates.page_samples)
    wholes = (rates.chunk_rate, rates.chunk_samples)
    for chunk in range(used):
        row = columns.page_slot[chunk]
        for dense, page, whole in zip(found, pages, wholes, strict=True):
            if columns.resident[chunk] == 0:
                continue
            if row < 0 or columns.huge[chunk]:
                dense[chunk] = whole[chunk]
            else:
                dense[chunk] = np.where(columns.node[row] != ABSENT, page[row], 0)
    return found
