# SPDX-License-Identifier: MIT
"""The CPU budget: use stays within the quota whichever work costs most, and what gives way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from hmd.metrics.status import Work
from hmd.metrics.tick_record import TickRecord
from hmd.policy.plan import Plan
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import TickCost
from hmd.tick.cpu_budget import (
    CREDIT_S,
    MAX_DEBT_CHANGING_S,
    MAX_DEBT_PLANNING_S,
    MAX_DEBT_S,
    MAX_PLAN_TICKS,
    MAX_SWEEP_SHARE,
    MIN_SWEEP_SHARE,
    BudgetSettings,
    CpuBudget,
    TickCosts,
)

QUOTA = 0.01
LONG_S = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """CPU seconds per tick, per plan, per plan that moves, and per second of samples."""

    tick_s: float = 0.001
    plan_s: float = 0.001
    move_s: float = 0.0
    samples: float = 0.004


@dataclass(slots=True)
class Run:
    """Ticks of a load; ``cpu_s`` and ``elapsed_s`` are their sums."""

    budget: CpuBudget
    cpu_s: float = 0.0
    elapsed_s: float = 0.0
    plans: int = 0
    ticks: int = 0

    def until(self, end_s: float, load: Load, changing: bool = False) -> Run:
        while self.elapsed_s < end_s:
            limits = self.budget.limits()
            planned, elapsed_s = limits.plan, limits.tick_s
            cpu_s = {
                Work.SAMPLES: load.samples * elapsed_s,
                Work.DECIDE: load.plan_s if planned else 0.0,
                Work.MIGRATE: load.move_s if planned else 0.0,
                Work.OBSERVE: load.tick_s,
                Work.SWEEP: self.budget.sweep_share * elapsed_s / 2,
            }
            self.budget.charge(elapsed_s, cpu_s, planned=planned, load_changed=changing)
            self.cpu_s += sum(cpu_s.values())
            self.elapsed_s += elapsed_s
            self.plans += planned
            self.ticks += 1
        return self


def budget(max_tick_s: float = 60.0) -> CpuBudget:
    return CpuBudget(BudgetSettings(QUOTA, 1.0, max_tick_s))


def charge(
    budget: CpuBudget,
    elapsed_s: float,
    cpu_s: dict[Work, float],
    *,
    planned: bool = False,
    load_changed: bool = False,
    hot_set_changed: bool = False,
) -> None:
    """Add a tick that made no plan and in which nothing changed, unless it is said."""
    budget.charge(
        elapsed_s,
        cpu_s,
        planned=planned,
        load_changed=load_changed,
        hot_set_changed=hot_set_changed,
    )


LOADS = {
    "ticks": Load(tick_s=0.1),
    "plans": Load(plan_s=0.2),
    "moves": Load(move_s=0.8),
    "samples": Load(samples=0.009),
    "all": Load(0.05, 0.1, 0.3, 0.005),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("changing", [False, True])
def test_budget_most_costly_work_any_use_is_within_the_quota(load: Load, changing: bool) -> None:
    run = Run(budget()).until(LONG_S, load, changing)
    owed_s = (
        QUOTA * (CREDIT_S + MAX_DEBT_PLANNING_S + 60.0) + load.tick_s + load.plan_s + load.move_s
    )
    assert 0.8 * QUOTA * LONG_S <= run.cpu_s <= QUOTA * run.elapsed_s + owed_s


def test_budget_quota_not_exceeded_every_tick_is_as_configured() -> None:
    run = Run(budget()).until(LONG_S, Load())
    assert run.ticks == run.plans == LONG_S
    assert (run.budget.tick_length_ratio, run.budget.plan_ticks, run.budget.plans_delayed) == (
        1.0,
        1,
        0,
    )
    assert run.budget.cpu_debt_s == -CREDIT_S * QUOTA


def test_budget_burst_within_the_credit_changes_no_tick() -> None:
    run = Run(budget())
    charge(run.budget, 1.0, {Work.MIGRATE: CREDIT_S * QUOTA}, planned=True)
    assert run.budget.tick_length_ratio == 1.0
    assert run.budget.limits().plan


def test_budget_costly_plans_are_made_less_often_before_ticks_lengthen() -> None:
    load = Load(plan_s=0.008)
    run = Run(budget()).until(LONG_S, load)
    assert 2 <= run.budget.plan_ticks <= MAX_PLAN_TICKS
    assert run.budget.tick_length_ratio == 1.0


def test_budget_plans_beyond_the_fourth_tick_each_longer_tick_has_one() -> None:
    run = Run(budget()).until(LONG_S, Load(plan_s=0.2))
    assert run.budget.plan_ticks == 1
    assert 10 < run.budget.tick_s < 60


def test_budget_moves_beyond_the_quota_delay_plans_but_no_request() -> None:
    run = Run(budget(max_tick_s=2.0)).until(LONG_S, Load(move_s=2.0))
    assert run.budget.plans_delayed > 0
    assert run.plans < run.ticks
    charge(run.budget, 1.0, {Work.MIGRATE: 2.0}, load_changed=True)
    assert not run.budget.limits().plan
    delayed = run.budget.plans_delayed
    charge(run.budget, 1.0, {Work.MIGRATE: 2.0}, planned=True)  # by request
    assert run.budget.plans_delayed == delayed


def test_budget_overload_delays_plans_for_minutes_at_most() -> None:
    run = budget()
    for _ in range(600):
        charge(run, 10.0, {Work.OTHER: 1.0})
    assert run.cpu_debt_s == MAX_DEBT_S * QUOTA
    seconds = 0.0
    while not run.limits().plan:
        seconds += run.tick_s
        charge(run, run.tick_s, {})
    assert seconds <= MAX_DEBT_S


def test_budget_longest_tick_bounds_what_ticks_give() -> None:
    run = Run(budget(max_tick_s=3.0)).until(LONG_S, Load(tick_s=0.1))
    assert run.budget.tick_s == 3.0
    shorter = CpuBudget(BudgetSettings(QUOTA, tick_s=20.0, max_tick_s=3.0))
    charge(shorter, 20.0, {Work.OTHER: 9.0})
    assert shorter.tick_s == 20.0


def test_budget_changes_ticks_lengthen_later_than_in_calm() -> None:
    calm, busy = budget(), budget()
    for each, changing in ((calm, False), (busy, True)):
        charge(
            each, 1.0, {Work.OTHER: (CREDIT_S + MAX_DEBT_CHANGING_S) * QUOTA}, load_changed=changing
        )
    assert calm.tick_s > 5 > busy.tick_s == 1.0


def test_budget_load_ends_ticks_are_as_configured_again() -> None:
    run = Run(budget()).until(LONG_S, LOADS["all"])
    assert run.budget.tick_length_ratio > 1
    run.until(1.2 * LONG_S, Load())
    assert (run.budget.tick_length_ratio, run.budget.plan_ticks) == (1.0, 1)


def test_budget_fixed_work_takes_all_sweep_and_scans_keep_a_sixteenth() -> None:
    idle = budget()
    charge(idle, 1.0, {})
    assert idle.sweep_share == idle.discovery_share == MAX_SWEEP_SHARE * QUOTA
    run = Run(budget(max_tick_s=1.0)).until(LONG_S, Load(tick_s=0.1))
    assert run.budget.sweep_share == run.budget.discovery_share == MIN_SWEEP_SHARE * QUOTA


def test_budget_whole_cpu_busy_loop_nothing_gives_way() -> None:
    run = Run(CpuBudget(BudgetSettings(1.0, 1.0, 60.0))).until(LONG_S, Load(0.3, 0.3, 0.0, 0.1))
    assert run.ticks == run.plans == LONG_S
    assert run.budget.sweep_share == run.budget.discovery_share == MAX_SWEEP_SHARE


def test_budget_debt_lowers_what_samples_may_take_by_half_at_most() -> None:
    owing = budget()
    assert owing.samples_share == QUOTA
    charge(owing, 1.0, {Work.OTHER: 10.0})
    assert owing.samples_share == QUOTA / 2


def test_budget_reloaded_keeps_what_is_owed_and_spent() -> None:
    before = budget()
    charge(before, 1.0, {Work.OTHER: 2.0})
    after = CpuBudget(BudgetSettings(2 * QUOTA), before=before)
    assert after.cpu_debt_s == before.cpu_debt_s
    assert after.status(5.0).cpu_s[Work.OTHER] == 2.0


def test_tick_after_a_change_of_the_hot_set_is_short_unless_cpu_time_is_owed() -> None:
    budget = CpuBudget(BudgetSettings(QUOTA, 2.0, 10.0, 0.5))
    charge(budget, 2.0, {}, hot_set_changed=True)
    assert budget.tick_s == 0.5
    charge(budget, 0.5, {})
    assert budget.tick_s == 2.0
    charge(budget, 2.0, {Work.OTHER: (CREDIT_S + 3) * QUOTA}, hot_set_changed=True)
    assert budget.cpu_debt_s > 0
    assert budget.tick_s == 2.0


@pytest.mark.parametrize("min_s", [None, 2.0, 5.0])
def test_tick_after_a_change_of_the_hot_set_is_never_longer(min_s: float | None) -> None:
    budget = CpuBudget(BudgetSettings(QUOTA, 2.0, 10.0, min_s))
    charge(budget, 2.0, {}, hot_set_changed=True)
    assert budget.tick_s == 2.0


def test_first_tick_without_time_before_it_is_owed() -> None:
    first = budget()
    charge(first, 0.0, {Work.DISCOVERY: (CREDIT_S + 40) * QUOTA}, load_changed=True)
    assert first.cpu_debt_s == pytest.approx(40 * QUOTA)
    assert first.tick_s > first.settings.tick_s


def learn(budget: CpuBudget) -> None:
    """End a tick that cost nothing, while much memory has not been swept yet."""
    costs = TickCosts(dict.fromkeys(Work, 0.0), TickCost(1.0, 0.0, 0.0, 0.0))
    record = TickRecord(
        now_s=0.0,
        processes=(),
        targets=(),
        batch=AccessBatch.empty(),
        node=np.empty(0, np.int16),
        plan=Plan.empty(()),
        outcome=None,
    )
    budget.update(costs, record, load_changed=False, learning=True)


def test_first_sweep_has_half_of_the_quota_whatever_ticks_cost() -> None:
    """Fixed costs of ticks had left it a sixteenth: 4 MiB/s at 1 % of a CPU."""
    run = Run(budget()).until(600.0, Load(tick_s=0.008))
    assert run.budget.sweep_share == pytest.approx(MIN_SWEEP_SHARE * QUOTA)
    learn(run.budget)
    assert run.budget.sweep_share == pytest.approx(MAX_SWEEP_SHARE * QUOTA)


def test_first_sweep_spends_what_was_saved_up() -> None:
    fresh = budget()
    learn(fresh)
    sweep = fresh.limits().sweep
    assert sweep is not None
    assert sweep.cpu_s == pytest.approx(CREDIT_S * QUOTA / 2 + MAX_SWEEP_SHARE * QUOTA)
