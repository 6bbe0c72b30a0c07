# SPDX-License-Identifier: MIT
"""Rules tuned for one program and ratio, for the learned policy's study."""

from __future__ import annotations

from pathlib import Path

from bench.learned_policy.networks import charged
from bench.learned_policy.runs import tuned_rule
from hmd.emulate.preset import load
from hmd.learn.training import make_policy
from hmd.simulate.executors import Journal
from hmd.simulate.simulation import simulate
from tests.unit.simulate.conftest import PAGES, hot_set, stream_of

FAST = PAGES // 3


def test_tuned_rule_is_no_slower_than_both_defaults_and_continues(tmp_path: Path) -> None:
    stream, preset = stream_of(hot_set(150_000, PAGES // 2, 1)), load("dram-pm")
    said: list[str] = []
    found = tuned_rule(stream, preset, FAST, Journal(tmp_path / "runs"), said.append, trials=3)
    assert said
    settings = charged(1000)  # the samples of the trials

    def seconds(policy: str, **values: float) -> float:
        return simulate(stream, preset, FAST, make_policy(policy, **values), settings).runtime_s

    tuned = seconds(found.policy, **found.values)
    assert tuned <= min(seconds("histogram"), seconds("benefit"))
    # From the journal, without a simulation.
    size = (tmp_path / "runs").stat().st_size
    again = tuned_rule(stream, preset, FAST, Journal(tmp_path / "runs"), said.append, trials=3)
    assert again == found
    assert (tmp_path / "runs").stat().st_size == size
