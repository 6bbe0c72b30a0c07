# SPDX-License-Identifier: MIT
"""The heat table's record of moves and of the node of each page."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED, MOVE_WEAR
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.policy.plan import Plan
from hmd.sample.access_batch import AccessBatch

FIRST, SECOND = ProcessId(10, 1), ProcessId(11, 1)


def table_of(node: int = 1, huge: bool = False) -> HeatTable:
    table = HeatTable()
    table.track_processes([FIRST, SECOND])
    for slot in range(2):
        nodes = np.full((2, CHUNK_PAGES), node, np.int8)
        starts = np.array([0, CHUNK_BYTES], np.uint64)
        table.record_nodes(slot, starts, nodes, np.full(2, huge))
    return table


def plan_of(
    addresses: list[int], process: int = 0, pages: int = 1, processes: tuple[ProcessId, ...] = ()
) -> Plan:
    n = len(addresses)
    return Plan(
        processes or (FIRST, SECOND),
        np.full(n, process, np.int32),
        np.array(addresses, np.uint64),
        np.full(n, pages, np.uint32),
        np.full(n, 1, np.int16),
        np.full(n, 0, np.int16),
        np.zeros(n, np.float32),
        np.zeros(n, np.int32),
    )


def settle(table: HeatTable, plan: Plan, node: list[int], stuck: list[bool] | None = None) -> None:
    marks = stuck or [False] * len(node)
    table.record_moves(plan, np.array(node, np.int16), np.array(marks, np.bool_))


def test_settle_moved_pages_on_new_node_with_wear() -> None:
    table = table_of()
    settle(table, plan_of([0, CHUNK_BYTES + 5 * PAGE_BYTES]), [0, 0])
    columns = table.chunks.columns
    assert np.argwhere(columns.node[:2] == 0).tolist() == [[0, 0], [1, 5]]
    assert columns.wear[0, 0] == columns.wear[1, 5] == MOVE_WEAR
    assert columns.wear.sum() == 2 * MOVE_WEAR


def test_settle_unmoved_pages_stay_without_wear() -> None:
    table = table_of()
    settle(table, plan_of([0]), [1])
    assert table.chunks.columns.node[0, 0] == 1
    assert not table.chunks.columns.wear.any()


def test_settle_stuck_pages_fixed_until_next_sweep() -> None:
    table = table_of()
    settle(table, plan_of([0]), [1], [True])
    assert table.chunks.columns.node[0, 0] == FIXED - 1
    movable, fixed = table.resident_pages(2)
    assert movable[0].tolist() == [0, 2 * CHUNK_PAGES - 1]
    assert fixed[0].tolist() == [0, 1]
    table.record_nodes(0, np.zeros(1, np.uint64), np.ones((1, CHUNK_PAGES), np.int8))
    assert table.resident_pages(2)[1].sum() == 0


def test_settle_page_that_the_table_lacks_is_not_added() -> None:
    """A view has room for the resident pages of each chunk, and kernels check no bounds."""
    table = table_of()
    nodes = np.full((1, CHUNK_PAGES), 1, np.int8)
    nodes[0, 100:] = ABSENT
    table.record_nodes(0, np.zeros(1, np.uint64), nodes)
    settle(table, plan_of([7 * PAGE_BYTES, 200 * PAGE_BYTES]), [0, 0])
    assert np.count_nonzero(table.chunks.columns.node[0] != ABSENT) == 100
    assert table.chunks.columns.resident[0] == 100
    assert table.resident_pages(2)[0][0].tolist() == [1, 99 + CHUNK_PAGES]


def test_settle_unknown_node_requests_sweep() -> None:
    table = table_of()
    table.update(AccessBatch.empty())
    assert (table.chunks.columns.swept[:4] > 0).all()
    settle(table, plan_of([CHUNK_BYTES]), [-1])
    assert np.flatnonzero(table.chunks.columns.swept[:4] == 0).tolist() == [1]


def test_settle_huge_page_moves_whole() -> None:
    table = table_of(huge=True)
    settle(table, plan_of([CHUNK_BYTES], pages=CHUNK_PAGES), [0])
    assert (table.chunks.columns.node[1] == 0).all()
    assert (table.chunks.columns.node[0] == 1).all()


def test_settle_plan_processes_matched_by_identity() -> None:
    table = table_of()
    plan = plan_of([0], process=2, processes=(ProcessId(5, 5), FIRST, SECOND))
    settle(table, plan, [0])
    assert table.resident_pages(2)[0].tolist() == [[0, 1024], [1, 1023]]
    gone = plan_of([0], process=0, processes=(ProcessId(5, 5), FIRST))
    settle(table, gone, [0])
    unknown = plan_of([64 * CHUNK_BYTES])
    settle(table, unknown, [0])
    assert table.resident_pages(2)[0].tolist() == [[0, 1024], [1, 1023]]


def test_heat_table_wear_decays_per_tick() -> None:
    table = table_of()
    for _ in range(20):
        settle(table, plan_of([0]), [0])
    worn = [int(table.chunks.columns.wear[0, 0])]
    assert worn[0] == 255
    while worn[-1]:
        table.update(AccessBatch.empty())
        worn.append(int(table.chunks.columns.wear[0, 0]))
    assert 20 < len(worn) < 80
    assert worn == sorted(worn, reverse=True)


def test_place_chunk_without_pages_dropped() -> None:
    table = table_of()
    gone = np.full((1, CHUNK_PAGES), ABSENT, np.int8)
    assert table.record_nodes(0, np.zeros(1, np.uint64), gone) == CHUNK_PAGES
    assert table.record_nodes(0, np.array([9 * CHUNK_BYTES], np.uint64), gone) == 0
    assert table.chunks.used == 3
    assert table.resident_pages(2)[0].tolist() == [[0, 512], [0, 1024]]


def test_heat_table_sample_of_absent_page_requests_sweep() -> None:
    table = table_of()
    node = np.ones((1, CHUNK_PAGES), np.int8)
    node[0, 3] = ABSENT
    table.record_nodes(0, np.zeros(1, np.uint64), node)
    for page, swept in ((2, True), (3, False)):
        row = np.array([page * PAGE_BYTES], np.uint64)
        one = AccessBatch.of(row)
        table.update(one)
        assert (table.chunks.columns.swept[0] > 0) == swept


def test_heat_table_process_tracked_twice_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        HeatTable().track_processes([FIRST, FIRST])


def test_resident_pages_unknown_node_id_not_counted() -> None:
    table = table_of(node=7)
    assert table.resident_pages(2)[0].sum() == 0
