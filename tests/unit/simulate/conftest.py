# SPDX-License-Identifier: MIT
"""A recorded miss stream of a program with a known hot set, on a machine with two tiers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings.misses import MissStream

PAGES = 1536
HOT_PAGES = 192
BASE = 0x7F00_0000_0000
APART = 100
"""Instructions from one miss to the next."""


def stream_of(page: npt.NDArray[np.int64], pages: int = PAGES) -> MissStream:
    """Dependent load misses on these pages, one after another; first each page is touched once."""
    touched = np.concatenate([np.arange(pages), page]).astype(np.uint32)
    count = len(touched)
    return MissStream(
        instructions=np.arange(count, dtype=np.uint64) * np.uint64(APART),
        paid_hits=np.zeros(count, np.uint32),
        near_hits=np.zeros(count, np.uint32),
        page=touched,
        line=(np.arange(count) * 7 % 64).astype(np.uint8),
        flags=np.zeros(count, np.uint8),
        depends=np.ones(count, np.uint16),
        page_address=np.uint64(BASE) + np.arange(pages, dtype=np.uint64) * np.uint64(4096),
        user_pages=pages,
    )


def hot_set(misses: int, first: int, seed: int) -> npt.NDArray[np.int64]:
    """Pages of misses, nine in ten within a hot set that begins at a page."""
    rng = np.random.default_rng(seed)
    hot = first + rng.integers(0, HOT_PAGES, misses)
    return np.where(rng.random(misses) < 0.9, hot, rng.integers(0, PAGES, misses))


@pytest.fixture(scope="session")
def preset() -> Preset:
    return load("dram-pm")


@pytest.fixture(scope="session")
def settled() -> MissStream:
    """The hot set is at the end of memory, where first touch leaves it on the slow node."""
    return stream_of(hot_set(400_000, PAGES - HOT_PAGES, 1))


@pytest.fixture(scope="session")
def moving() -> MissStream:
    """The hot set moves once, half-way."""
    halves = [hot_set(250_000, PAGES - HOT_PAGES, 1), hot_set(250_000, PAGES // 2, 2)]
    return stream_of(np.concatenate(halves))
