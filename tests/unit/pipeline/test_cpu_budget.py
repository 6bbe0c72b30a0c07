"""The CPU budget: use stays within the quota whichever work costs most, and what gives way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hmd.observe.budget_numbers import Work
from hmd.pipeline.cpu_budget import (
    CHANGE_S,
    CREDIT_S,
    OWED_MOST_S,
    PLAN_S,
    PLAN_TICKS_MOST,
    REST_LEAST,
    SHARE_MOST,
    BudgetSettings,
    CpuBudget,
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
            planned = self.budget.plan_due()
            elapsed_s = self.budget.tick_s
            cpu_s = {
                Work.SAMPLES: load.samples * elapsed_s,
                Work.DECIDE: load.plan_s if planned else 0.0,
                Work.MIGRATE: load.move_s if planned else 0.0,
                Work.OBSERVE: load.tick_s,
                Work.SWEEP: self.budget.sweep_share * elapsed_s / 2,
            }
            self.budget.ticked(elapsed_s, cpu_s, changing=changing)
            self.cpu_s += sum(cpu_s.values())
            self.elapsed_s += elapsed_s
            self.plans += planned
            self.ticks += 1
        return self


def budget(tick_most_s: float = 60.0) -> CpuBudget:
    return CpuBudget(BudgetSettings(QUOTA, 1.0, tick_most_s))


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
    owed_s = QUOTA * (CREDIT_S + PLAN_S + 60.0) + load.tick_s + load.plan_s + load.move_s
    assert 0.8 * QUOTA * LONG_S <= run.cpu_s <= QUOTA * run.elapsed_s + owed_s


def test_budget_quota_not_exceeded_every_tick_is_as_configured() -> None:
    run = Run(budget()).until(LONG_S, Load())
    assert run.ticks == run.plans == LONG_S
    assert (run.budget.stretch, run.budget.plan_ticks, run.budget.plans_delayed) == (1.0, 1, 0)
    assert run.budget.owed_s == -CREDIT_S * QUOTA


def test_budget_burst_within_the_credit_changes_no_tick() -> None:
    run = Run(budget())
    run.budget.plan_due()
    run.budget.ticked(1.0, {Work.MIGRATE: CREDIT_S * QUOTA}, changing=False)
    assert run.budget.stretch == 1.0
    assert run.budget.plan_due()


def test_budget_costly_plans_are_made_less_often_before_ticks_lengthen() -> None:
    load = Load(plan_s=0.008)
    run = Run(budget()).until(LONG_S, load)
    assert 2 <= run.budget.plan_ticks <= PLAN_TICKS_MOST
    assert run.budget.stretch == 1.0


def test_budget_plans_beyond_the_fourth_tick_each_longer_tick_has_one() -> None:
    run = Run(budget()).until(LONG_S, Load(plan_s=0.2))
    assert run.budget.plan_ticks == 1
    assert 10 < run.budget.tick_s < 60


def test_budget_moves_beyond_the_quota_delay_plans_but_no_request() -> None:
    run = Run(budget(tick_most_s=2.0)).until(LONG_S, Load(move_s=2.0))
    assert run.budget.plans_delayed > 0
    assert run.plans < run.ticks
    run.budget.ticked(1.0, {Work.MIGRATE: 2.0}, changing=True)
    assert not run.budget.plan_due()
    assert run.budget.plan_due(requested=True)


def test_budget_overload_delays_plans_for_minutes_at_most() -> None:
    run = budget()
    for _ in range(600):
        run.ticked(10.0, {Work.OTHER: 1.0}, changing=False)
    assert run.owed_s == OWED_MOST_S * QUOTA
    seconds = 0.0
    while not run.plan_due():
        seconds += run.tick_s
        run.ticked(run.tick_s, {}, changing=False)
    assert seconds <= OWED_MOST_S


def test_budget_longest_tick_bounds_what_ticks_give() -> None:
    run = Run(budget(tick_most_s=3.0)).until(LONG_S, Load(tick_s=0.1))
    assert run.budget.tick_s == 3.0
    shorter = CpuBudget(BudgetSettings(QUOTA, tick_s=20.0, tick_most_s=3.0))
    shorter.ticked(20.0, {Work.OTHER: 9.0}, changing=False)
    assert shorter.tick_s == 20.0


def test_budget_changes_ticks_lengthen_later_than_in_calm() -> None:
    calm, busy = budget(), budget()
    for each, changing in ((calm, False), (busy, True)):
        each.ticked(1.0, {Work.OTHER: (CREDIT_S + CHANGE_S) * QUOTA}, changing=changing)
    assert calm.tick_s > 5 > busy.tick_s == 1.0


def test_budget_load_ends_ticks_are_as_configured_again() -> None:
    run = Run(budget()).until(LONG_S, LOADS["all"])
    assert run.budget.stretch > 1
    run.until(1.2 * LONG_S, Load())
    assert (run.budget.stretch, run.budget.plan_ticks) == (1.0, 1)


def test_budget_fixed_work_takes_all_sweep_and_scans_keep_a_sixteenth() -> None:
    idle = budget()
    idle.ticked(1.0, {}, changing=False)
    assert idle.sweep_share == idle.discovery_share == SHARE_MOST * QUOTA
    run = Run(budget(tick_most_s=1.0)).until(LONG_S, Load(tick_s=0.1))
    assert run.budget.sweep_share == run.budget.discovery_share == REST_LEAST * QUOTA


def test_budget_whole_cpu_busy_loop_nothing_gives_way() -> None:
    run = Run(CpuBudget(BudgetSettings(1.0, 1.0, 60.0))).until(LONG_S, Load(0.3, 0.3, 0.0, 0.1))
    assert run.ticks == run.plans == LONG_S
    assert run.budget.sweep_share == run.budget.discovery_share == SHARE_MOST


def test_budget_debt_lowers_what_samples_may_take_by_half_at_most() -> None:
    owing = budget()
    assert owing.samples_share == QUOTA
    owing.ticked(1.0, {Work.OTHER: 10.0}, changing=False)
    assert owing.samples_share == QUOTA / 2


def test_budget_reloaded_keeps_what_is_owed_and_spent() -> None:
    before = budget()
    before.ticked(1.0, {Work.OTHER: 2.0}, changing=False)
    after = CpuBudget(BudgetSettings(2 * QUOTA), before)
    assert after.owed_s == before.owed_s
    assert after.numbers(5.0, 0.0).cpu_s[Work.OTHER] == 2.0


def test_tick_after_many_moves_is_short_unless_cpu_time_is_owed() -> None:
    budget = CpuBudget(BudgetSettings(QUOTA, 2.0, 10.0, 0.5))
    budget.ticked(2.0, {}, changing=False, unsettled=True)
    assert budget.tick_s == 0.5
    budget.ticked(0.5, {}, changing=False)
    assert budget.tick_s == 2.0
    budget.ticked(2.0, {Work.OTHER: (CREDIT_S + 3) * QUOTA}, changing=False, unsettled=True)
    assert budget.owed_s > 0
    assert budget.tick_s == 2.0


@pytest.mark.parametrize("least_s", [None, 2.0, 5.0])
def test_tick_after_many_moves_is_never_longer(least_s: float | None) -> None:
    budget = CpuBudget(BudgetSettings(QUOTA, 2.0, 10.0, least_s))
    budget.ticked(2.0, {}, changing=False, unsettled=True)
    assert budget.tick_s == 2.0


def test_first_tick_without_time_before_it_is_owed() -> None:
    first = budget()
    first.ticked(0.0, {Work.DISCOVERY: (CREDIT_S + 40) * QUOTA}, changing=True)
    assert first.owed_s == pytest.approx(40 * QUOTA)
    assert first.tick_s > first.settings.tick_s
