# SPDX-License-Identifier: MIT
"""The simulated memory of the benchmarks of terabytes."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from bench.scale.scaled_memory import BASE, FAST, SLOW, ScaledMemory, ScaledSamples
from hmd.base.units import GIB, HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.linux.page_calls import MoveFlags

CHUNKS = 40


def addresses(pages: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.uint64(BASE) + np.array(pages, np.uint64) * np.uint64(PAGE_BYTES)


def move(memory: ScaledMemory, pages: list[int], target: int) -> None:
    nodes = np.full(len(pages), target, np.int32)
    memory.move_pages(memory.processes[0].pid, addresses(pages), nodes, MoveFlags(0))


def test_scaled_memory_random_moves_nodes_as_moved() -> None:
    memory, random = ScaledMemory(1, CHUNKS, huge=False), np.random.default_rng(1)
    pages = CHUNKS * HUGE_PAGE_PAGES
    node = np.full(pages, SLOW)
    node[: pages // 10] = FAST
    for step in range(60):
        some = random.choice(pages, 100, replace=False)
        if step % 3 == 0:  # all of a chunk, of which some pages moved before
            some = int(random.integers(CHUNKS)) * HUGE_PAGE_PAGES + np.arange(HUGE_PAGE_PAGES)
        target = SLOW if (node == FAST).sum() > pages // 10 - 600 else int(random.integers(2))
        move(memory, some.tolist(), target)
        node[some] = target
        found = memory.nodes(memory.processes[0].pid, addresses(list(range(pages + 1))))
        np.testing.assert_array_equal(found[:-1], node)
        assert found[-1] == -errno.ENOENT
        free = [room.free_bytes // PAGE_BYTES for room in memory.memory()]
        total = [room.total_bytes // PAGE_BYTES for room in memory.memory()]
        assert [t - f for t, f in zip(total, free, strict=True)] == np.bincount(node).tolist()


def test_scaled_memory_without_room_moves_refused() -> None:
    memory = ScaledMemory(1, CHUNKS, huge=False)
    with pytest.raises(ValueError, match="no room"):
        move(memory, list(range(4 * HUGE_PAGE_PAGES, 6 * HUGE_PAGE_PAGES)), FAST)


@pytest.mark.parametrize("pattern", ["contiguous", "scattered"])
def test_scaled_samples_share_of_hottest_tenth_as_drawn(pattern: str) -> None:
    samples = ScaledSamples(pattern, 1, 1 << 14, 50_000)
    _, count = np.unique(samples.read().address, return_counts=True)
    hottest = np.sort(count)[::-1][: (1 << 14) // 10].sum()
    assert hottest / 50_000 == pytest.approx(samples.hottest(0.1), abs=0.01)


def test_scaled_samples_hot_gibibyte_moved_has_nine_tenths_of_samples() -> None:
    samples = ScaledSamples("gibibyte", 1, 4 * GIB // PAGE_BYTES, 10_000)
    samples.shift = 0.25
    hot, address = samples.hot_addresses(), samples.read().address
    assert len(hot) == GIB // PAGE_BYTES
    share = ((address >= hot[0]) & (address <= hot[-1])).mean()
    assert share == pytest.approx(0.9 + 0.1 / 4, abs=0.01)
