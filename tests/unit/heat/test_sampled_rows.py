# SPDX-License-Identifier: MIT
"""The weight of a tick's samples at rows that are asked for, against a count of all samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.view import AskedRows, weigh_rows

PROCESSES, CHUNKS, SAMPLES = 3, 5, 20_000
BASE = 1 << 47


def weighed(
    process: npt.NDArray[np.int32],
    address: npt.NDArray[np.uint64],
    weight: npt.NDArray[np.float32],
    rows: AskedRows,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    total, had = np.zeros(PROCESSES), np.full(len(rows.process), np.nan)
    weigh_rows(process, address, weight, rows, total, had)
    return total, had


def test_weight_of_rows_is_that_of_their_samples_and_no_others() -> None:
    random = np.random.default_rng(1)
    process = random.integers(-1, PROCESSES + 1, SAMPLES).astype(np.int32)
    page = random.integers(0, CHUNKS * CHUNK_PAGES, SAMPLES)
    address = np.uint64(BASE) + page.astype(np.uint64) * np.uint64(PAGE_BYTES) + np.uint64(17)
    weight = random.integers(1, 9, SAMPLES).astype(np.float32)
    # Half of the rows are chunks; some are asked for twice, some not at all.
    slots = random.integers(-1, PROCESSES, 3000).astype(np.int32)
    whole = random.random(3000) < 0.5
    asked = random.integers(0, CHUNKS * CHUNK_PAGES, 3000)
    start = np.uint64(BASE) + asked.astype(np.uint64) * np.uint64(PAGE_BYTES)
    total, had = weighed(process, address, weight, AskedRows(slots, start, whole))
    inside = (process >= 0) & (process < PROCESSES)
    assert total.tolist() == np.bincount(process[inside], weight[inside]).tolist()
    place = np.maximum(process, 0) * CHUNKS * CHUNK_PAGES + page
    pages = np.bincount(place[inside], weight[inside], PROCESSES * CHUNKS * CHUNK_PAGES)
    chunks = pages.reshape(-1, CHUNK_PAGES).sum(axis=1)
    row = np.maximum(slots, 0) * CHUNKS * CHUNK_PAGES + asked
    expected = np.where(whole, chunks[row // CHUNK_PAGES], pages[row])
    assert had.tolist() == np.where(slots >= 0, expected, 0).tolist()
    assert had.sum() > 0


def test_samples_beyond_user_addresses_count_for_their_process_alone() -> None:
    address = np.array([0, 1 << 56, CHUNK_BYTES], np.uint64)
    rows = AskedRows(np.zeros(1, np.int32), np.zeros(1, np.uint64), np.ones(1, np.bool_))
    total, had = weighed(np.zeros(3, np.int32), address, np.ones(3, np.float32), rows)
    assert total.tolist() == [3, 0, 0]
    assert had.tolist() == [1]
