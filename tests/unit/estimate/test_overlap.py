# SPDX-License-Identifier: MIT
"""Overlap of misses: from pairs, from times, and on a simulated core."""

import numpy as np
import pytest

from hmd.estimate.overlap import (
    CHANCES,
    IN_FLIGHT,
    Pairs,
    fit_neighbours,
    fit_overlap,
    fit_overlap_to_times,
    simulate_core,
)
from hmd.estimate.runs import least_latency
from hmd.estimate.windows import Parts, RunThreads, Windows
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.trace.trace import Trace


def pairs_of(parts: list[int]) -> Pairs:
    """Pairs of these parts."""
    part = np.array(parts, np.int32)
    return Pairs(part, part, part)


def test_neighbours_per_part_equal_hand_computation() -> None:
    # Members of pairs: 40 of 1000 samples, then 80 of 1000; each sample stands for 100 misses.
    found = fit_neighbours(pairs_of([0] * 20_000 + [1] * 40_000), np.full(2, 1e6), period=100)
    assert found == pytest.approx([4.0, 8.0], rel=0.02)


def test_neighbours_few_samples_overall_rate() -> None:
    sampled = np.array([1e6, 1.0])
    found = fit_neighbours(pairs_of([0] * 50_000), sampled, period=30)
    assert found[1] == pytest.approx(30 * 0.1, rel=0.02)
    assert not fit_neighbours(pairs_of([]), sampled, 30).any()


@pytest.mark.parametrize("waits", [0.05, 0.15, 0.3, 0.4, 0.8])
def test_overlap_fitted_to_measured_waits(waits: float) -> None:
    near = 7 / 3  # with which three of ten misses begin a wait
    found = fit_overlap(np.array([near]), np.array([waits]))
    assert found.waits_of_a_miss() == pytest.approx([waits], rel=1e-9)
    # More waits than promised: some misses are alone. Fewer: all overlap with more.
    assert (found.alone[0] > 0.01) == (waits > 0.3)
    if waits >= 0.3:
        # Those that are not alone have all neighbours that there are.
        assert found.overlapping[0] * (1 - found.alone[0]) == pytest.approx(near)


def test_overlap_out_of_bounds_stays_finite() -> None:
    found = fit_overlap(np.array([0.0, 2.0, 2.0, 0.0]), np.array([0.5, 0.0, 1.0, 1.0]))
    assert found.overlapping.tolist() == [0.0, 72.0, 0.0, 0.0]
    assert found.alone == pytest.approx([0.0, 0.0, 0.9, 0.0])


def test_overlap_fitted_to_times_without_pairs() -> None:
    assert fit_overlap_to_times(np.array([0.25])).overlapping.tolist() == [3.0]


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
