# SPDX-License-Identifier: MIT
"""Idle age: for how long no access to a page was sampled."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.chunks import age, idle_ticks, successors
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.sample.access_batch import AccessBatch
from tests.unit.heat.dense import ONE_NODE

OWNER = np.zeros(1, np.int32)
START = np.array([7 * CHUNK_BYTES], np.uint64)


def batch(*pages: int) -> AccessBatch:
    address = START[0] + np.array(pages, np.uint64) * np.uint64(PAGE_BYTES)
    return AccessBatch.of(address)


def table(*, huge: bool = False, resident: int = CHUNK_PAGES) -> HeatTable:
    made = HeatTable()
    made.track_processes([ProcessId(1, 1)])
    made.record_nodes(0, START, nodes(resident), np.array([huge]))
    return made


def nodes(resident: int) -> np.ndarray[tuple[int, int], np.dtype[np.int8]]:
    node = np.zeros((1, CHUNK_PAGES), np.int8)
    node[:, resident:] = ABSENT
    return node


def test_idle_age_counts_from_last_sample() -> None:
    heat = table()
    heat.update(batch(3, 4))
    heat.update(batch(4))
    heat.update(batch())
    idle = heat.view(ONE_NODE)
    assert idle.idle_ticks[3:5].tolist() == [2, 1]
    assert idle.sampled[2:6].tolist() == [False, True, True, False]


def test_idle_age_of_unsampled_page_counts_from_placement() -> None:
    heat = table(resident=256)
    for _ in range(5):
        heat.update(batch(0))
    heat.record_nodes(0, START, nodes(CHUNK_PAGES))
    for _ in range(3):
        heat.update(batch(0))
    ticks = heat.view(ONE_NODE).idle_ticks
    assert ticks[0] == 0
    assert set(ticks[1:256]) == {8}
    assert set(ticks[256:]) == {3}


def test_idle_age_of_page_placed_again_restarts() -> None:
    heat = table()
    heat.update(batch(300))
    heat.record_nodes(0, START, nodes(256))
    heat.record_nodes(0, START, nodes(CHUNK_PAGES))
    heat.update(batch(0))
    assert not heat.view(ONE_NODE).sampled[300]
    assert heat.view(ONE_NODE).idle_ticks[300] == 1


def test_idle_age_of_huge_page_is_of_last_used_part() -> None:
    heat = table(huge=True)
    heat.update(batch(9))
    heat.update(batch(400))
    heat.update(batch())
    idle = heat.view(ONE_NODE)
    assert set(idle.idle_ticks) == {1}
    assert idle.sampled.all()


@pytest.mark.parametrize("first", [0, 1, 77])
def test_idle_age_of_long_times_within_an_eighth(first: int) -> None:
    idle, rested = np.zeros((1, CHUNK_PAGES), np.uint8), np.zeros(1, np.uint8)
    last = 0
    for waited in range(1, 5000):
        age(1, successors(first + waited), OWNER, idle, rested)
        assert rested[0] == idle[0, 0]
        ticks = int(idle_ticks(idle[0, :1])[0])
        assert last <= ticks
        assert waited * 7 / 8 - 1 <= ticks <= waited * 9 / 8 + 1
        last = ticks


def test_idle_age_of_unused_page_stays_at_maximum() -> None:
    idle = np.full((1, CHUNK_PAGES), 0x7F, np.uint8)
    age(1, successors(1 << 20), OWNER, idle, np.zeros(1, np.uint8))
    assert idle_ticks(idle[0, :1])[0] > 1 << 17
