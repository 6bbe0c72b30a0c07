# SPDX-License-Identifier: MIT
"""CPU time without a quota: little while nothing changes, more as far as moves have paid for it."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.metrics.status import Work
from hmd.metrics.tick_record import TickRecord
from hmd.policy.latency import MAX_PARALLELISM
from hmd.policy.plan import Plan
from hmd.sample.access_batch import AccessBatch
from hmd.tick.cpu_budget import (
    BUCKET_S,
    CALM_SHARE,
    FIND_S,
    MACHINE_SHARE,
    MIN_PAYING_SHARE,
    SAVED_SHARE,
    SEARCH_S,
    SEARCH_SHARE,
    AccessSums,
    AccessWatch,
    BudgetSettings,
    CpuAllowance,
    CpuBudget,
    TickGain,
    tick_gain,
)

CPUS = 128
MAX_SHARE = MACHINE_SHARE * CPUS
TOPOLOGY = Topology(
    (
        Node(0, tuple(range(CPUS)), 1 << 40, (10, 20), tier=0, read_latency_ns=100),
        Node(1, (), 1 << 40, (20, 10), tier=1, read_latency_ns=300),
    )
)


def sums(fast: float = 0.9, samples: int = 10_000) -> AccessSums:
    return AccessSums(samples, 1e6, fast * 1e6, 1.0)


def steady(promoted: float = 0.0, saved_s: float = 0.0, fast: float = 0.9) -> TickGain:
    return TickGain(sums(fast), promoted * 1e6, saved_s)


def update(
    allowance: CpuAllowance,
    gain: TickGain,
    ticks: int = 1,
    *,
    changed: bool = False,
    planned: bool = True,
) -> CpuAllowance:
    for _ in range(ticks):
        allowance.update(gain, 1.0, hot_set_changed=changed, planned=planned)
    return allowance


def calm() -> CpuAllowance:
    return update(CpuAllowance(CPUS), steady(), int(SEARCH_S))


def test_allowance_nothing_pays_for_long_is_calm_and_needs_a_thousandth() -> None:
    allowance = CpuAllowance(CPUS)
    assert allowance.share == SEARCH_SHARE
    update(allowance, steady(), int(SEARCH_S) - 1)
    assert not allowance.is_calm
    assert update(allowance, steady()).is_calm
    assert allowance.share == allowance.base_share == CALM_SHARE


def test_allowance_plans_that_wait_leave_the_search_unfinished() -> None:
    assert not update(CpuAllowance(CPUS), steady(), 1000, planned=False).is_calm


@pytest.mark.parametrize(
    ("gain", "changed"),
    [
        (steady(), True),
        (steady(promoted=2 * MIN_PAYING_SHARE), False),
        (steady(fast=0.5), False),
    ],
)
def test_allowance_change_or_gain_ends_the_calm(gain: TickGain, changed: bool) -> None:
    assert not update(calm(), gain, changed=changed).is_calm


@pytest.mark.parametrize("gain", [steady(promoted=MIN_PAYING_SHARE / 2), steady(fast=0.89)])
def test_allowance_small_gain_or_difference_leaves_the_calm(gain: TickGain) -> None:
    assert update(calm(), gain).is_calm


def test_bucket_has_a_tenth_of_what_moves_save_and_no_more_than_the_machine() -> None:
    allowance = update(CpuAllowance(CPUS), steady(saved_s=2.0), 10)
    assert allowance.bucket_s == pytest.approx(10 * SAVED_SHARE * 2.0)
    update(allowance, steady(saved_s=1e6), 10)
    assert allowance.bucket_s == pytest.approx(2.0 + 10 * MAX_SHARE)
    assert update(allowance, steady(saved_s=1e6), 1000).bucket_s == BUCKET_S * MAX_SHARE
    assert update(CpuAllowance(CPUS), steady(saved_s=-5.0)).bucket_s == 0.0


def test_bucket_is_spent_on_samples_while_something_is_found() -> None:
    allowance = update(CpuAllowance(CPUS), steady(saved_s=1e6), int(FIND_S) + 1)
    assert allowance.bucket_s > 0
    assert allowance.share == SEARCH_SHARE
    allowance.search()
    assert SEARCH_SHARE < allowance.share <= MAX_SHARE


def test_bucket_pays_debts_but_not_in_calm_times() -> None:
    allowance = update(CpuAllowance(CPUS), steady(saved_s=10.0))
    assert allowance.pay(0.4) == pytest.approx(0.4)
    assert allowance.pay(10.0) == pytest.approx(0.6)
    assert allowance.pay(1.0) == allowance.pay(-1.0) == 0.0
    rich = update(CpuAllowance(CPUS), steady(saved_s=10.0), int(SEARCH_S))
    assert rich.is_calm
    assert rich.pay(1.0) == 0.0


def test_allowance_of_a_reload_keeps_what_moves_have_paid() -> None:
    before = update(CpuAllowance(CPUS), steady(saved_s=1e6), 1000)
    assert CpuAllowance(CPUS, before).bucket_s == before.bucket_s
    assert CpuAllowance(1, before).bucket_s == BUCKET_S * SEARCH_SHARE


def test_watch_chance_is_no_change() -> None:
    random, watch = np.random.default_rng(1), AccessWatch()
    for _ in range(2000):
        count = int(random.integers(1, 2000))
        fast = random.binomial(count, 0.7)
        assert not watch.learn(AccessSums(count, count, fast, 1.0))


def test_watch_few_samples_show_nothing() -> None:
    watch = AccessWatch()
    watch.learn(sums())
    assert not watch.is_changed(sums(fast=0.0, samples=10))
    assert watch.is_changed(sums(fast=0.0, samples=100))


def record(plan: Plan, node: list[int], period: int = 1000) -> TickRecord:
    batch = AccessBatch.of(np.arange(len(node), dtype=np.uint64), period=period)
    return TickRecord(
        now_s=1.0,
        processes=(ProcessId(1, 1),),
        targets=("t",),
        batch=batch,
        node=np.array(node, np.int16),
        plan=plan,
        outcome=None,
        tick_s=2.0,
    )


def plan(*moves: tuple[int, float]) -> Plan:
    """Moves of one huge page each: to a node, of pages of this heat."""
    nodes = np.array([node for node, _ in moves], np.int16)
    return Plan(
        (ProcessId(1, 1),),
        np.zeros(len(moves), np.int32),
        np.arange(len(moves), dtype=np.uint64) << np.uint64(21),
        np.full(len(moves), 512, np.uint32),
        (1 - nodes).astype(np.int16),
        nodes,
        np.array([heat for _, heat in moves], np.float32),
        np.zeros(len(moves), np.int32),
    )


def test_gain_has_the_accesses_of_known_pages_and_what_is_promoted() -> None:
    gain = tick_gain(record(plan((0, 2.0), (1, 7.0)), [0, 0, 1, -1]), TOPOLOGY, 4.0, 0.5)
    assert gain.sums == AccessSums(3, 3000.0, 2000.0, 2.0)
    assert gain.promoted_rate == 1024.0
    assert gain.saved_s == 0.5


def test_gain_of_misses_that_overlap_counts_once() -> None:
    # 4,000 misses of 300 ns, each standing for a million, in two seconds of one CPU.
    busy = record(Plan.empty(), [1] * 40, period=100_000)
    assert tick_gain(busy, TOPOLOGY, 0.3, 1.0).saved_s == pytest.approx(0.5)
    assert tick_gain(busy, TOPOLOGY, 1e-6, 1.0).saved_s == pytest.approx(1 / MAX_PARALLELISM)


def test_budget_without_quota_moves_beyond_it_are_paid_by_what_they_save() -> None:
    poor, rich = (CpuBudget(BudgetSettings(cpus=CPUS)) for _ in range(2))
    assert rich.allowance is not None
    update(rich.allowance, steady(saved_s=1e6), 10)
    for budget in (poor, rich):
        budget.charge(1.0, {Work.MIGRATE: 2.0}, planned=True, load_changed=True)
    assert poor.cpu_debt_s > 1.0
    assert not poor.limits().plan
    assert poor.limits().tick_s == 10.0
    assert rich.cpu_debt_s <= 0.0
    assert rich.limits().plan
    assert rich.limits().tick_s == 1.0


def test_budget_without_quota_stays_within_a_thousandth_in_calm_times() -> None:
    budget = CpuBudget(BudgetSettings(cpus=CPUS))
    assert budget.allowance is not None
    update(budget.allowance, steady(), int(SEARCH_S))
    cpu_s = elapsed_s = 0.0
    while elapsed_s < 3600.0:
        limits = budget.limits()
        spent = {Work.OBSERVE: 0.006, Work.DECIDE: 0.03 if limits.plan else 0.0}
        budget.charge(limits.tick_s, spent, planned=limits.plan, load_changed=False)
        cpu_s, elapsed_s = cpu_s + sum(spent.values()), elapsed_s + limits.tick_s
    assert budget.limits().min_gain == MIN_PAYING_SHARE
    assert cpu_s / elapsed_s < 1.25 * CALM_SHARE
