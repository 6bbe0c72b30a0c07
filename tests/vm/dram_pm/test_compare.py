# SPDX-License-Identifier: MIT
"""A small part of `make bench-policies`: one program, one ratio, some of the systems.

The benchmark measures speed; these tests hold on any host: every case completes,
systems with tiering move pages, and the figures are those of the model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compare.campaign import CampaignResults, run_cases
from bench.compare.comparison_case import ComparisonCase, ComparisonTrial, results, rows
from bench.compare.systems import HMD_DEFAULT
from bench.compare.tables import MODELLED, Figures, seconds
from bench.compare.testbed import DILATION

PROGRAM, RATIO = "cg", "1:2"
FEW_BYTES = 4 << 20
"""Upper bound of moves without tiering (the kernel compacts its memory)."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def _case(system: str) -> ComparisonCase:
    whole = system == "all-fast"
    # DAMON takes longer to know a program's memory than cg lasts.
    program = "compress" if system == "damon" else PROGRAM
    return ComparisonCase(program, "whole" if whole else RATIO, system)


SYSTEMS = ("all-fast", "first-touch", "kernel-tiering", "damon", HMD_DEFAULT)
CASES = [_case(system) for system in SYSTEMS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> CampaignResults:
    return run_cases(CASES, folder / "inputs", folder, lambda line: None, most_runs=1)


@pytest.fixture(scope="module")
def trials(outcomes: CampaignResults) -> dict[str, ComparisonTrial]:
    assert not outcomes.failed
    return {case.system: trial for case, trial in outcomes.trials.items()}


def test_first_touch_less_fast_memory_slower_than_all_fast(
    trials: dict[str, ComparisonTrial],
) -> None:
    fast, touch = trials["all-fast"], trials["first-touch"]
    assert fast.fast_share > 0.99
    assert touch.modelled_seconds > 1.5 * fast.modelled_seconds
    assert touch.fast_bytes < fast.fast_bytes


@pytest.mark.parametrize("system", ["all-fast", "first-touch"])
def test_system_without_tiering_moves_few_bytes(
    trials: dict[str, ComparisonTrial], system: str
) -> None:
    assert trials[system].migrated_bytes < FEW_BYTES
    assert trials[system].demoted_bytes == 0


@pytest.mark.parametrize("system", ["kernel-tiering", "damon", HMD_DEFAULT])
def test_system_with_tiering_moves_pages(trials: dict[str, ComparisonTrial], system: str) -> None:
    assert trials[system].migrated_bytes > FEW_BYTES


def test_hmd_fast_share_and_time_better_than_first_touch(
    trials: dict[str, ComparisonTrial],
) -> None:
    ours, touch = trials[HMD_DEFAULT], trials["first-touch"]
    assert ours.fast_share > 1.2 * touch.fast_share
    assert ours.modelled_seconds < touch.modelled_seconds


def test_trial_guest_time_exceeds_dilated_modelled_time(trials: dict[str, ComparisonTrial]) -> None:
    for trial in trials.values():
        assert trial.guest_seconds > 0.95 * DILATION * trial.modelled_seconds


def test_figures_from_trials_computed(outcomes: CampaignResults) -> None:
    assert len(rows(outcomes.results)) == len(CASES)
    figures = Figures.of(seconds(outcomes.trials, MODELLED), HMD_DEFAULT)
    assert figures.worst_vs_first_touch is not None
    assert figures.geomean_vs_best_peer is not None
    assert figures.geomean_vs_best_peer <= figures.worst_vs_first_touch


def test_run_cases_all_results_present_runs_nothing(
    outcomes: CampaignResults, folder: Path
) -> None:
    said: list[str] = []
    again = run_cases(CASES, folder / "inputs", folder, said.append, most_runs=1)
    assert said == []
    assert again.trials == outcomes.trials


def test_run_cases_known_results_given_runs_nothing(
    outcomes: CampaignResults, folder: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    known = results(rows(outcomes.results)).values()
    again = run_cases(CASES, folder / "inputs", tmp_path, said.append, known=known, most_runs=1)
    assert said == []
    assert again.results == outcomes.results


def test_run_cases_fresh_case_result_dropped(outcomes: CampaignResults, folder: Path) -> None:
    kept = {path: path.read_bytes() for path in (folder / "cases").iterdir()}
    forgotten = CASES[:1]
    run_cases(forgotten, folder / "inputs", folder, lambda line: None, fresh=True, run=False)
    left = run_cases(CASES, folder / "inputs", folder, lambda line: None, run=False)
    assert left.trials.keys() == outcomes.trials.keys() - set(forgotten)
    for path, text in kept.items():
        path.write_bytes(text)
