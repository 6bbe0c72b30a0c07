# SPDX-License-Identifier: MIT
"""How late moves come after the samples that they follow from, and what policies make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.emulate.preset import load
from hmd.heat.view import PageView
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.plan import MachineView, Plan
from hmd.simulate.simulation import SimulationSettings, simulate
from hmd.tick.estimates import MoveDelay
from tests.unit.simulate.conftest import stream_of

PAGES, FAST = 4096, 1024


class DelayedBenefit:
    """The benefit policy, on a machine whose moves are so late; None: as the machine says."""

    name = "delayed benefit"

    def __init__(self, delay_s: float | None = None) -> None:
        self._policy = Benefit(BenefitSettings(headroom=0.0, headroom_min=1 << 16))
        self._delay_s = delay_s
        self.delays_s: list[float] = []

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        self.delays_s.append(machine.move_delay_s)
        if self._delay_s is not None:
            machine = replace(machine, move_delay_s=self._delay_s)
        return self._policy.plan(pages, machine)


def after(*delays_s: float) -> MoveDelay:
    """The delay after ticks whose moves came so late."""
    delay = MoveDelay()
    for tick, delay_s in enumerate(delays_s):
        delay.start_tick(100.0 * tick)
        delay.record_moves(100.0 * tick + delay_s / 2, 100.0 * tick + 1.5 * delay_s)
    return delay


def test_delay_is_from_the_samples_to_the_middle_of_the_moves() -> None:
    assert after().mean_s == 0.0
    assert after(0.5, 0.5).mean_s == pytest.approx(0.5)
    assert after(0.5, 0.5, *50 * [0.1]).mean_s == pytest.approx(0.1, abs=1e-3)


def test_first_moves_that_take_long_are_not_expected_again() -> None:
    assert after(1.5).mean_s == 0.0
    assert after(1.5, 0.1).mean_s == pytest.approx(0.1)
    assert after(*10 * [0.1], 60.0, 0.1).mean_s == pytest.approx(0.1)


def test_delay_that_grows_is_followed() -> None:
    assert after(*10 * [0.1], *10 * [1.0]).mean_s > 0.8


def test_delay_that_stops_all_moves_fades() -> None:
    """The daemon was stopped for a minute while its first plans were applied."""
    delay = after(30.0, 30.0)
    assert delay.mean_s == pytest.approx(30.0)
    for tick in range(100):
        delay.start_tick(200.0 + tick)
    assert delay.mean_s < 0.3


def test_simulated_tick_measures_the_delay_of_its_moves() -> None:
    random = np.random.default_rng(1)
    hot = 3 * FAST + random.integers(0, FAST, 200_000)
    policy = DelayedBenefit()
    settings = SimulationSettings(tick_s=0.004, delay_s=0.001)
    run = simulate(stream_of(hot, PAGES), load("dram-pm"), FAST, policy, settings)
    assert run.moved_bytes > 0
    assert policy.delays_s[0] == 0.0
    assert 0.001 < policy.delays_s[-1] < 0.012


@pytest.mark.parametrize(("delay_s", "moves"), [(0.0, True), (1000.0, False)])
def test_pages_move_where_they_save_enough_after_the_delay(delay_s: float, moves: bool) -> None:
    run = SyntheticRun(
        DelayedBenefit(delay_s),
        (Tier(FAST + 16), Tier(2 * PAGES)),
        hot_blocks(PAGES, 768, 16, seed=3),
        (np.arange(PAGES) >= FAST).astype(np.int8),
        samples_per_tick=20_000,
    )
    assert (sum(run.tick().moved_pages for _ in range(6)) > 0) == moves
