# SPDX-License-Identifier: MIT
"""The rows of a table that are to leave where they lie: which ones, and how many at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hmd.heat.settings import CHUNK_BYTES
from hmd.heat.table import HeatTable
from hmd.heat.view import PageView
from tests.unit.heat.test_page_detail import TOPOLOGY
from tests.unit.heat.test_row_selection import random_table

NOBODY = np.zeros(1, np.bool_)
MANY = 1 << 30
BIN = 1.13
"""A bin is an eighth of an octave wide."""


def leaving(heat: HeatTable, node: int, most: int = MANY, *, idle: bool = False) -> PageView:
    leaves = np.array([[node == 0, node == 1]])
    return heat.rows_to_evacuate(TOPOLOGY, NOBODY, leaves, most, longest_idle=idle)


def movable_on(view: PageView, node: int) -> npt.NDArray[np.intp]:
    return np.flatnonzero(view.movable & (view.node == node))


@pytest.mark.parametrize("node", [0, 1])
def test_leaving_rows_of_a_small_table_are_all_rows_of_the_node(node: int) -> None:
    heat = random_table()
    every, view = heat.view(TOPOLOGY), leaving(heat, node)
    assert view.storage_index.tolist() == every.storage_index[movable_on(every, node)].tolist()
    assert view.address.tolist() == every.address[movable_on(every, node)].tolist()


@pytest.mark.parametrize("most", [1, 7, 500, 3000])
def test_leaving_rows_beyond_the_most_are_the_hottest(most: int) -> None:
    heat = random_table()
    every, view = heat.view(TOPOLOGY), leaving(heat, 1, most)
    rate = np.sort(every.rate[movable_on(every, 1)])[::-1]
    assert len(view) == most < len(rate)
    assert len(set(view.storage_index.tolist())) == most
    assert view.rate.min() * BIN >= rate[most - 1]


def test_leaving_rows_by_idle_age_are_the_longest_idle() -> None:
    heat = random_table()
    every = heat.view(TOPOLOGY)
    ticks = np.sort(every.idle_ticks[movable_on(every, 0)])[::-1]
    for most in (5, 600):
        view = leaving(heat, 0, most, idle=True)
        assert sorted(view.idle_ticks.tolist(), reverse=True) == ticks[:most].tolist()


def test_leaving_rows_of_pinned_or_absent_processes_are_none() -> None:
    heat = random_table()
    none = np.zeros((1, 2), np.bool_)
    assert len(heat.rows_to_evacuate(TOPOLOGY, NOBODY, none, MANY)) == 0
    heat.track_processes([])
    assert len(heat.rows_to_evacuate(TOPOLOGY, NOBODY[:0], none[:0], MANY)) == 0


def test_leaving_rows_in_pieces_reach_every_page() -> None:
    """A node is emptied piece by piece, as a drain does it."""
    heat = random_table()
    reached: set[int] = set()
    while len(view := leaving(heat, 1, 512)):
        chunks = np.unique(view.address // np.uint64(CHUNK_BYTES)) * np.uint64(CHUNK_BYTES)
        known = {int(address) for address in view.address.tolist()}
        assert not known & reached
        reached |= known
        every = heat.view(TOPOLOGY)
        for chunk in chunks.tolist():
            node = np.full((1, 512), -1, np.int8)
            start = np.uint64(chunk)
            inside = (every.address >= start) & (every.address < start + np.uint64(CHUNK_BYTES))
            for row in np.flatnonzero(inside).tolist():
                first = int(every.address[row] - start) // 4096
                size = int(every.size[row])
                moved = int(every.address[row]) in known
                node[0, first : first + size] = 0 if moved else every.node[row]
            heat.record_nodes(0, np.array([chunk], np.uint64), node)
    on_node = heat.view(TOPOLOGY)
    assert not len(movable_on(on_node, 1))
