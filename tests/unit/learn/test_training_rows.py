# SPDX-License-Identifier: MIT
"""Training rows of a simulated program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmd.emulate.preset import load
from hmd.learn.rows import RowRequest, TrainingRows, collect_rows
from hmd.learn.training import make_policy
from hmd.policy.learned.network import FEATURES
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

SETTINGS = SimulationSettings(tick_s=0.001, delay_s=0.0002, sampling=PmuSettings(29))


def collected(seed: int = 1, horizon_ticks: int = 3) -> TrainingRows:
    stream = stream_of(hot_set(60_000, PAGES - HOT_PAGES, 1))
    request = RowRequest(7, horizon_ticks, seed)
    policy = make_policy("none")
    return collect_rows(stream, load("dram-pm"), PAGES // 4, policy, SETTINGS, request)


def test_collect_hot_pages_have_hot_futures() -> None:
    rows = collected()
    assert rows.features.shape == (len(rows), len(FEATURES))
    assert set(rows.program.tolist()) == {7}
    hottest = np.argsort(rows.base)[-len(rows) // 20 :]
    coldest = np.argsort(rows.base)[: len(rows) // 2]
    assert rows.future[hottest].mean() > 4 * rows.future[coldest].mean()
    # Nearly all misses wait, so that the mean page's future is its mean rate.
    assert rows.future.mean() == pytest.approx(1.0, rel=0.25)


def test_collect_equal_seeds_equal_rows() -> None:
    first, second, other = collected(), collected(), collected(seed=2)
    assert np.array_equal(first.features, second.features)
    assert np.array_equal(first.future, second.future)
    assert not np.array_equal(first.future, other.future)


def test_collect_horizon_beyond_the_program_gives_no_rows() -> None:
    rows = collected(horizon_ticks=4000)
    assert len(rows) == 0
    assert rows.features.shape == (0, len(FEATURES))


def test_rows_written_and_read_are_equal(tmp_path: Path) -> None:
    rows = collected()
    rows.write(tmp_path / "rows.npz")
    again = TrainingRows.read(tmp_path / "rows.npz")
    assert np.array_equal(again.features, rows.features)
    assert np.array_equal(again.program, rows.program)
