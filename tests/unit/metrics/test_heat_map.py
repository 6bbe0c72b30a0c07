# SPDX-License-Identifier: MIT
"""Grids of heat maps: moments whose bins have other sizes, and bounds on rows."""

import numpy as np
import pytest

from hmd.metrics.heat_map import MAX_BINS, MAX_ROWS, grid_of

CHUNK = 2 << 20


def moment(
    bin_bytes: int, bins: list[int], heat: list[float], fast: list[int]
) -> dict[str, object]:
    pages = [[each, bin_bytes // 4096 - each] for each in fast]
    return {"bin_bytes": bin_bytes, "bin": bins, "heat": heat, "pages": pages}


def test_grid_of_small_then_large_bins_rows_as_large_as_last() -> None:
    small = moment(CHUNK // 2, [20, 21], [4.0, 2.0], [256, 0])
    large = moment(CHUNK, [10, 11], [1.0, 5.0], [512, 128])
    seen = grid_of([(1.0, small), (3.0, large)])
    assert seen.address.tolist() == [10 * CHUNK, 11 * CHUNK]
    assert seen.seconds.tolist() == [0.0, 2.0]
    assert seen.heat[:, 1].tolist() == [1.0, 5.0]
    assert seen.heat[0, 0] == pytest.approx(3.0)
    assert seen.fast[:, 1].tolist() == [1.0, 0.25]
    assert seen.fast[0, 0] == pytest.approx(0.5)
    assert np.isnan(seen.heat[1, 0])


def test_grid_of_large_then_small_bins_large_ones_divided() -> None:
    large = moment(CHUNK, [10], [3.0], [128])
    small = moment(CHUNK // 2, [20], [7.0], [256])
    seen = grid_of([(0.0, large), (1.0, small)])
    assert seen.address.tolist() == [10 * CHUNK, 10 * CHUNK + CHUNK // 2]
    assert seen.heat[:, 0].tolist() == [3.0, 3.0]
    assert seen.fast[:, 0].tolist() == [0.25, 0.25]
    assert seen.heat[0, 1] == 7.0


def test_grid_of_single_pages_after_chunks_rows_bounded() -> None:
    large = moment(CHUNK, list(range(MAX_BINS)), [1.0] * MAX_BINS, [0] * MAX_BINS)
    small = moment(4096, [5], [9.0], [1])
    seen = grid_of([(0.0, large), (1.0, small)])
    assert len(seen.address) <= MAX_ROWS
    assert np.nanmax(seen.heat[:, 1]) == 9.0
