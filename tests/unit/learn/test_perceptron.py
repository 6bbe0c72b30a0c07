# SPDX-License-Identifier: MIT
"""The network of the learned policy, fitted to rows with a known rule."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.learn.rows import TrainingRows
from hmd.learn.training import FittedNetwork, fit_network

ROWS = 40_000


def rows_of(seed: int, programs: int = 1) -> TrainingRows:
    """Rows whose future is Poisson, of mean base times two to half of the first feature."""
    random = np.random.default_rng(seed)
    features = random.normal(0, 1, (ROWS, 3)).astype(np.float32)
    base = random.uniform(0.5, 2, ROWS).astype(np.float32)
    future = random.poisson(base * np.exp2(features[:, 0] / 2)).astype(np.float32)
    return TrainingRows(features, base, future, random.integers(0, programs, ROWS, np.int32))


def predicted(network: FittedNetwork, rows: TrainingRows) -> np.ndarray:
    values = (rows.features - network.mean) / network.scale
    for number, (matrix, bias) in enumerate(network.layers):
        values = values @ matrix.T + bias
        if number < len(network.layers) - 1:
            values = np.maximum(values, 0)
    return values[:, 0]


def test_fit_known_rule_found() -> None:
    test = rows_of(2)
    network = fit_network(rows_of(1), test, (16,), epochs=8, seed=1)
    usual = np.abs(test.features[:, 0]) < 2
    error = np.abs(predicted(network, test) - test.features[:, 0] / 2)[usual]
    assert error.mean() < 0.1
    assert network.epochs[-1].held_out < network.epochs[0].held_out


def test_fit_mean_of_bursty_rows_predicted() -> None:
    rows = rows_of(1)
    random = np.random.default_rng(5)
    bursty = np.where(random.random(ROWS) < 0.05, 20.0, 0.0).astype(np.float32)
    ones = np.ones(ROWS, np.float32)
    rows = TrainingRows(rows.features, ones, bursty, rows.program)
    network = fit_network(rows, rows, (8,), epochs=4, seed=1)
    assert np.exp2(predicted(network, rows)).mean() == pytest.approx(1.0, rel=0.1)


def test_fit_held_out_of_another_rule_stops_early() -> None:
    rows, test = rows_of(1), rows_of(2)
    opposite = TrainingRows(-test.features, test.base, test.future, test.program)
    network = fit_network(rows, opposite, (16,), epochs=6, seed=1)
    losses = [epoch.held_out for epoch in network.epochs]
    assert losses[0] == min(losses) < losses[-1]
    rate = opposite.base * np.exp2(predicted(network, opposite))
    kept = (rate - opposite.future * np.log(rate)).mean()
    assert kept == pytest.approx(losses[0], rel=1e-3)


def test_fit_large_program_weighs_as_small_one() -> None:
    random = np.random.default_rng(3)
    program = (np.arange(ROWS) < ROWS // 20).astype(np.int32)
    future = np.where(program == 1, 4.0, 1.0).astype(np.float32)
    nothing = np.zeros((ROWS, 2), np.float32)
    order = random.permutation(ROWS)
    rows = TrainingRows(nothing, np.ones(ROWS, np.float32), future, program).take(order)
    network = fit_network(rows, rows, (4,), epochs=30, seed=1)
    assert np.exp2(predicted(network, rows)).mean() == pytest.approx(2.5, rel=0.15)
