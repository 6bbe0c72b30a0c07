# SPDX-License-Identifier: MIT
"""Selection of idle pages to page out."""

from __future__ import annotations

import numpy as np

from bench.synthetic.synthetic_run import BASE, SyntheticRun, Tier
from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES, FIXED
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from hmd.policy.plan import Plan
from hmd.policy.planning import OUT, idle_pages


def synthetic(ticks: int = 10) -> SyntheticRun:
    """Two chunks on the slow node; the first 100 pages of the first are used, the second huge."""
    weights = np.zeros(2 * CHUNK_PAGES)
    weights[:100] = 1.0
    run = SyntheticRun(
        Histogram(HistogramSettings(headroom_min=0)),
        (Tier(0), Tier(8192)),
        weights,
        np.ones(2 * CHUNK_PAGES, np.int8),
        samples_per_tick=5000,
        huge=np.array([False, True]),
    )
    for _ in range(ticks):
        run.tick()
    return run


def idle(run: SyntheticRun, idle_s: float, most_bytes: int) -> Plan:
    pages = run.heat.view(run.machine.topology)
    return idle_pages(pages, run.machine, np.array([idle_s]), most_bytes)


def test_idle_selection_idle_pages_longest_idle_first() -> None:
    run = synthetic()
    # A page that came late.
    node = run.heat.chunks.columns.node[:1].copy()
    node[0, 300] = -1
    start = np.array([BASE], np.uint64)
    run.heat.record_nodes(0, start, node)
    node[0, 300] = 1
    run.heat.record_nodes(0, start, node)
    for _ in range(5):
        run.tick()
    plan = idle(run, 4.0, 1 << 40)
    number = ((plan.address - np.uint64(BASE)) // np.uint64(PAGE_BYTES)).tolist()
    assert sorted(number) == [*range(100, CHUNK_PAGES), CHUNK_PAGES]
    assert number[-1] == 300
    assert plan.pages[number.index(CHUNK_PAGES)] == CHUNK_PAGES
    assert set(plan.to_node.tolist()) == {OUT}
    assert not len(idle(run, 60.0, 1 << 40))


def test_idle_selection_fixed_pages_stay_budget_kept() -> None:
    run = synthetic()
    run.heat.chunks.columns.node[0, 200:] = FIXED - 1
    plan = idle(run, 4.0, 100 * PAGE_BYTES)
    assert plan.pages.tolist() == [1] * 100
    assert len(idle(run, 4.0, 99 * PAGE_BYTES)) == 99


def test_idle_selection_pages_of_faster_tier_not_selected() -> None:
    run = synthetic()
    run.heat.chunks.columns.node[:2][run.heat.chunks.columns.node[:2] == 1] = 0
    assert not len(idle(run, 4.0, 1 << 70))
