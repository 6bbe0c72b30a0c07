"""The kernels of the learned policy's features, against their formulas in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.decide.feature_kernel import (
    FEATURES,
    GAP,
    KEPT,
    KEPT_LONG,
    KEPT_PHASE,
    KEPT_SHORT,
    NEAR_SUMS,
    SQUARES,
    SUMS,
    RowColumns,
    Surroundings,
    fill_features,
    sum_rows,
)

ROWS, PROCESSES, VICINITIES, PHASE = 301, 3, 7, 2
Floats = npt.NDArray[np.float32]


def drawn_rows(random: np.random.Generator) -> RowColumns:
    rate = random.gamma(0.5, 100, ROWS).astype(np.float32)
    return RowColumns(
        random.permutation(ROWS),
        random.integers(0, PROCESSES, ROWS).astype(np.int32),
        random.integers(0, VICINITIES, ROWS),
        random.integers(-1, 2, ROWS),
        random.choice([0, 1, 512], ROWS).astype(np.uint16),
        random.integers(0, 256, ROWS).astype(np.uint8),
        rate,
        random.gamma(1, 5, ROWS).astype(np.float32),
        random.poisson(0.5, ROWS).astype(np.float32),
        random.integers(0, 100, ROWS).astype(np.int32),
    )


def drawn_kept(random: np.random.Generator) -> Floats:
    return random.gamma(0.5, 2, (ROWS, KEPT)).astype(np.float32)


def shared(sums: npt.NDArray[np.float64], near: npt.NDArray[np.float64]) -> Surroundings:
    mean = (sums[:, :5] / sums[:, 5:6]).astype(np.float32)
    return Surroundings(
        mean,
        np.float32(1) / mean,
        np.arange(3.0 * PROCESSES).reshape(PROCESSES, 3),
        near[:, 0] / near[:, 2],
        near[:, 1] / near[:, 2],
        np.array([0.5, 1.5]),
        np.array([0.0, 0.25]),
        np.array([3.0, 0.5, 0.1]),
    )


def summed(rows: RowColumns, kept: Floats) -> tuple[npt.NDArray[np.float64], ...]:
    sums, near = np.zeros((PROCESSES, SUMS)), np.zeros((VICINITIES, NEAR_SUMS))
    sum_rows(kept, PHASE, rows, sums, near)
    return sums, near


def test_sum_rows_by_process_and_vicinity_equal_bincounts() -> None:
    random = np.random.default_rng(1)
    rows, kept = drawn_rows(random), drawn_kept(random)
    own = kept[rows.number]
    served = rows.rate * rows.size
    sums, near = summed(rows, kept)
    columns = (
        served, rows.samples, own[:, KEPT_SHORT], own[:, KEPT_LONG], own[:, KEPT_PHASE + PHASE],
        rows.size, served * (rows.tier == 0),
    )  # fmt: skip
    for at, column in enumerate(columns):
        assert np.allclose(sums[:, at], np.bincount(rows.process, column, PROCESSES), rtol=1e-6)
    for at, column in enumerate((served, rows.samples, rows.size)):
        assert np.allclose(near[:, at], np.bincount(rows.vicinity, column, VICINITIES), rtol=1e-6)


def test_fill_features_each_column_follows_its_formula() -> None:
    random = np.random.default_rng(2)
    rows, kept = drawn_rows(random), drawn_kept(random)
    around = shared(*summed(rows, kept))
    own, mean = kept[rows.number].astype(np.float64), around.mean[rows.process].astype(np.float64)
    size = np.maximum(rows.size.astype(np.float64), 1)
    short, long, gap = own[:, KEPT_SHORT], own[:, KEPT_LONG], own[:, GAP]

    def over(x: npt.NDArray[Any], of: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.log2(x / of + 0.1)

    spread = np.maximum(own[:, SQUARES] - long**2, 0)
    tier = np.maximum(rows.tier, 0)
    expected = {
        "rate": over(rows.rate, mean[:, 0]),
        "samples_1": over(rows.samples / size, mean[:, 1]),
        "samples_4": over(short / size, mean[:, 2]),
        "samples_16": over(long / size, mean[:, 3]),
        "trend": np.log2((short + 0.05) / (long + 0.05)),
        "support": np.log2(1 + rows.support),
        "idle": np.log2(1 + rows.idle),
        "gap": np.log2(1 + gap),
        "overdue": np.log2((1 + rows.idle) / (1 + gap)),
        "burst": np.log2((spread + 0.05) / (long + 0.05)),
        "vicinity_rate": over(around.vicinity_rate[rows.vicinity], mean[:, 0]),
        "vicinity_samples": over(around.vicinity_samples[rows.vicinity], mean[:, 1]),
        "phase_samples": over(own[:, KEPT_PHASE + PHASE] / size, mean[:, 4]),
        "wear": rows.wear / 64,
        "size": np.log2(size),
        "slow": rows.tier > 0,
        "latency": around.latency[tier],
        "load": around.load[tier],
        "process_rate": around.common[rows.process, 0],
        "rate_change": around.common[rows.process, 1],
        "fast_change": around.common[rows.process, 2],
        "phase_ticks": np.full(ROWS, 3.0),
        "phase_similarity": np.full(ROWS, 0.5),
        "fast_free": np.full(ROWS, 0.1),
    }
    assert tuple(expected) == FEATURES
    columns = np.empty((len(FEATURES), ROWS), np.float32)
    fill_features(kept, PHASE, rows, around, 0, columns)
    for at, (name, column) in enumerate(expected.items()):
        assert np.allclose(columns[at], column, rtol=1e-5, atol=4e-4), name


def test_fill_features_in_parts_equal_whole() -> None:
    random = np.random.default_rng(3)
    rows, kept = drawn_rows(random), drawn_kept(random)
    around = shared(*summed(rows, kept))
    whole = np.empty((len(FEATURES), ROWS), np.float32)
    fill_features(kept, PHASE, rows, around, 0, whole)
    for begin, end in ((0, 100), (100, 101), (101, ROWS)):
        part = np.empty((len(FEATURES), end - begin), np.float32)
        fill_features(kept, PHASE, rows, around, begin, part)
        assert np.array_equal(part, whole[:, begin:end])
