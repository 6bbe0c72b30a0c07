# SPDX-License-Identifier: MIT
"""The histogram policy on simulated machines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import BASE, SyntheticRun, Tier, hot_blocks
from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES
from hmd.policy.builtin.histogram import Histogram, HistogramSettings

HEADROOM = 64
SETTINGS = HistogramSettings(headroom=0.0, headroom_min=HEADROOM * PAGE_BYTES)


def synthetic(
    weights: npt.NDArray[np.float64],
    node: npt.NDArray[np.int8],
    *tiers: int,
    samples: int = 20_000,
    budget_pages: int = 1 << 30,
    huge: npt.NDArray[np.bool_] | None = None,
    settings: HistogramSettings = SETTINGS,
) -> SyntheticRun:
    return SyntheticRun(
        Histogram(settings),
        tuple(Tier(pages) for pages in tiers),
        weights,
        node,
        samples_per_tick=samples,
        budget_bytes=budget_pages * PAGE_BYTES,
        huge=huge,
    )


def steps(pages: int, *parts: tuple[int, float]) -> npt.NDArray[np.float64]:
    """Weights: runs of pages, each with its weight per page, then zeros."""
    weights = np.zeros(pages)
    at = 0
    for length, weight in parts:
        weights[at : at + length] = weight
        at += length
    return weights


def test_histogram_full_tier_hot_swapped_with_cold() -> None:
    # The fast node is full: 512 cold pages there, 512 hot ones on the slow node.
    weights = steps(2048, (512, 0.0), (512, 1.0))
    node = np.repeat(np.array([0, 1], np.int8), [512, 1536])
    run = synthetic(weights, node, 512 + HEADROOM, 4096)
    done = run.tick()
    assert done.fast_share == 1.0
    assert (done.promoted_pages, done.demoted_pages) == (512, 512)
    assert run.free_pages(0) == HEADROOM


def test_histogram_free_pages_only_needed_demotions() -> None:
    weights = steps(2048, (512, 0.0), (512, 1.0))
    node = np.repeat(np.array([0, 1], np.int8), [512, 1536])
    run = synthetic(weights, node, 512 + HEADROOM + 300, 4096)
    done = run.tick()
    assert (done.promoted_pages, done.demoted_pages) == (512, 212)


def test_histogram_demotions_ordered_before_promotions() -> None:
    weights = steps(2048, (512, 0.0), (512, 1.0))
    node = np.repeat(np.array([0, 1], np.int8), [512, 1536])
    run = synthetic(weights, node, 512 + HEADROOM, 4096)
    run.tick()
    up = run.plan.to_node == 0
    assert up.tolist() == [False] * 512 + [True] * 512


def test_histogram_converged_placement_few_moves() -> None:
    weights = hot_blocks(8192, 2048, 16, seed=1)
    run = synthetic(weights, np.ones(8192, np.int8), 2300 + HEADROOM, 16384)
    for _ in range(20):
        run.tick()
    assert run.fast_share > 0.92
    for _ in range(10):
        assert run.tick().moved_pages <= 32
    quiet = synthetic(steps(1024, (256, 1.0)), np.ones(1024, np.int8), 512, 4096)
    quiet.tick()
    assert quiet.fast_share == 1.0
    assert [quiet.tick().moved_pages for _ in range(20)] == [0] * 20


def test_histogram_small_budget_hottest_first() -> None:
    weights = steps(4096, (512, 1.0), (512, 8.0), (512, 2.0))
    run = synthetic(weights, np.ones(4096, np.int8), 2048, 8192, budget_pages=512)
    shares = [run.tick().fast_share for _ in range(3)]
    assert shares == pytest.approx([8 / 11, 10 / 11, 1.0], abs=0.01)


def test_histogram_oversized_hot_set_hottest_fill_tier() -> None:
    weights = steps(4096, (1024, 1.0), (1024, 4.0), (1024, 2.0))
    run = synthetic(weights, np.ones(4096, np.int8), 1024 + HEADROOM, 8192)
    for _ in range(5):
        done = run.tick()
    assert done.fast_share == pytest.approx(4 / 7, abs=0.01)
    assert run.free_pages(0) == HEADROOM


def test_histogram_three_tiers_filled_from_fastest() -> None:
    weights = steps(6144, (1024, 1.0), (1024, 16.0), (1024, 4.0))
    node = np.full(6144, 2, np.int8)
    run = synthetic(weights, node, 1024 + HEADROOM, 1024 + HEADROOM, 16384)
    for _ in range(6):
        run.tick()
    assert (run.node[1024:2048] == 0).mean() > 0.99
    assert (run.node[2048:3072] == 1).mean() > 0.99
    assert (run.node[3072:] == 2).all()
    # The two hotter sets swap: what leaves the top lands in the middle, through no free room.
    run.weights = steps(6144, (1024, 1.0), (1024, 4.0), (1024, 16.0))
    for _ in range(4):
        run.tick()
    assert (run.node[2048:3072] == 0).mean() > 0.95
    assert (run.node[1024:2048] == 1).mean() > 0.95


def test_histogram_last_tier_full_no_moves() -> None:
    weights = steps(2048, (512, 0.0), (512, 1.0))
    node = np.repeat(np.array([0, 1], np.int8), [512, 1536])
    # One page of room below: it is enough, as every promotion frees a page there.
    run = synthetic(weights, node, 512 + HEADROOM, 1536 + HEADROOM + 1)
    assert run.tick().fast_share == 1.0
    full = synthetic(weights, node, 512 + HEADROOM, 1536 + HEADROOM)
    assert full.tick().moved_pages == 0


def test_histogram_headroom_below_half_restored() -> None:
    node = np.repeat(np.array([0, 1], np.int8), [1024, 1024])
    weights = steps(2048, (900, 1.0), (124, 0.0))
    run = synthetic(weights, node, 1024 + HEADROOM // 2, 4096)
    assert run.tick().moved_pages == 0
    run = synthetic(weights, node, 1024 + HEADROOM // 2 - 1, 4096)
    assert run.tick().demoted_pages == HEADROOM // 2 + 1
    assert run.free_pages(0) == HEADROOM
    assert run.fast_share == 1.0


def test_histogram_kernel_reserve_not_used() -> None:
    weights = steps(2048, (512, 1.0))
    run = synthetic(weights, np.ones(2048, np.int8), 512 + HEADROOM, 4096)
    run.heat.update(run.read())
    fast, slow = run.machine.memory
    memory = (replace(fast, reserve_bytes=200 * PAGE_BYTES), slow)
    plan = Histogram(SETTINGS).plan(
        run.heat.view(run.machine.topology), replace(run.machine, memory=memory)
    )
    assert len(plan) == 512 - 200


def test_histogram_headroom_share_of_node_kept() -> None:
    settings = SETTINGS.model_copy(update={"headroom": 0.25})
    weights = steps(2048, (2048, 1.0))
    run = synthetic(weights, np.ones(2048, np.int8), 1024, 4096, settings=settings)
    for _ in range(3):
        run.tick()
    assert run.free_pages(0) == 256


def test_histogram_huge_pages_swapped_whole() -> None:
    weights = steps(4 * CHUNK_PAGES, (CHUNK_PAGES, 0.0), (1, 50.0))
    node = np.repeat(np.array([0, 1], np.int8), [CHUNK_PAGES, 3 * CHUNK_PAGES])
    run = synthetic(weights, node, CHUNK_PAGES + HEADROOM, 8192, huge=np.ones(4, np.bool_))
    run.tick()
    assert run.plan.pages.tolist() == [512, 512]
    assert run.plan.address.tolist() == [BASE, BASE + CHUNK_PAGES * PAGE_BYTES]
    assert run.fast_share == 1.0


def test_histogram_huge_page_displaces_colder_small_pages() -> None:
    weights = steps(3 * CHUNK_PAGES, (CHUNK_PAGES, 1.0), (CHUNK_PAGES, 8.0))
    node = np.repeat(np.array([0, 1], np.int8), [CHUNK_PAGES, 2 * CHUNK_PAGES])
    huge = np.array([False, True, False])
    run = synthetic(weights, node, CHUNK_PAGES + HEADROOM, 8192, huge=huge)
    run.tick()
    assert run.plan.pages.tolist() == [1] * CHUNK_PAGES + [CHUNK_PAGES]
    assert (run.node[CHUNK_PAGES : 2 * CHUNK_PAGES] == 0).all()


def test_histogram_small_budget_huge_page_promoted_over_ticks() -> None:
    weights = steps(3 * CHUNK_PAGES, (CHUNK_PAGES, 1.0), (CHUNK_PAGES, 8.0))
    node = np.repeat(np.array([0, 1], np.int8), [CHUNK_PAGES, 2 * CHUNK_PAGES])
    huge = np.array([False, True, False])
    run = synthetic(weights, node, CHUNK_PAGES + HEADROOM, 8192, huge=huge, budget_pages=600)
    for _ in range(3):
        run.tick()
    assert (run.node[CHUNK_PAGES : 2 * CHUNK_PAGES] == 0).all()


def test_histogram_page_sampled_once_not_promoted() -> None:
    weights = steps(1024, (1, 1.0))
    run = synthetic(weights, np.ones(1024, np.int8), 512, 4096, samples=1)
    assert run.tick().moved_pages == 0
    run.samples_per_tick = 20
    assert run.tick().promoted_pages == 1


def test_histogram_barely_warm_pages_only_fill_free_room() -> None:
    # 512 hot pages fast, next to 256 that are idle; 256 on the slow node are used a little.
    weights = steps(4096, (512, 100.0), (256, 0.0), (256, 2.0))
    node = np.repeat(np.array([0, 1], np.int8), [768, 3328])
    run = synthetic(weights, node, 768 + HEADROOM, 8192)
    assert [run.tick().moved_pages for _ in range(20)] == [0] * 20
    roomy = synthetic(weights, node, 1024 + HEADROOM, 8192)
    for _ in range(10):
        done = roomy.tick()
    assert done.fast_share == 1.0


def test_histogram_alternating_hot_sets_ping_pong_damped() -> None:
    # The two halves take turns, a tick each: faster than moving pays.
    one, other = steps(2048, (512, 3.0), (512, 1.0)), steps(2048, (512, 1.0), (512, 3.0))
    node = np.repeat(np.array([0, 1], np.int8), [512, 1536])
    run = synthetic(one, node, 512 + HEADROOM, 8192, samples=5000)
    moved = []
    for tick in range(60):
        run.weights = one if tick % 2 else other
        moved.append(run.tick().moved_pages)
    assert np.mean(moved[20:]) < 0.1 * 1024


def test_histogram_nodes_of_tier_filled_by_distance_then_room() -> None:
    run = synthetic(steps(2048, (512, 1.0)), np.full(2048, 2, np.int8), 400, 400, 8192)
    machine = run.machine
    nodes = tuple(
        replace(node, tier=min(node.id, 1) if node.id == 2 else 0, distances=row)
        for node, row in zip(
            machine.topology.nodes, [(10, 20, 30), (20, 10, 15), (30, 15, 10)], strict=True
        )
    )
    machine = replace(machine, topology=replace(machine.topology, nodes=nodes))
    run.heat.update(run.read())
    plan = Histogram(SETTINGS).plan(run.heat.view(machine.topology), machine)
    where, count = np.unique(plan.to_node, return_counts=True)
    assert dict(zip(where.tolist(), count.tolist(), strict=True)) == {
        1: 400 - HEADROOM,
        0: 512 - (400 - HEADROOM),
    }


def test_histogram_one_tier_no_moves() -> None:
    run = synthetic(steps(1024, (256, 1.0)), np.zeros(1024, np.int8), 4096)
    assert run.tick().moved_pages == 0
