# SPDX-License-Identifier: MIT
"""The bound on what is counted page by page: it falls and rises while the table is in use."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.heat.table import MIN_PAGE_SLOTS, HeatTable
from tests.unit.heat.test_page_detail import TOPOLOGY, batch, has_detail, table, uniform

CHUNKS, DETAILS = 400, 256


@pytest.fixture
def heat() -> HeatTable:
    """A table whose chunk 5 has one hot page, and chunk 7 samples of all its pages alike."""
    made = table(CHUNKS, DETAILS)
    for tick in range(6):
        hot = np.full(40, 5 * 512 + 3)
        made.update(batch(np.concatenate([hot, uniform(7, 40, tick)])))
    return made


def test_details_bound_lowered_keeps_the_chunks_whose_pages_differ_most(heat: HeatTable) -> None:
    before = heat.view(TOPOLOGY)
    address, rate = before.address[5 * 512 + 3 : 5 * 512 + 5], before.rate[5 * 512 + 3]
    pages, bytes_before = before.pages_by_node(2)[0].tolist(), heat.chunks.nbytes
    assert heat.limit_page_slots(100) == DETAILS - 100
    assert heat.stats.page_slots_dropped == DETAILS - 100
    assert heat.stats.page_slots_reassigned == 0
    assert len(has_detail(heat)) == heat.chunks.used_page_slots == heat.chunks.page_slots == 100
    assert 5 in has_detail(heat)
    assert heat.chunks.nbytes < bytes_before - (DETAILS - 100) * 512 * 12
    after = heat.view(TOPOLOGY)
    hot, cold = after.rate[after.find(0, address)]
    assert hot == pytest.approx(rate, rel=1e-6)
    assert hot > 10 * cold
    assert after.pages_by_node(2)[0].tolist() == pages


def test_details_bound_raised_again_gives_rows_to_sampled_chunks(heat: HeatTable) -> None:
    heat.limit_page_slots(MIN_PAGE_SLOTS)
    assert heat.chunks.page_slots == MIN_PAGE_SLOTS
    assert heat.limit_page_slots(DETAILS) == 0
    assert heat.chunks.page_slots == DETAILS
    heat.update(batch(uniform(300, 50)))
    assert 300 in has_detail(heat)


def test_details_bound_holds_while_the_table_grows() -> None:
    heat = table(10, DETAILS)
    heat.limit_page_slots(MIN_PAGE_SLOTS)
    starts = np.arange(10, CHUNKS, dtype=np.uint64) * np.uint64(2 << 20)
    heat.record_nodes(0, starts, np.ones((len(starts), 512), np.int8))
    assert heat.chunks.used == CHUNKS
    assert heat.chunks.page_slots == MIN_PAGE_SLOTS


@pytest.mark.parametrize("most", [0, 10 * DETAILS])
def test_details_bound_stays_between_the_least_and_the_setting(heat: HeatTable, most: int) -> None:
    heat.limit_page_slots(most)
    assert heat.chunks.page_slots == (MIN_PAGE_SLOTS if most == 0 else DETAILS)
