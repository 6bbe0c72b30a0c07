# SPDX-License-Identifier: MIT
"""The rows of a large table that a view shows, and the sums over the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.heat.view import PageView
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import NodeMemory
from hmd.policy.builtin.histogram import Histogram
from hmd.policy.plan import MachineView
from tests.unit.heat.test_page_detail import TOPOLOGY, batch

CHUNKS, DETAILS = 96, 16
SHOWN = 1024


def random_table(seed: int = 1, samples: int = 60_000) -> HeatTable:
    """A process with chunks of both kinds on both nodes, and heat from 1 to 1000."""
    random = np.random.default_rng(seed)
    heat = HeatTable(HeatSettings(min_window_samples=1, max_page_slots=DETAILS))
    heat.track_processes([ProcessId(1, 1)])
    node = np.repeat(random.integers(0, 2, (CHUNKS, 1)), CHUNK_PAGES, axis=1).astype(np.int8)
    node[0, ::2] = 1 - node[0, 0]
    heat.record_nodes(0, np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES), node)
    weight = 10 ** random.uniform(0, 3, CHUNKS * CHUNK_PAGES)
    ladder = np.cumsum(weight)
    for _ in range(3):
        drawn = random.random(samples) * ladder[-1]
        heat.update(batch(np.searchsorted(ladder, drawn, side="right")))
    return heat


def long_runs() -> HeatTable:
    """Some chunks in detail, then hundreds that are counted as a whole, first those of node 0."""
    heat = HeatTable(HeatSettings(min_window_samples=1, max_page_slots=DETAILS))
    heat.track_processes([ProcessId(1, 1)])
    node = np.zeros((5 * CHUNKS, CHUNK_PAGES), np.int8)
    node[3 * CHUNKS :] = 1
    address = np.arange(len(node), dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    heat.record_nodes(0, address, node)
    random = np.random.default_rng(1)
    for _ in range(3):
        hot = random.integers(0, DETAILS * CHUNK_PAGES, 60_000)
        heat.update(batch(np.append(hot, random.integers(0, node.size, 600))))
    return heat


def keys(view: PageView, end: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The heat with which rows compete, at one end of what their samples allow."""
    support = np.maximum(view.effective_samples.astype(np.float64), 1e-6)
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = (
        view.rate / support * np.maximum(np.sqrt(support + 0.375) + end, 0) ** 2
    )
    return found


def test_small_table_is_shown_whole() -> None:
    heat = random_table()
    every = heat.view(TOPOLOGY)
    shown = heat.view(TOPOLOGY, max_rows=len(every) // 2)
    assert np.array_equal(every.storage_index, shown.storage_index)
    assert not shown.unshown.accesses.any()
    assert not shown.unshown.pages.any()


def test_view_of_large_table_has_hottest_that_may_come_and_coldest_that_may_leave() -> None:
    heat = random_table()
    every, view = heat.view(TOPOLOGY), heat.view(TOPOLOGY, max_rows=SHOWN)
    assert len(view) <= SHOWN
    assert len(set(view.storage_index.tolist())) == len(view)
    number = set(view.storage_index.tolist())
    # Of each side three eighths of the rows, to the width of a bin.
    slow = np.flatnonzero((every.tier == 1) & (every.effective_samples >= 1))
    comes = keys(every, -0.625)[slow]
    bound = np.sort(comes)[-SHOWN * 3 // 8]
    assert set(every.storage_index[slow[comes > 1.13 * bound]].tolist()) <= number
    fast = np.flatnonzero(every.tier == 0)
    leaves = keys(every, 0.625)[fast]
    bound = np.sort(leaves)[SHOWN * 3 // 8]
    assert (leaves < bound / 1.13).any()
    assert set(every.storage_index[fast[leaves < bound / 1.13]].tolist()) <= number


def test_rows_of_equal_heat_are_shown_as_far_as_their_side_has_room() -> None:
    """Most pages have no sample, and are all on the limit of those that may leave."""
    heat = random_table(samples=60)
    every, view = heat.view(TOPOLOGY), heat.view(TOPOLOGY, max_rows=SHOWN)
    unsampled = ~every.sampled[every.tier == 0]
    assert unsampled.sum() > SHOWN
    assert (view.tier == 0).sum() == SHOWN * 3 // 8
    assert len(set(view.storage_index.tolist())) == len(view)
    coming = set(every.storage_index[(every.tier == 1) & (every.effective_samples >= 1)].tolist())
    assert coming <= set(view.storage_index[view.tier == 1].tolist())


@pytest.mark.parametrize("table", [random_table, long_runs])
def test_shown_rows_and_sums_beyond_make_the_table(table: Callable[[], HeatTable]) -> None:
    heat = table()
    every, view = heat.view(TOPOLOGY), heat.view(TOPOLOGY, max_rows=SHOWN)
    assert len(view) < len(every)
    for node in (0, 1):
        on = every.node == node
        all_accesses = (every.rate[on].astype(np.float64) * every.size[on]).sum()
        here = view.node == node
        shown = (view.rate[here].astype(np.float64) * view.size[here]).sum()
        assert shown + view.unshown.accesses[0, node] == pytest.approx(all_accesses, rel=1e-5)
        assert view.size[here].sum() + view.unshown.pages[0, node] == every.size[on].sum()
    movable, fixed = view.pages_by_node(2)
    assert (movable + fixed).tolist() == np.sum(every.pages_by_node(2), axis=0).tolist()
    assert movable[0].tolist() == np.bincount(view.node, view.size, 2).tolist()


def test_hand_shows_every_row_in_turn() -> None:
    heat = random_table()
    every = set(heat.view(TOPOLOGY).storage_index.tolist())
    seen: set[int] = set()
    for _ in range(CHUNKS):
        seen |= set(heat.view(TOPOLOGY, max_rows=4 * CHUNK_PAGES).storage_index.tolist())
    assert seen == every


def test_pinned_pages_are_not_shown() -> None:
    heat = random_table()
    view = heat.view(TOPOLOGY, np.array([True]), max_rows=SHOWN)
    assert len(view) == 0
    assert not view.unshown.pages.any()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_histogram_plan_from_shown_rows_is_that_from_all_rows(seed: int) -> None:
    """As far as the budget goes: the plan moves the same pages to the same nodes."""
    heat = random_table(seed)
    pages = heat.view(TOPOLOGY).pages_by_node(2)[0].sum(axis=0)
    memory = tuple(
        NodeMemory(node, (int(pages[node]) + 8192) * PAGE_BYTES, 8192 * PAGE_BYTES)
        for node in (0, 1)
    )
    machine = MachineView(TOPOLOGY, memory, 0.0, 1.0, 2 * CHUNK_BYTES)
    whole = Histogram().plan(heat.view(TOPOLOGY), machine)
    part = Histogram().plan(heat.view(TOPOLOGY, max_rows=8 * SHOWN // 4), machine)
    assert len(whole)
    assert part.address.tolist() == whole.address.tolist()
    assert part.to_node.tolist() == whole.to_node.tolist()
