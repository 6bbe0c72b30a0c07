# SPDX-License-Identifier: MIT
"""The figures of a comparison, from cases with simple expected values."""

from __future__ import annotations

import pytest

from bench.compare.comparison_case import ComparisonCase, ComparisonTrial
from bench.compare.tables import (
    GUEST,
    MODELLED,
    Figures,
    by_class,
    by_ratio,
    geomean,
    moved_over_kernel,
    over_oracle,
    seconds,
)

OURS = "hmd:benefit"
MIB = 1 << 20


def trial(modelled_s: float, moved_mib: int = 0) -> ComparisonTrial:
    return ComparisonTrial(modelled_s, 60 * modelled_s, moved_mib * MIB, 0, 0.5, 8 * MIB, 0)


@pytest.fixture
def trials() -> dict[ComparisonCase, ComparisonTrial]:
    texts = {
        "drift:whole:all-fast": trial(1.0),
        "drift:1:2:first-touch": trial(2.0),
        "drift:1:2:kernel-tiering": trial(1.8, 40),
        "drift:1:2:damon": trial(3.0, 500),
        f"drift:1:2:{OURS}": trial(1.2, 10),
        "sat:whole:all-fast": trial(1.0),
        "sat:1:8:first-touch": trial(1.5),
        "sat:1:8:kernel-tiering": trial(1.6, 20),
        f"sat:1:8:{OURS}": trial(1.8, 20),
    }
    return {ComparisonCase.parse(text): found for text, found in texts.items()}


def test_figures_best_peer_chosen_per_case(
    trials: dict[ComparisonCase, ComparisonTrial],
) -> None:
    found = Figures.of(seconds(trials, MODELLED), OURS)
    assert found.geomean_vs_best_peer == pytest.approx((1.8 / 1.2 * 1.5 / 1.8) ** 0.5)
    assert found.geomean_vs_kernel == pytest.approx((1.8 / 1.2 * 1.6 / 1.8) ** 0.5)
    assert found.geomean_vs_first_touch == pytest.approx((2.0 / 1.2 * 1.5 / 1.8) ** 0.5)
    assert found.worst_vs_first_touch == pytest.approx(1.5 / 1.8)
    assert found.geomean_vs_all_fast == pytest.approx((1 / 1.2 / 1.8) ** 0.5)


def test_seconds_both_clocks_read(trials: dict[ComparisonCase, ComparisonTrial]) -> None:
    modelled, guest = seconds(trials, MODELLED), seconds(trials, GUEST)
    assert guest == pytest.approx({case: 60 * took for case, took in modelled.items()})


def test_figures_missing_case_left_out(trials: dict[ComparisonCase, ComparisonTrial]) -> None:
    del trials[ComparisonCase.parse("sat:1:8:first-touch")]
    found = Figures.of(seconds(trials, MODELLED), OURS)
    assert found.worst_vs_first_touch == pytest.approx(2.0 / 1.2)
    assert found.geomean_vs_best_peer == pytest.approx((1.8 / 1.2 * 1.6 / 1.8) ** 0.5)
    assert Figures.of(seconds(trials, MODELLED), "hmd:age").geomean_vs_best_peer is None


def test_by_class_splits_cases_by_program(trials: dict[ComparisonCase, ComparisonTrial]) -> None:
    classes = {"drift": "moving hot set", "sat": "no contrast", "cg": "streaming"}
    found = by_class(seconds(trials, MODELLED), classes)
    assert {name: {c.program for c in cases} for name, cases in found.items()} == {
        "moving hot set": {"drift"},
        "no contrast": {"sat"},
    }
    assert Figures.of(found["no contrast"], OURS).geomean_vs_best_peer == pytest.approx(1.5 / 1.8)


def test_over_oracle_matched_by_program_and_ratio(
    trials: dict[ComparisonCase, ComparisonTrial],
) -> None:
    oracle = {
        ComparisonCase("drift", "1:2", "oracle"): 1.5,
        ComparisonCase("drift", "1:8", "oracle"): 9.0,
    }
    found = over_oracle(seconds(trials, MODELLED), OURS, oracle)
    assert found == {ComparisonCase("drift", "1:2", OURS): pytest.approx(1.25)}


def test_moved_over_kernel_is_ratio_of_rates(trials: dict[ComparisonCase, ComparisonTrial]) -> None:
    assert moved_over_kernel(trials, OURS) == pytest.approx((30 / 3.0) / (60 / 3.4))
    assert moved_over_kernel({}, OURS) is None


def test_geomean_of_ratios_and_none_for_empty() -> None:
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert geomean([]) is None


def test_by_ratio_has_whole_nodes_with_each_ratio(
    trials: dict[ComparisonCase, ComparisonTrial],
) -> None:
    found = by_ratio(seconds(trials, MODELLED))
    assert list(found) == ["1:2", "1:8"]
    assert Figures.of(found["1:2"], OURS).geomean_vs_best_peer == pytest.approx(1.8 / 1.2)
    assert Figures.of(found["1:8"], OURS).geomean_vs_all_fast == pytest.approx(1 / 1.8)
