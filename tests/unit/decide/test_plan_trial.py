"""Trials of plans that are not made, over a synthetic program with a known hot set."""

from __future__ import annotations

import numpy as np
import pytest

from bench.synthetic.synthetic_memory import Tier
from bench.synthetic.synthetic_run import SyntheticRun, hot_blocks
from hmd.decide.plan import MachineView, Plan
from hmd.decide.plan_trial import TRIAL_TICKS, PlanTrial
from hmd.decide.policies.none import NonePolicy
from hmd.heat.view.page_view import PageView
from hmd.machine.process_id import ProcessId

PAGES, HOT = 4096, 256
MOVE_S = 3e-6
FAST, SLOW = 0, 1


@pytest.fixture
def still() -> SyntheticRun:
    """A program whose pages all stay on the slow node."""
    weights = hot_blocks(PAGES, HOT, 16, seed=1)
    node = np.full(PAGES, SLOW, np.int8)
    return SyntheticRun(
        NonePolicy(), (Tier(PAGES), Tier(2 * PAGES)), weights, node, samples_per_tick=4000
    )


def plan_of(view: PageView, rows: np.ndarray, start: int, end: int) -> Plan:
    """A plan that moves rows of a view from one node to another."""
    count = len(rows)
    return Plan(
        view.processes,
        view.process[rows].astype(np.int32),
        view.address[rows],
        np.ones(count, np.uint32),
        np.full(count, start, np.int16),
        np.full(count, end, np.int16),
        np.ones(count, np.float32),
        np.zeros(count, np.int32),
    )


def net_s(run: SyntheticRun, hot: bool, start: int = SLOW, end: int = FAST) -> float:
    """What moving the hottest or coldest pages would have brought, by the ticks that follow."""
    run.tick()
    view = run.heat.view(run.machine.topology)
    order = np.argsort(run.weights[: len(view)])
    trial = PlanTrial(plan_of(view, order[-HOT:] if hot else order[:HOT], start, end), MOVE_S)
    cost_s = -trial.net_s
    assert cost_s == pytest.approx(HOT * MOVE_S)
    for _ in range(TRIAL_TICKS):
        assert not trial.ended
        run.tick()
        follow(trial, run)
    assert trial.ended
    return trial.net_s


def follow(trial: PlanTrial, run: SyntheticRun) -> None:
    machine: MachineView = run.machine
    trial.follow(run.heat.view(machine.topology), machine, machine.tick_s)


def test_trial_pages_with_more_accesses_save_more(still: SyntheticRun) -> None:
    hot_s = net_s(still, hot=True)
    assert hot_s > HOT * MOVE_S
    assert net_s(still, hot=False) < 0.1 * hot_s


def test_trial_of_demoting_hot_pages_loses_what_promoting_gains(still: SyntheticRun) -> None:
    gain_s, loss_s = (
        net_s(still, hot=True, start=start, end=1 - start) + HOT * MOVE_S for start in (SLOW, FAST)
    )
    assert loss_s == pytest.approx(-gain_s, rel=0.1)


def test_trial_of_a_process_that_ended_saves_nothing(still: SyntheticRun) -> None:
    still.tick()
    view = still.heat.view(still.machine.topology)
    plan = plan_of(view, np.arange(HOT), SLOW, FAST)
    other = Plan((ProcessId(999_999, 1),), *(getattr(plan, name) for name in COLUMNS))
    trial = PlanTrial(other, MOVE_S)
    still.tick()
    follow(trial, still)
    assert trial.net_s == pytest.approx(-HOT * MOVE_S)


COLUMNS = ("process", "address", "pages", "from_node", "to_node", "heat", "phase")
