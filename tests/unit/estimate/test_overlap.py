# SPDX-License-Identifier: MIT
"""Overlap of misses: from pairs, from times, and on a simulated core."""

import numpy as np
import pytest

from hmd.estimate.overlap import (
    CHANCES,
    CLASSES,
    IN_FLIGHT,
    Overlap,
    Pairs,
    fit_neighbours,
    fit_overlap_to_times,
    simulate_core,
)
from hmd.estimate.runs import least_latency
from hmd.estimate.threads import Parts, RunThreads
from hmd.estimate.windows import Windows
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.trace.trace import Trace


def pairs_of(rows: list[tuple[int, int, int]]) -> Pairs:
    """Pairs as (window, class, class)."""
    window, a, b = np.array(rows, np.int32).reshape(-1, 3).T.copy()
    return Pairs(a, b, a, b, window)


def by_class(window: list[dict[int, float]]) -> np.ndarray:
    found = np.zeros((len(window), CLASSES))
    for row, of in enumerate(window):
        for number, value in of.items():
            found[row, number] = value
    return found


def test_neighbours_per_window_and_class_equal_hand_computation() -> None:
    # Window 0 samples class 0 alone, window 1 both alike; members: 40 of 1000, then 60 and 20 of
    # 500 each. Were all of K the window's, class 1 would have as many as class 0.
    sampled = by_class([{0: 1e6}, {0: 0.5e6, 1: 0.5e6}])
    rows = [(0, 0, 0)] * 20_000 + [(1, 0, 0)] * 30_000 + [(1, 1, 1)] * 10_000
    found = fit_neighbours(pairs_of(rows), sampled, period=100)
    expected = [40_000 / 1e6, 60_000 / 0.5e6, 20_000 / 0.5e6]
    assert [found[0, 0], found[1, 0], found[1, 1]] == pytest.approx(
        [100 * each for each in expected], rel=0.02
    )


def test_neighbours_few_samples_overall_rate() -> None:
    sampled = by_class([{0: 1e6}, {0: 1.0}])
    found = fit_neighbours(pairs_of([(0, 0, 0)] * 50_000), sampled, period=30)
    assert found[1, 0] == pytest.approx(30 * 0.1, rel=0.02)
    assert not fit_neighbours(pairs_of([]), sampled, 30).any()


def test_overlap_waits_equal_hand_computation() -> None:
    # Of 100 misses 20 are alone, of the rest 60 have 2 others with them and 20 have 4.
    overlap = Overlap(np.array([0.2]), by_class([{0: 2.0, 1: 4.0}]))
    assert overlap.count_waits(by_class([{0: 75.0, 1: 25.0}])) == pytest.approx([20 + 20 + 4])


@pytest.mark.parametrize("waits", [30.0, 15.0, 40.0, 80.0])
def test_overlap_fitted_to_measured_waits(waits: float) -> None:
    misses = by_class([{0: 60.0, 1: 40.0}])
    promised = Overlap(np.zeros(1), by_class([{0: 2.0, 1: 3.0}]))
    assert promised.count_waits(misses) == pytest.approx([30])
    found = promised.fit_to_waits(misses, np.array([waits]))
    assert found.count_waits(misses) == pytest.approx([waits], rel=1e-3)
    # More waits than promised: some misses are alone. Fewer: all overlap with more.
    assert (found.alone[0] > 0.01) == (waits > 30)
    if waits >= 30:
        # Those that are not alone have all neighbours that there are.
        assert found.overlapping[0, 0] * (1 - found.alone[0]) == pytest.approx(2.0, rel=1e-3)


def test_overlap_fitted_to_times_without_pairs() -> None:
    found = fit_overlap_to_times(by_class([{0: 60.0, 1: 40.0}]), np.array([25.0]))
    assert found.overlapping[0, :2].tolist() == [3.0, 3.0]


def test_core_with_enough_buffers_follows_overlap_rule() -> None:
    hidden, bare = simulate_core(300.0, 100.0, 64)
    assert hidden[: len(IN_FLIGHT) - 1] == pytest.approx(1.0, abs=0.02)
    # A chain gains nothing by bursts; of many misses at once a lone slow one costs up to half a
    # fast latency less, which is a quarter of the difference here.
    assert bare[0] == pytest.approx(1.0, abs=0.01)
    lone = bare[IN_FLIGHT == 12.0][0]
    assert lone[1] == pytest.approx(0.75, abs=0.05)
    assert lone[-1] == pytest.approx(1.0)


def test_core_with_full_buffers_takes_mean_latency() -> None:
    # Twelve buffers and 64 misses that could be under way: all slow takes three times all fast,
    # and half of them slow the mean of both.
    hidden, bare = simulate_core(300.0, 100.0, 12)
    chance = (np.arange(CHANCES) / (CHANCES - 1)) ** 2
    rule = chance * 64 / (1 + 63 * chance)
    assert (bare[-1] * rule)[4:] == pytest.approx(chance[4:], abs=0.06)
    assert hidden[IN_FLIGHT <= 12] == pytest.approx(1.0, abs=0.01)
    assert (hidden[-1, 2:-1] < 0.95).all()


def test_least_latency_from_loads_that_do_not_wait() -> None:
    weights = [100] * 30 + [500] * 70 + [300] * 5
    columns = {name: np.zeros(len(weights), dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["time_ns"] = np.array([5] * 100 + [15] * 5, np.uint64)
    columns["latency_ns"] = np.array(weights, np.uint32)
    columns["kind"] = np.full(len(weights), Kind.LOAD, np.uint8)
    trace = Trace({}, (), Samples(**columns))
    parts = Parts(Windows(0, np.array([0.0, 10.0, 20.0])), RunThreads(np.empty(0, np.uint64)))
    # The second window has too few samples of its own.
    assert least_latency(trace, parts, 50.0).tolist() == [100.0, 100.0]
    columns["latency_ns"][:] = 0
    assert not least_latency(trace, parts, 0.0).any()
