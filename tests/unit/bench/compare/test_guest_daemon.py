# SPDX-License-Identifier: MIT
"""The daemon's configuration in the comparison, and the sampling period of its simulation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.compare.comparison_case import ComparisonTrial
from bench.compare.guest_services import EXPERIMENT_PERIOD, PACE, Pace, configuration
from bench.compare.simulations import mean_period
from bench.compare.systems import systems
from hmd.config.load import loads

TRIAL = ComparisonTrial(1.0, 60.0, 0, 0, 0.5, 8192, 0, misses=1_000_000)
POLICIES = sorted({system.policy for system in systems() if system.policy})


@pytest.mark.parametrize("policy", POLICIES)
def test_daemon_without_fixed_period_runs_with_defaults(policy: str) -> None:
    config = loads(json.dumps(configuration(policy)), "comparison")
    default = loads("{}", "default")
    assert config.sample.period is None
    assert config.sample.overhead == default.sample.overhead
    assert config.migrate.page_cache == default.migrate.page_cache
    assert config.tick == PACE.tick_s


def test_daemon_of_an_experiment_has_a_fixed_period() -> None:
    config = loads(json.dumps(configuration("histogram", Pace(0.5, 331))), "experiment")
    assert (config.tick, config.sample.period) == (0.5, 331)


def test_simulation_takes_the_mean_period_of_the_run() -> None:
    assert mean_period(replace(TRIAL, samples=4000)) == 250
    assert mean_period(TRIAL) == EXPERIMENT_PERIOD
