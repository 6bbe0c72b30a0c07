# SPDX-License-Identifier: MIT
"""The kernels of the learned policy's features, against their formulas in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.policy.learned.features import (
    AREAS,
    BLOCKS,
    FEATURES,
    GAP,
    KEPT,
    KEPT_LONG,
    KEPT_SHORT,
    LONG,
    PARTS,
    SIZE,
    SUMS,
    RowColumns,
    Surroundings,
    fill_features,
    number_parts,
    sum_rows,
)

ROWS, PROCESSES = 301, 3
Floats = npt.NDArray[np.float32]


def drawn_rows(random: np.random.Generator) -> RowColumns:
    return RowColumns(
        random.permutation(ROWS),
        random.integers(0, PROCESSES, ROWS).astype(np.int32),
        random.integers(0, BLOCKS, ROWS).astype(np.int32),
        random.integers(0, AREAS, ROWS).astype(np.int32),
        random.integers(-1, 2, ROWS).astype(np.int8),
        random.choice([0, 1, 512], ROWS).astype(np.uint16),
        random.integers(0, 256, ROWS).astype(np.uint8),
        random.gamma(0.5, 100, ROWS).astype(np.float32),
        random.gamma(1, 5, ROWS).astype(np.float32),
        random.poisson(0.5, ROWS).astype(np.float32),
        random.integers(0, 100, ROWS).astype(np.int32),
    )


def drawn_kept(random: np.random.Generator) -> Floats:
    return random.gamma(0.5, 2, (ROWS, KEPT)).astype(np.float32)


def shared(random: np.random.Generator, sums: npt.NDArray[np.float64]) -> Surroundings:
    mean = (sums[:, :SIZE] / sums[:, SIZE:]).astype(np.float32)
    return Surroundings(
        mean,
        np.float32(1) / mean,
        random.normal(0, 1, (PARTS, 3)).astype(np.float32),
        np.array([0.5, 3.0, -2.0], np.float32),
        np.arange(PROCESSES, dtype=np.float32),
    )


def summed(rows: RowColumns, kept: Floats) -> tuple[npt.NDArray[np.float64], ...]:
    sums, parts = np.zeros((PROCESSES, SUMS)), np.zeros((PARTS, 2))
    sum_rows(kept, rows, sums, parts)
    return sums, parts


def test_sum_rows_by_process_and_part_equal_bincounts() -> None:
    random = np.random.default_rng(1)
    rows, kept = drawn_rows(random), drawn_kept(random)
    own = kept[rows.number]
    sums, parts = summed(rows, kept)
    columns = (
        rows.rate * rows.size, rows.samples, own[:, KEPT_SHORT], own[:, KEPT_LONG], rows.size,
    )  # fmt: skip
    for at, column in enumerate(columns):
        assert np.allclose(sums[:, at], np.bincount(rows.process, column, PROCESSES), rtol=1e-6)
    for at, each in enumerate((rows.samples, rows.size.astype(np.float32))):
        assert np.allclose(parts[:BLOCKS, at], np.bincount(rows.block, each, BLOCKS))
        assert np.allclose(parts[BLOCKS:, at], np.bincount(rows.area, each, AREAS))


def test_number_parts_pages_of_a_block_alike_and_processes_apart() -> None:
    address = np.arange(4096, dtype=np.uint64) << np.uint64(12)
    found = []
    for pid in (1000, 1001):
        block, area = np.empty(4096, np.int32), np.empty(4096, np.int32)
        own, process = np.array([pid], np.uint64), np.zeros(4096, np.int32)
        number_parts(address, process, own, 16, block, area)
        assert (block.reshape(-1, 16) == block[::16, None]).all()
        assert (area.reshape(-1, 128) == area[::128, None]).all()
        assert block.min() >= 0
        assert block.max() < BLOCKS
        assert area.min() >= 0
        assert area.max() < AREAS
        assert len(np.unique(block)) > 200
        found.append(block)
    assert (found[0] == found[1]).mean() < 0.05


def test_fill_features_each_column_follows_its_formula() -> None:
    random = np.random.default_rng(2)
    rows, kept = drawn_rows(random), drawn_kept(random)
    around = shared(random, summed(rows, kept)[0])
    own, mean = kept[rows.number].astype(np.float64), around.mean[rows.process].astype(np.float64)
    size = np.maximum(rows.size.astype(np.float64), 1)
    block, area = around.parts[rows.block].T, around.parts[BLOCKS + rows.area].T

    def over(x: npt.NDArray[Any], of: int) -> npt.NDArray[np.float64]:
        return np.log2(x / mean[:, of] + 0.1)

    expected = {
        "rate": over(rows.rate, 0),
        "samples_1": over(rows.samples / size, 1),
        "samples_4": over(own[:, KEPT_SHORT] / size, 2),
        "samples_16": over(own[:, KEPT_LONG] / size, LONG),
        "support": np.log2(1 + rows.support),
        "idle": np.log2(1 + rows.idle),
        "gap": np.log2(1 + own[:, GAP]),
        "block_next": block[0],
        "block_now": block[1],
        "block_past": block[2],
        "area_next": area[0],
        "area_now": area[1],
        "area_past": area[2],
        "wear": rows.wear / 64,
        "slow": rows.tier > 0,
        "similarity": np.full(ROWS, 0.5),
        "ticks": np.full(ROWS, 3.0),
        "density": np.full(ROWS, -2.0),
        "rate_change": around.change[rows.process],
    }
    assert tuple(expected) == FEATURES
    columns = np.empty((len(FEATURES), ROWS), np.float32)
    fill_features(kept, rows, around, 0, columns)
    for at, (name, column) in enumerate(expected.items()):
        assert np.allclose(columns[at], column, rtol=1e-5, atol=4e-4), name


def test_fill_features_in_parts_equal_whole() -> None:
    random = np.random.default_rng(3)
    rows, kept = drawn_rows(random), drawn_kept(random)
    around = shared(random, summed(rows, kept)[0])
    whole = np.empty((len(FEATURES), ROWS), np.float32)
    fill_features(kept, rows, around, 0, whole)
    for begin, end in ((0, 100), (100, 101), (101, ROWS)):
        part = np.empty((len(FEATURES), end - begin), np.float32)
        fill_features(kept, rows, around, begin, part)
        assert np.array_equal(part, whole[:, begin:end])
