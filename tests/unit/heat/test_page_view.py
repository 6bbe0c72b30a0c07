# SPDX-License-Identifier: MIT
"""The page view: one row per page or huge page, independent of the chunk layout."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.page_state import PageState
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.sample.access_batch import AccessBatch, Kind

TWO_TIERS = Topology((Node(0, (0,), 1 << 30, (10, 20), 0), Node(2, (), 1 << 34, (20, 10), 1)))
ONE, TWO = ProcessId(1, 1), ProcessId(2, 1)


def starts(*chunks: int) -> npt.NDArray[np.uint64]:
    return np.array(chunks, np.uint64) * np.uint64(CHUNK_BYTES)


def table() -> HeatTable:
    """Two processes: four pages of which one is fixed, a huge page, and a full chunk."""
    made = HeatTable(HeatSettings(min_window_samples=1))
    made.track_processes([ONE, TWO])
    sparse = np.full((1, CHUNK_PAGES), ABSENT, np.int8)
    sparse[0, [3, 4, 9, 500]] = 0, 2, FIXED - 2, 1
    made.record_nodes(0, starts(7), sparse)
    made.record_nodes(1, starts(5), np.full((1, CHUNK_PAGES), 2, np.int8), np.array([True]))
    made.record_nodes(1, starts(6), np.zeros((1, CHUNK_PAGES), np.int8))
    return made


def batch(process: int, *addresses: int, period: int = 100) -> AccessBatch:
    return AccessBatch.of(np.array(addresses, np.uint64), process, period=period)


def test_page_view_rows_have_size_node_and_tier() -> None:
    pages = table().view(TWO_TIERS)
    assert len(pages) == 4 + 1 + CHUNK_PAGES
    assert pages.size[:5].tolist() == [1, 1, 1, 1, CHUNK_PAGES]
    assert pages.node[:6].tolist() == [0, 2, 2, 1, 2, 0]
    # The third page is fixed in place, the fourth on a node of no tier.
    assert pages.tier[:6].tolist() == [0, 1, -1, -1, 1, 0]
    assert pages.movable[:5].tolist() == [True, True, False, False, True]
    assert pages.process[3:6].tolist() == [0, 1, 1]
    chunk = 7 * CHUNK_BYTES
    assert pages.address[:4].tolist() == [chunk + i * PAGE_BYTES for i in (3, 4, 9, 500)]
    assert pages.address[-1] == 7 * CHUNK_BYTES - PAGE_BYTES


def test_page_view_pinned_process_pages_not_movable() -> None:
    made = table()
    pages = made.view(TWO_TIERS, np.array([False, True]))
    assert pages.movable[:4].tolist() == [True, True, False, False]
    assert not pages.movable[4:].any()
    movable, fixed = pages.pages_by_node(3)
    assert movable[1].sum() == 0
    assert fixed[1].tolist() == [CHUNK_PAGES, 0, CHUNK_PAGES]
    assert made.view(TWO_TIERS).movable[4:].all()


def test_page_view_take_in_any_order_equals_columns() -> None:
    pages = table().view(TWO_TIERS)
    rows = np.random.default_rng(1).permutation(len(pages))
    some = pages.take(rows)
    for name in ("process", "address", "size", "node", "rate"):
        assert getattr(some, name).tolist() == getattr(pages, name)[rows].tolist()


def test_page_view_find_returns_rows_of_resident_pages() -> None:
    pages = table().view(TWO_TIERS)
    for process in range(2):
        rows = np.flatnonzero(pages.process == process)
        assert pages.find(process, pages.address[rows]).tolist() == rows.tolist()
    inside = np.array([5 * CHUNK_BYTES + 8 * PAGE_BYTES], np.uint64)
    assert pages.find(1, inside).tolist() == [4]
    absent = np.array([7 * CHUNK_BYTES, 8 * CHUNK_BYTES], np.uint64)
    assert pages.find(0, absent).tolist() == [-1, -1]
    assert HeatTable().view(TWO_TIERS).find(0, absent).tolist() == [-1, -1]


@pytest.mark.parametrize("elapsed_s", [0.01, 1.0, 2.0])
def test_page_view_rates_per_second_for_any_tick(elapsed_s: float) -> None:
    made = table()
    for _ in range(8):
        made.update(batch(1, *[5 * CHUNK_BYTES] * 50), elapsed_s)
    pages = made.view(TWO_TIERS)
    assert pages.rate[4] * CHUNK_PAGES == pytest.approx(50 * 100 / elapsed_s, rel=0.05)
    assert pages.process_rate.tolist() == [0.0, 50 * 100 / elapsed_s]
    chunk = made.chunks.find(1, starts(5))
    assert made.chunk_rates()[chunk] == pytest.approx(50 * 100 / elapsed_s)
    assert made.chunk_rates().sum() == pytest.approx(50 * 100 / elapsed_s)


def test_page_view_rates_follow_table_changes() -> None:
    made = table()
    made.update(batch(0, 7 * CHUNK_BYTES + 3 * PAGE_BYTES))
    before = made.view(TWO_TIERS).rate
    made.set_process_weights(np.array([3.0, 1.0]), np.ones(2))
    assert made.view(TWO_TIERS).rate[0] == pytest.approx(3 * before[0])
    made.record_nodes(1, starts(6), np.full((1, CHUNK_PAGES), ABSENT, np.int8))
    assert len(made.view(TWO_TIERS).rate) == 5


def test_page_state_rows_move_values_follow_pages() -> None:
    made, state = HeatTable(), PageState(np.int16, -1)
    made.track_processes([ONE, TWO])
    there = np.zeros((8, CHUNK_PAGES), np.int8)
    for slot in range(2):
        made.record_nodes(slot, starts(*range(1, 9)), there)
    pages = made.view(TWO_TIERS)
    assert set(state.read(pages).tolist()) == {-1}
    state.write(pages, pages.process * 1000 + (pages.address // CHUNK_BYTES).astype(np.int16))
    made.record_nodes(0, starts(1, 2, 3), np.full((3, CHUNK_PAGES), ABSENT, np.int8))
    made.track_processes([TWO, ONE])
    made.record_nodes(0, starts(9), there[:1])
    pages = made.view(TWO_TIERS)
    chunk = (pages.address // CHUNK_BYTES).astype(np.int16)
    # Slot 0 is the second process now; its ninth chunk is new.
    expected = np.where(pages.process == 0, 1000 + chunk, chunk)
    expected[chunk == 9] = -1
    assert state.read(pages).tolist() == expected.tolist()


def test_share_of_the_tick_at_addresses_goes_by_the_weights_of_samples() -> None:
    made = table()
    made.set_process_weights(np.ones(2), np.full(2, 3.0))
    asked = np.uint64(6 * CHUNK_BYTES) + np.array([5, 7, 8], np.uint64) * np.uint64(PAGE_BYTES)
    kind = np.array([Kind.LOAD, Kind.STORE, Kind.LOAD, Kind.LOAD], np.uint8)
    process = np.array([1, 1, 1, 0], np.int32)
    made.update(AccessBatch.of(asked[[0, 0, 1, 2]], process, kind=kind, period=10))
    view = made.view(TWO_TIERS)
    assert view.process_samples.tolist() == [1, 3]
    slots = np.array([1, 1, 1, 0, 1], np.int32)
    share = view.tick_share_at(slots, np.concatenate([asked, asked[:1], asked[:1]]))
    assert share == pytest.approx([0.8, 0.2, 0.0, 0.0, 0.8])
