# SPDX-License-Identifier: MIT
"""The search of a policy's tunables: choice of the best trial, and reproducible searches."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissStream
from hmd.policy import registry
from hmd.simulate.cases import CaseRuntimes, SimulationCase
from hmd.simulate.executors import Journal
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings
from hmd.simulate.tuning import WORST, Tuned, TuningProgress, TuningTrial, chosen, cost_of, tune
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

FAST_PAGES = HOT_PAGES + 64
KEPT = {"headroom": 0.0, "headroom_min": 8 * 4096}
SETTINGS = SimulationSettings(tick_s=0.002, delay_s=0.0005, sampling=PmuSettings(period=23))
TRIALS = 8


def case(name: str, stream: MissStream) -> SimulationCase:
    return SimulationCase(name, "17%", FAST_PAGES, stream)


@pytest.fixture(scope="module")
def cases() -> list[SimulationCase]:
    still = hot_set(60_000, PAGES - HOT_PAGES, 1)
    moving = np.concatenate([still, hot_set(60_000, PAGES // 2, 2)])
    # The longer one first: trials begin with the shorter.
    return [case("moving", stream_of(moving)), case("still", stream_of(still))]


@pytest.fixture(scope="module")
def held_out() -> list[SimulationCase]:
    return [case("other", stream_of(hot_set(60_000, PAGES // 4, 3)))]


Search = Callable[..., Tuned]


@pytest.fixture(scope="module")
def known() -> Journal:
    """The simulation results of all tests."""
    return Journal()


@pytest.fixture
def search(cases: list[SimulationCase], preset: Preset, known: Journal) -> Search:
    def run(
        *,
        knobs: tuple[str, ...] = ("samples_min", "confidence"),
        held_out: list[SimulationCase] | None = None,
        seed: int = 1,
        jobs: int = 1,
        journal: Journal | None = None,
        said: list[str] | None = None,
        watch: TuningProgress | None = None,
    ) -> Tuned:
        ranges = chosen(registry.info("histogram"), knobs, SETTINGS.tick_s)
        say = (said if said is not None else []).append
        results = journal or known
        with CaseRuntimes(
            "histogram", preset, SETTINGS, jobs=jobs, journal=results, say=say
        ) as runs:
            return tune(
                runs,
                cases,
                held_out or [],
                KEPT,
                ranges,
                trials=TRIALS,
                seed=seed,
                fresh_seed=2,
                watch=watch,
            )

    return run


def test_tune_defaults_first_and_best_trial_chosen(search: Search) -> None:
    tuned = search()
    assert [trial.number for trial in tuned.trials] == list(range(TRIALS + 1))
    default = tuned.trials[0]
    assert (default.values["samples_min"], default.values["confidence"]) == (2.0, 1.2)
    costs = [trial.cost for trial in tuned.trials if trial.cost is not None]
    assert tuned.best.cost == min(costs) < max(costs)
    assert tuned.finished
    assert tuned.best.gain == pytest.approx(
        math.exp(sum(math.log(row.gain(row.tuned_s)) for row in tuned.rows) / len(tuned.rows))
    )
    assert default.worst == pytest.approx(min(row.gain(row.default_s) for row in tuned.rows))


def test_tune_defaults_outside_ranges_never_best(search: Search) -> None:
    """Requiring more samples promotes pages later: the least value is best."""
    tuned = search(knobs=("samples_min=20:400",))
    tried = sorted(float(str(trial.values["samples_min"])) for trial in tuned.trials[1:])
    best = float(str(tuned.best.values["samples_min"]))
    assert 20 <= best <= tried[TRIALS // 3]
    assert tuned.trials[0].values["samples_min"] == 2.0
    assert tuned.trials[0].gain > tuned.best.gain


def test_tune_losing_trials_pruned(search: Search) -> None:
    tuned = search(knobs=("samples_min=1:1000",))
    pruned = [trial for trial in tuned.trials if trial.cost is None]
    assert pruned
    for trial in pruned:
        # It was behind on the shorter program, and the longer one was not run.
        assert len(trial.logs) == 1
        assert trial.gain < 1.01 * math.exp(-tuned.best.logs[0])
    assert tuned.best not in pruned


def test_tune_equal_seeds_equal_searches(search: Search) -> None:
    first, again, other = search(), search(jobs=2, journal=Journal()), search(seed=2)
    assert first.trials == again.trials
    assert [row.fresh_s for row in first.rows] == [row.fresh_s for row in again.rows]
    assert first.trials[0] == other.trials[0]
    assert first.trials[1:] != other.trials[1:]


def test_tune_held_out_programs_run_but_not_searched(
    search: Search, held_out: list[SimulationCase]
) -> None:
    alone, tuned = search(), search(held_out=held_out)
    assert tuned.trials == alone.trials
    assert [row.case.trace for row in tuned.rows] == ["moving", "still"]
    assert [row.case.trace for row in tuned.held_out] == ["other"]
    for row in (*tuned.rows, *tuned.held_out):
        assert row.fresh_s is not None
        # Other samples give other moves, and so another time, but not by much.
        assert row.fresh_s[0] != row.default_s
        assert row.fresh_s == pytest.approx((row.default_s, row.tuned_s), rel=0.1)
        assert row.fixed["all fast"] < row.tuned_s < row.fixed["all slow"]


def test_tune_interrupted_search_returns_trials_so_far(search: Search) -> None:
    def begins(number: int, best: TuningTrial) -> None:
        if number == 4:
            raise KeyboardInterrupt

    whole, broken = search(), search(watch=TuningProgress(begins=begins))
    assert not broken.finished
    assert broken.trials == whole.trials[:4]
    assert [row.fresh_s for row in broken.rows] == [None, None]
    assert broken.held_out == ()


def test_tune_progress_reports_each_better_trial(search: Search) -> None:
    better: list[TuningTrial] = []
    tuned = search(knobs=("samples_min=20:400",), watch=TuningProgress(better=better.append))
    costs = [trial.cost for trial in better]
    assert costs == sorted(costs, key=lambda cost: -(cost or 0.0))
    assert better[-1] == tuned.best


def test_journal_stored_results_not_simulated_again(search: Search, tmp_path: Path) -> None:
    file = tmp_path / "journal"
    first: list[str] = []
    tuned = search(journal=Journal(file), said=first)
    again: list[str] = []
    assert search(journal=Journal(file), said=again).trials == tuned.trials
    assert len(first) > TRIALS
    assert again == []
    # The last line was cut off by a kill: its simulation is run again, and no other.
    file.write_bytes(file.read_bytes()[:-3])
    assert search(journal=Journal(file), said=again).rows == tuned.rows
    assert len(again) == 1
    search(journal=Journal(file), said=again)
    assert len(again) == 1


def test_cost_uneven_gains_cost_more_than_even() -> None:
    even, uneven = [math.log(1 / 1.05)] * 2, [math.log(1 / 1.2), math.log(1 / 0.95)]
    assert sum(uneven) < sum(even)
    assert cost_of(even) < cost_of(uneven)
    at_limit = [math.log(1 / 1.2), math.log(1 / WORST)]
    assert cost_of(at_limit) == pytest.approx(sum(at_limit) / 2)
