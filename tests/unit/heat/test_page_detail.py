# SPDX-License-Identifier: MIT
"""Chunks that are counted as a whole, and which of them get detail."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.page_state import PageState
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, MOVE_WEAR, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.metrics.observer import heat_pages, resident_pages, sample_nodes
from hmd.policy.plan import Plan, moves_of
from hmd.sample.access_batch import AccessBatch

TOPOLOGY = Topology((Node(0, (0,), 1 << 30, (10, 20), 0), Node(1, (), 1 << 34, (20, 10), 1)))
PROCESS = ProcessId(1, 1)
SLOW = np.ones((1, CHUNK_PAGES), np.int8)


def batch(pages: npt.NDArray[np.int64]) -> AccessBatch:
    return AccessBatch.of(pages.astype(np.uint64) * np.uint64(PAGE_BYTES), period=100)


def table(chunks: int, details: int, node: npt.NDArray[np.int8] | None = None) -> HeatTable:
    """One process whose first ``details`` chunks have detail; no window contradicts a history."""
    made = HeatTable(
        HeatSettings(min_window_samples=64, change_threshold=100.0, max_page_slots=details)
    )
    made.track_processes([PROCESS])
    starts = np.arange(chunks, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    made.record_nodes(0, starts, np.repeat(SLOW, chunks, axis=0) if node is None else node)
    return made


def uniform(chunk: int, samples: int, seed: int = 1) -> npt.NDArray[np.int64]:
    random = np.random.default_rng(seed)
    return chunk * CHUNK_PAGES + random.integers(0, CHUNK_PAGES, samples)


def has_detail(heat: HeatTable) -> list[int]:
    return np.flatnonzero(heat.chunks.columns.page_slot[: heat.chunks.used] >= 0).tolist()


def moves(heat: HeatTable, rows: list[int], target: int) -> Plan:
    pages = heat.view(TOPOLOGY)
    taken = pages.take(np.array(rows))
    return moves_of(
        pages.processes, taken, np.arange(len(rows)), np.full(len(rows), target, np.int64)
    )


def test_table_beyond_its_details_counts_chunks_as_a_whole() -> None:
    heat = table(3, 1)
    assert has_detail(heat) == [0]
    pages = heat.view(TOPOLOGY)
    assert len(pages) == CHUNK_PAGES + 2
    assert pages.size.tolist() == [1] * CHUNK_PAGES + [CHUNK_PAGES] * 2
    assert pages.address[-2:].tolist() == [CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert pages.tier.tolist() == [1] * (CHUNK_PAGES + 2)
    assert pages.find(0, np.array([3 * PAGE_BYTES, CHUNK_BYTES + 7], np.uint64)).tolist() == [
        3,
        CHUNK_PAGES,
    ]
    assert resident_pages(heat, TOPOLOGY).tolist() == [[0, 3 * CHUNK_PAGES]]
    assert heat_pages(heat, TOPOLOGY).sum(axis=1).tolist() == [0, 3 * CHUNK_PAGES]


def test_chunk_counted_as_a_whole_has_rate_of_a_huge_page() -> None:
    whole, paged = table(2, 1), table(2, 2)
    starts = np.array([CHUNK_BYTES], np.uint64)
    paged.record_nodes(0, starts, SLOW, np.array([True]))
    for seed in range(6):
        for heat in (whole, paged):
            heat.update(batch(np.concatenate([uniform(1, 40, seed), uniform(0, 30, seed)])))
    one, other = whole.view(TOPOLOGY), paged.view(TOPOLOGY)
    assert one.rate[-1] == pytest.approx(other.rate[-1], rel=0.01)
    assert one.effective_samples[-1] == pytest.approx(other.effective_samples[-1], rel=0.01)
    assert one.idle_ticks[-1] == other.idle_ticks[-1]
    assert one.find(0, starts).tolist() == [len(one) - 1]


def test_uniform_chunk_asks_for_no_detail() -> None:
    heat = table(2, 1)
    for seed in range(40):
        heat.update(batch(uniform(1, 100, seed)))
    assert has_detail(heat) == [0]
    assert heat.stats.page_slots_reassigned == 0


@pytest.mark.parametrize("hot", [1, 8])
def test_chunk_of_few_hot_pages_gets_detail_of_the_coldest(hot: int) -> None:
    heat = table(3, 2)
    pages = 2 * CHUNK_PAGES + np.arange(hot) * 40
    for tick in range(30):
        heat.update(batch(np.concatenate([np.tile(pages, 8), uniform(0, 20, tick)])))
    # The first chunk has samples of all its pages alike, the second none: both are worth nothing.
    assert len(has_detail(heat)) == 2
    assert 2 in has_detail(heat)
    assert heat.stats.page_slots_reassigned == 1
    heat.update(batch(np.tile(pages, 8)))
    view = heat.view(TOPOLOGY)
    addresses = (pages * PAGE_BYTES).astype(np.uint64)
    others = addresses + np.uint64(20 * PAGE_BYTES)
    rate = view.rate[view.find(0, np.concatenate([addresses, others]))]
    assert rate[:hot].min() > 10 * rate[hot:].max()


def test_sampled_chunks_get_the_rows_that_unmapped_memory_leaves() -> None:
    heat = table(12, 6)
    ends = np.arange(6, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    # A few uniform samples show no difference between pages: these chunks ask for nothing.
    for tick in range(3):
        heat.update(batch(np.concatenate([uniform(c, 9, tick) for c in range(6, 11)])))
    assert has_detail(heat) == list(range(6))
    heat.record_nodes(0, ends, np.full((6, CHUNK_PAGES), ABSENT, np.int8))
    heat.update(batch(np.empty(0, np.int64)))
    columns, sampled = heat.chunks.columns, has_detail(heat)
    assert sorted((columns.address[sampled] // CHUNK_BYTES).tolist()) == list(range(6, 11))
    heat.update(batch(uniform(11, 1)))
    assert len(has_detail(heat)) == heat.chunks.used == 6


@pytest.mark.parametrize("block", [4, 16])
def test_chunk_of_hot_blocks_at_random_gets_detail_of_a_cold_one(block: int) -> None:
    heat, random = table(2, 1), np.random.default_rng(3)
    # A third of the blocks have nine samples in ten.
    hot = random.permutation(CHUNK_PAGES // block)[: CHUNK_PAGES // block // 3]
    pages = (hot[:, None] * block + np.arange(block)).ravel()
    for tick in range(40):
        heat.update(
            batch(CHUNK_PAGES + np.concatenate([random.choice(pages, 90), uniform(0, 10, tick)]))
        )
    assert has_detail(heat) == [1]


def test_detail_given_and_taken_keeps_the_heat_of_the_chunk() -> None:
    heat = table(2, 1)
    heat.update(batch(uniform(1, 300)))
    before = heat.chunk_rates()
    heat.chunks.take_page_slots(np.array([0]))
    heat.chunks.assign_page_slots(np.array([1]))
    assert has_detail(heat) == [1]
    np.testing.assert_allclose(heat.chunk_rates(), before)
    row = heat.chunks.columns.page_slot[1]
    columns = heat.chunks.columns
    paged = columns.heat[row].sum() + columns.recent[row].sum()
    assert paged == pytest.approx(columns.heat_sum[1] + columns.recent_sum[1])


def test_chunk_on_two_nodes_gets_detail_and_is_swept_first() -> None:
    heat = table(2, 1)
    for seed in range(10):
        heat.update(batch(uniform(0, 10, seed)))
    mixed = SLOW.copy()
    mixed[0, :100] = 0
    start = np.array([CHUNK_BYTES], np.uint64)
    heat.record_nodes(0, start, mixed)
    view = heat.view(TOPOLOGY)
    assert view.size[-1] == CHUNK_PAGES - 100
    assert not view.movable[-1]  # a fifth of its pages is not where the row says
    heat.update(batch(uniform(0, 10)))
    assert has_detail(heat) == [1]
    assert heat.chunks.columns.swept[1] == 0
    heat.record_nodes(0, start, mixed)
    view = heat.view(TOPOLOGY)
    assert np.bincount(view.node, view.size).tolist() == [100, 2 * CHUNK_PAGES - 100]


def test_moved_chunk_lies_on_its_new_node_with_wear() -> None:
    heat = table(2, 1)
    plan = moves(heat, [CHUNK_PAGES], 0)
    assert plan.pages.tolist() == [1] * CHUNK_PAGES
    assert plan.address.tolist() == [CHUNK_BYTES + i * PAGE_BYTES for i in range(CHUNK_PAGES)]
    heat.record_moves(plan, plan.to_node, np.zeros(len(plan), np.bool_))
    view = heat.view(TOPOLOGY)
    assert (view.node[-1], view.tier[-1], view.wear[-1]) == (0, 0, MOVE_WEAR)
    found = sample_nodes(heat, batch(np.array([0, CHUNK_PAGES + 3])))
    assert found.tolist() == [1, 0]


def test_chunk_that_moved_in_part_stays_until_it_was_swept() -> None:
    heat = table(2, 1)
    plan = moves(heat, [CHUNK_PAGES], 0)
    node = plan.to_node.copy()
    node[100:] = 1
    heat.record_moves(plan, node, np.zeros(len(plan), np.bool_))
    assert not heat.view(TOPOLOGY).movable[-1]
    assert heat.chunks.columns.swept[1] == 0


def test_chunk_of_few_resident_pages_is_a_row_of_those() -> None:
    sparse = np.repeat(SLOW, 2, axis=0)
    sparse[1, 30:] = ABSENT
    heat = table(2, 1, sparse)
    view = heat.view(TOPOLOGY)
    assert view.size[-1] == 30
    assert view.movable[-1]


def test_page_state_follows_chunks_that_get_and_lose_detail() -> None:
    heat, state = table(3, 2), PageState(np.int16, -1)
    view = heat.view(TOPOLOGY)
    values = np.arange(len(view), dtype=np.int16)
    state.write(view, values)
    heat.chunks.take_page_slots(np.array([0]))
    heat.chunks.assign_page_slots(np.array([2]))
    now = heat.view(TOPOLOGY)
    kept = state.read(now)
    # The first chunk is as its first page was, the pages of the last are as it was.
    assert kept[now.find(0, np.array([0], np.uint64))[0]] == 0
    assert set(kept[now.address >= 2 * CHUNK_BYTES].tolist()) == {2 * CHUNK_PAGES}
    middle = (now.address >= CHUNK_BYTES) & (now.address < 2 * CHUNK_BYTES)
    assert kept[middle].tolist() == list(range(CHUNK_PAGES, 2 * CHUNK_PAGES))
