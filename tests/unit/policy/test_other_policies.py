# SPDX-License-Identifier: MIT
"""The policies age, heat-classes and interleave on simulated machines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.base.units import PAGE_BYTES
from hmd.policy.builtin import age, heat_classes, interleave
from hmd.policy.plan import MachineView, Policy
from tests.unit.policy.hot_share import hot_fast

HEADROOM = 64
KEPT = {"headroom": 0.0, "headroom_min": HEADROOM * PAGE_BYTES}
PAGES, HOT, FAST = 8192, 2048, 2560


def synthetic(
    policy: Policy, weights: npt.NDArray[np.float64], *tiers: int, samples: int = 20_000
) -> SyntheticRun:
    """First touch: the fast tier is full of the program's first pages."""
    sizes = tiers or (FAST, 2 * PAGES)
    node = np.ones(len(weights), np.int8)
    node[: sizes[0]] = 0
    free = tuple(Tier(pages + HEADROOM) for pages in sizes)
    return SyntheticRun(policy, free, weights, node, samples_per_tick=samples, seed=3)


def make_age(**settings: float) -> age.Age:
    return age.Age(age.AgeSettings.model_validate({**KEPT, **settings}))


def make_classes(**settings: float) -> heat_classes.HeatClasses:
    return heat_classes.HeatClasses(
        heat_classes.HeatClassesSettings.model_validate({**KEPT, **settings})
    )


def make_interleave(**settings: float) -> interleave.Interleave:
    return interleave.Interleave(interleave.InterleaveSettings.model_validate({**KEPT, **settings}))


def used_only(first: int, last: int) -> npt.NDArray[np.float64]:
    weights = np.zeros(PAGES)
    weights[first:last] = 1.0
    return weights


def test_age_working_set_promoted() -> None:
    run = synthetic(make_age(), used_only(6000, 6000 + HOT))
    assert run.fast_share == 0.0
    for _ in range(6):
        run.tick()
    assert run.fast_share > 0.98
    # All that is in use is there: nothing more to do.
    assert run.tick().moved_pages <= 0.01 * HOT


def test_age_working_set_changes_followed() -> None:
    run = synthetic(make_age(), used_only(6000, 6000 + HOT))
    for _ in range(6):
        run.tick()
    run.weights = used_only(3000, 3000 + HOT)
    for _ in range(6):
        run.tick()
    assert run.fast_share > 0.98


def test_age_idle_pages_demoted_without_demand_for_room() -> None:
    run = synthetic(make_age(active=1.0, idle=4.0), used_only(0, 1000))
    for _ in range(4):
        assert run.tick().moved_pages == 0
    run.tick()
    assert (run.node[:1000] == 0).all()
    assert (run.node[1000:] == 1).all()


def test_age_idle_pages_demoted_tier_by_tier() -> None:
    run = synthetic(make_age(idle=4.0), used_only(0, 500), 1000, 2 * PAGES, 2 * PAGES)
    places = []
    for _ in range(12):
        run.tick()
        places.append(sorted(set(run.node[500:1000].tolist())))
    assert places[0] == [0]
    assert places[5] == [1]
    assert places[-1] == [2]
    assert (run.node[:500] == 0).all()


@pytest.mark.parametrize("block", [16, 64])
def test_heat_classes_hot_set_promoted(block: int) -> None:
    run = synthetic(make_classes(), hot_blocks(PAGES, HOT, block, seed=1))
    for _ in range(12):
        run.tick()
    assert hot_fast(run) > 0.97


def test_heat_classes_longer_retention_fewer_moves() -> None:
    moved = []
    for retention in (0.0, 20.0):
        weights = hot_blocks(PAGES, 3 * FAST // 2, 1, seed=1)
        run = synthetic(make_classes(retention=retention), weights, samples=4000)
        moved.append(sum(run.tick().moved_pages for _ in range(20)))
    assert moved[1] < 0.8 * moved[0]


def test_interleave_ratio_reached_each_page_moved_once() -> None:
    run = synthetic(make_interleave(fast=0.25), np.ones(PAGES))
    before = run.node.copy()
    moved = run.tick().moved_pages
    assert moved == np.count_nonzero(run.node != before)
    assert (run.node == 0).mean() == pytest.approx(0.25, abs=0.02)
    for _ in range(5):
        assert run.tick().moved_pages == 0


def test_interleave_hot_set_changes_no_moves() -> None:
    run = synthetic(make_interleave(), hot_blocks(PAGES, HOT, 16, seed=1))
    run.tick()
    run.weights = hot_blocks(PAGES, HOT, 16, seed=2)
    assert run.tick().moved_pages == 0
    # By size, where bandwidths are not known.
    fast = (FAST + HEADROOM) / (FAST + 2 * PAGES + 2 * HEADROOM)
    assert (run.node == 0).mean() == pytest.approx(fast, abs=0.02)


def test_interleave_known_bandwidths_set_ratio() -> None:
    run = synthetic(make_interleave(), np.ones(PAGES), PAGES, 2 * PAGES)
    run.heat.update(run.read())
    machine = with_bandwidths(run.machine, 3000, 1000)
    plan = make_interleave().plan(run.heat.view(machine.topology), machine)
    assert plan.pages.sum() == pytest.approx(PAGES / 4, rel=0.1)
    assert set(plan.to_node.tolist()) == {1}


def with_bandwidths(machine: MachineView, *mbps: int) -> MachineView:
    nodes = tuple(
        replace(node, read_bandwidth_mbps=each)
        for node, each in zip(machine.topology.nodes, mbps, strict=True)
    )
    return replace(machine, topology=replace(machine.topology, nodes=nodes))
