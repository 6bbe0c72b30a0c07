# SPDX-License-Identifier: MIT
"""Placement of pages, recorded as changes."""

import numpy as np
import pytest

from hmd.trace.recorder import PlacementLog
from hmd.trace.trace import PlacementChange

PAGE = 4096


def at(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64) * np.uint64(PAGE)


def on(*nodes: int) -> np.ndarray:
    return np.array(nodes, np.int16)


def test_runs_neighbours_of_one_node_joined() -> None:
    change = PlacementChange.of_pages(0, 0, at(1, 2, 3, 5, 6), on(0, 0, 1, 1, 1))
    assert change.start.tolist() == at(1, 3, 5).tolist()
    assert change.pages.tolist() == [2, 1, 2]
    assert change.node.tolist() == [0, 1, 1]


def test_placement_log_update_returns_changes_only() -> None:
    log = PlacementLog(3)
    first = log.update(at(1, 2, 3), on(0, 0, 1), 10)
    assert first is not None
    assert (first.time_ns, first.process) == (10, 3)
    assert log.update(at(1, 2, 3), on(0, 0, 1), 20) is None
    second = log.update(at(2, 3, 9), on(0, 0, 1), 30)
    assert second is not None
    page, node = second.by_page()
    assert dict(zip((page // PAGE).tolist(), node.tolist(), strict=True)) == {1: -1, 3: 0, 9: 1}


def test_placement_log_replayed_gives_placement() -> None:
    random = np.random.default_rng(0)
    log, replayed = PlacementLog(0), dict[int, int]()
    for moment in range(20):
        page = np.flatnonzero(random.random(200) < 0.5).astype(np.uint64) * np.uint64(PAGE)
        node = random.integers(0, 3, len(page)).astype(np.int16)
        change = log.update(page, node, moment)
        if change is not None:
            for p, n in zip(*(c.tolist() for c in change.by_page()), strict=True):
                replayed[p] = n
        here = {p: n for p, n in replayed.items() if n >= 0}
        assert here == dict(zip(page.tolist(), node.tolist(), strict=True))


@pytest.mark.parametrize("count", [0, 1])
def test_runs_at_most_one_page_as_many_runs(count: int) -> None:
    change = PlacementChange.of_pages(0, 0, at(*range(count)), on(*range(count)))
    assert len(change.start) == len(change.pages) == len(change.node) == count
