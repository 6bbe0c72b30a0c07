# SPDX-License-Identifier: MIT
"""The calls that a plan becomes: their order and sizes, and which pages are queried first."""

from __future__ import annotations

import numpy as np

from hmd.linux.procfs import ProcessId
from hmd.migrate import MoveStatus
from tests.fakes.move_pages_kernel import (
    BASE,
    PAGE,
    FakeKernel,
    fill,
    make_mover,
    make_plan,
    rows_of,
)


def test_mover_calls_per_process_addresses_sorted(kernel: FakeKernel, process: ProcessId) -> None:
    other = kernel.process(11)
    rng = np.random.default_rng(1)
    rows = rows_of(100, 1, 0) + [(1, BASE + i * PAGE, 1, 1, 0) for i in range(100)]
    rows = [rows[i] for i in rng.permutation(len(rows))]
    for owner, address, *_ in rows:
        kernel.place(10 + owner, address, 1)
    make_mover(kernel).apply(make_plan([process, other], rows))
    assert [pid for pid, _, _ in kernel.calls] == [10, 11]
    assert all(addresses == sorted(addresses) for _, addresses, _ in kernel.calls)


def test_mover_slow_pages_batches_within_target_time(
    kernel: FakeKernel, process: ProcessId
) -> None:
    rows = rows_of(6000, 1, 0)
    fill(kernel, rows)
    kernel.page_cost_s = 20e-6  # 20 ms are 1000 pages, and sizes aim at half
    make_mover(kernel).apply(make_plan([process], rows))
    sizes = [len(addresses) for _, addresses, _ in kernel.calls]
    assert sizes[0] == 256
    assert 490 <= sizes[1] <= max(sizes) <= 500


def test_mover_pages_where_planned_few_queried(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(3200, 1, 0)
    fill(kernel, rows)
    mover = make_mover(kernel)
    outcome = mover.apply(make_plan([process], rows))
    assert outcome.moved == {(1, 0): 3200}
    assert kernel.queried_rows == 200


def test_mover_pages_elsewhere_than_planned_all_queried(
    kernel: FakeKernel, process: ProcessId
) -> None:
    rows = rows_of(3200, 1, 0)
    fill(kernel, rows)
    for row in range(1000, 1040):
        kernel.place(10, rows[row][1], 0)
    mover = make_mover(kernel)
    outcome = mover.apply(make_plan([process], rows))
    assert outcome.pages == {MoveStatus.MOVED: 3160, MoveStatus.ALREADY_THERE: 40}
    assert outcome.moved == {(1, 0): 3160}
    assert kernel.queried_rows == 3200


def test_mover_dry_run_of_many_pages_all_queried(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(3200, 1, 0)
    fill(kernel, rows)
    kernel.place(10, rows[1001][1], 0)
    outcome = make_mover(kernel, dry_run=True).apply(make_plan([process], rows))
    assert outcome.pages == {MoveStatus.WOULD_MOVE: 3199, MoveStatus.ALREADY_THERE: 1}


def test_mover_absent_page_that_no_query_met_reported_by_move(
    kernel: FakeKernel, process: ProcessId
) -> None:
    rows = rows_of(3200, 1, 0)
    fill(kernel, rows[:1001] + rows[1002:])
    outcome = make_mover(kernel).apply(make_plan([process], rows))
    assert MoveStatus(outcome.status[1001]) is MoveStatus.NOT_PRESENT
    assert outcome.node[1001] == -1
    assert outcome.moved == {(1, 0): 3199}
