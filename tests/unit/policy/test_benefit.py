# SPDX-License-Identifier: MIT
"""The benefit policy makes the moves that save time, and none where no move does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.builtin.histogram import Histogram, HistogramSettings

PAGES, FAST = 8192, 2048
HEADROOM = 16


def synthetic(
    weights: npt.NDArray[np.float64],
    *,
    samples: int = 20_000,
    huge: npt.NDArray[np.bool_] | None = None,
    latency_ns: Callable[[float], Sequence[float]] | None = None,
    **settings: float,
) -> SyntheticRun:
    """A program that fills the fast tier with its first pages."""
    kept = {"headroom": 0.0, "headroom_min": HEADROOM * PAGE_BYTES}
    policy = Benefit(BenefitSettings.model_validate({**kept, **settings}))
    node = (np.arange(len(weights)) >= FAST).astype(np.int8)
    tiers = (Tier(FAST + HEADROOM), Tier(2 * PAGES))
    return SyntheticRun(
        policy,
        tiers,
        weights,
        node,
        samples_per_tick=samples,
        huge=huge,
        latency_ns=latency_ns,
    )


def test_benefit_hot_set_promoted_then_few_moves() -> None:
    run = synthetic(hot_blocks(PAGES, 1536, 16, seed=3))
    for _ in range(12):
        run.tick()
    assert run.fast_share > 0.9
    # What moves are cold pages that fill the rest of the room.
    assert sum(run.tick().moved_pages for _ in range(5)) < PAGES // 25
    assert run.fast_share > 0.9


def test_benefit_hot_set_changes_followed() -> None:
    run = synthetic(hot_blocks(PAGES, 1536, 16, seed=3))
    for _ in range(12):
        run.tick()
    run.weights = hot_blocks(PAGES, 1536, 16, seed=4)
    for _ in range(8):
        run.tick()
    assert run.fast_share > 0.85


def test_benefit_moves_cost_more_than_savings_none_made() -> None:
    run = synthetic(hot_blocks(PAGES, 1536, 16, seed=3), move_ns=1e9)
    assert sum(run.tick().moved_pages for _ in range(10)) == 0


def test_benefit_cheaper_moves_made_sooner() -> None:
    weights = hot_blocks(PAGES, 1536, 16, seed=3)
    dear, cheap = (synthetic(weights, samples=400, move_ns=cost) for cost in (200_000.0, 200.0))
    assert sum(cheap.tick().moved_pages for _ in range(3)) > sum(
        dear.tick().moved_pages for _ in range(3)
    )


def test_benefit_uniform_accesses_few_moves() -> None:
    run = synthetic(np.ones(PAGES))
    for _ in range(20):
        run.tick()
    assert sum(run.tick().moved_pages for _ in range(10)) < PAGES // 50


def test_benefit_hot_set_changes_every_tick_horizon_shrinks() -> None:
    """Other pages are hot in each tick: promoted pages are cold when they arrive."""
    fleeing, settled = (synthetic(hot_blocks(PAGES, 512, 16, seed=0)) for _ in range(2))
    moved = np.zeros((2, 30), np.int64)
    for tick in range(30):
        fleeing.weights = hot_blocks(PAGES, 512, 16, seed=tick)
        moved[0, tick] = fleeing.tick().moved_pages
        moved[1, tick] = settled.tick().moved_pages
    horizons = [
        float(policy.persistence.horizons(run.heat.view(run.machine.topology))[0])
        for run, policy in ((fleeing, fleeing.policy), (settled, settled.policy))
        if isinstance(policy, Benefit)
    ]
    assert horizons[0] < horizons[1] / 2


def test_benefit_hot_huge_page_swapped_for_same_size() -> None:
    weights = np.full(PAGES, 1e-6)
    weights[12 * CHUNK_PAGES : 13 * CHUNK_PAGES] = 1.0
    run = synthetic(weights, huge=np.ones(PAGES // CHUNK_PAGES, np.bool_))
    ticks = [run.tick() for _ in range(3)]
    assert sum(tick.promoted_pages for tick in ticks) == CHUNK_PAGES
    assert sum(tick.demoted_pages for tick in ticks) == CHUNK_PAGES
    assert run.fast_share > 0.99


def crowded(fast_share: float) -> tuple[float, float]:
    """Return loaded latencies where the fast node serves at most 60 % of accesses."""
    return 90 / (1 - min(fast_share / 0.6, 0.95)), 250


def test_benefit_bandwidth_limited_fast_tier_latencies_equal() -> None:
    run = synthetic(hot_blocks(PAGES, 1536, 16, seed=3), latency_ns=crowded)
    for _ in range(60):
        run.tick()
    fast_ns, slow_ns = crowded(run.fast_share)
    assert 0.7 * slow_ns < fast_ns < 1.2 * slow_ns
    assert sum(run.tick().moved_pages for _ in range(10)) < PAGES // 10


def test_benefit_overloaded_fast_tier_relieved() -> None:
    weights = np.full(PAGES, 1e-6)
    weights[:FAST] = 1.0
    run = synthetic(weights, latency_ns=crowded)
    assert run.fast_share > 0.9
    for _ in range(60):
        run.tick()
    fast_ns, slow_ns = crowded(run.fast_share)
    assert fast_ns < 1.2 * slow_ns
    assert run.fast_share > 0.3


def test_benefit_where_accesses_are_not_counted_plans_as_histogram() -> None:
    run = synthetic(hot_blocks(PAGES, 1536, 16, seed=3), move_ns=1e9)
    for _ in range(6):
        run.tick()
    view = run.heat.view(run.machine.topology)
    machine = replace(run.machine, counted=False)
    kept = HistogramSettings(headroom=0.0, headroom_min=HEADROOM * PAGE_BYTES)
    ours, theirs = (policy.plan(view, machine) for policy in (run.policy, Histogram(kept)))
    assert len(ours) > 1000
    assert ours.address.tolist() == theirs.address.tolist()
    assert not len(run.policy.plan(view, run.machine))
