"""The calls that a plan becomes: their order and sizes, and which pages are queried first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from hmd.migrate import MoveStatus
from tests.unit.migrate.conftest import BASE, PAGE, fill, rows_of


def test_mover_calls_per_process_addresses_sorted(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    other = kernel.process(11)
    rng = np.random.default_rng(1)
    rows = rows_of(100, 1, 0) + [(1, BASE + i * PAGE, 1, 1, 0) for i in range(100)]
    rows = [rows[i] for i in rng.permutation(len(rows))]
    for owner, address, *_ in rows:
        kernel.place(10 + owner, address, 1)
    bench.mover(kernel).apply(bench.plan([process, other], rows))
    assert [pid for pid, _, _ in kernel.calls] == [10, 11]
    assert all(addresses == sorted(addresses) for _, addresses, _ in kernel.calls)


def test_mover_slow_pages_batches_within_target_time(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(6000, 1, 0)
    fill(kernel, rows)
    kernel.page_cost_s = 20e-6  # 20 ms are 1000 pages, and sizes aim at half
    bench.mover(kernel).apply(bench.plan([process], rows))
    sizes = [len(addresses) for _, addresses, _ in kernel.calls]
    assert sizes[0] == 256
    assert 490 <= sizes[1] <= max(sizes) <= 500


def test_mover_pages_where_planned_few_queried(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(3200, 1, 0)
    fill(kernel, rows)
    mover = bench.mover(kernel)
    outcome = mover.apply(bench.plan([process], rows))
    assert outcome.moved == {(1, 0): 3200}
    assert mover.stats.queried_rows == 200


def test_mover_pages_elsewhere_than_planned_all_queried(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(3200, 1, 0)
    fill(kernel, rows)
    for row in range(1000, 1040):
        kernel.place(10, rows[row][1], 0)
    mover = bench.mover(kernel)
    outcome = mover.apply(bench.plan([process], rows))
    assert outcome.pages == {MoveStatus.MOVED: 3160, MoveStatus.ALREADY_THERE: 40}
    assert outcome.moved == {(1, 0): 3160}
    assert mover.stats.queried_rows == 3200


def test_mover_dry_run_of_many_pages_all_queried(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(3200, 1, 0)
    fill(kernel, rows)
    kernel.place(10, rows[1001][1], 0)
    outcome = bench.mover(kernel, dry_run=True).apply(bench.plan([process], rows))
    assert outcome.pages == {MoveStatus.WOULD_MOVE: 3199, MoveStatus.ALREADY_THERE: 1}


def test_mover_absent_page_that_no_query_met_reported_by_move(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(3200, 1, 0)
    fill(kernel, rows[:1001] + rows[1002:])
    outcome = bench.mover(kernel).apply(bench.plan([process], rows))
    assert MoveStatus(outcome.status[1001]) is MoveStatus.NOT_PRESENT
    assert outcome.node[1001] == -1
    assert outcome.moved == {(1, 0): 3199}
