# SPDX-License-Identifier: MIT
"""Limits of a plan's moves: the budget of bytes, the time of a plan, and a stop."""

from __future__ import annotations

import pytest

from hmd.linux.procfs import ProcessId
from hmd.migrate import MoveStatus
from hmd.migrate.move_budget import UNLIMITED_BYTES
from tests.fakes.move_pages_kernel import (
    BASE,
    HUGE,
    PAGE,
    FakeKernel,
    fill,
    make_mover,
    make_plan,
    rows_of,
    statuses,
)


def test_mover_defers_rest_when_budget_spent(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(2000, 1, 0)
    fill(kernel, rows)
    mover = make_mover(kernel, rate_bytes_per_s=1000 * PAGE, burst_s=1.0)
    plan = make_plan([process], rows)
    assert mover.budget_bytes() == 1000 * PAGE
    outcome = mover.apply(plan, now_s=0.0)
    assert statuses(outcome) == [MoveStatus.MOVED] * 1000 + [MoveStatus.DEFERRED] * 1000
    assert mover.budget_bytes(0.0) == 0
    assert mover.apply(plan, now_s=0.5).moved == {(1, 0): 500}


def test_mover_huge_page_spends_full_size_of_budget(kernel: FakeKernel, process: ProcessId) -> None:
    rows = [(0, BASE + i * HUGE * PAGE, HUGE, 1, 0) for i in range(3)]
    fill(kernel, rows)
    mover = make_mover(kernel, rate_bytes_per_s=2 * HUGE * PAGE)
    outcome = mover.apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.MOVED, MoveStatus.MOVED, MoveStatus.DEFERRED]


def test_mover_rate_of_a_target_bounds_its_processes_together(kernel: FakeKernel) -> None:
    one, two, other = (kernel.process(pid) for pid in (21, 22, 23))
    rows = [(p, BASE + i * PAGE, 1, 1, 0) for i in range(1000) for p in range(3)]
    for slot, process in enumerate((one, two, other)):
        fill(kernel, [row for row in rows if row[0] == slot], process.pid)
    mover = make_mover(kernel, rate_bytes_per_s=None)
    processes, targets = (one, two, other), ("a", "a", "b")
    mover.set_rates({"a": 600 * PAGE}, processes, targets)
    plan = make_plan(processes, rows)

    def moved(now_s: float) -> list[int]:
        outcome = mover.apply(plan, now_s=now_s)
        return [int(outcome.moved_pages[plan.process == slot].sum()) for slot in range(3)]

    assert moved(0.0) == [300, 300, 1000]
    # The same rate after a reload has the same debt; another one starts full.
    mover.set_rates({"a": 600 * PAGE}, processes, targets)
    assert sum(moved(0.0)) == 0
    assert sum(moved(0.5)) == 300
    mover.set_rates({}, processes, targets)
    assert sum(moved(0.5)) == 1100


def test_mover_rate_of_a_tier_bounds_what_moves_into_and_out_of_it(kernel: FakeKernel) -> None:
    process = kernel.process(21)
    into = [(0, BASE + i * PAGE, 1, 0, 2) for i in range(1000)]
    out = [(0, BASE + i * PAGE, 1, 2, 1) for i in range(1000, 2000)]
    other = [(0, BASE + i * PAGE, 1, 0, 1) for i in range(2000, 3000)]
    rows = [row for three in zip(into, out, other, strict=True) for row in three]
    fill(kernel, rows, process.pid)
    mover = make_mover(kernel, rate_bytes_per_s=None)
    mover.set_rates({}, (process,), ("a",), {(2, 3): 600 * PAGE})
    plan = make_plan((process,), rows)
    kinds = plan.from_node * 4 + plan.to_node

    def moved(now_s: float) -> list[int]:
        outcome = mover.apply(plan, now_s=now_s)
        return [int(outcome.moved_pages[kinds == kind].sum()) for kind in (2, 9, 1)]

    assert moved(0.0) == [300, 300, 1000]
    assert moved(0.5) == [150, 150, 0]


def test_mover_without_rate_budget_unlimited(kernel: FakeKernel) -> None:
    assert make_mover(kernel, rate_bytes_per_s=None).budget_bytes() == UNLIMITED_BYTES


def test_mover_failed_pages_spend_no_budget(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(5, 1, 0)
    for folio in fill(kernel, rows):
        folio.pinned = True
    mover = make_mover(kernel, rate_bytes_per_s=1000 * PAGE)
    mover.apply(make_plan([process], rows), now_s=0.0)
    assert mover.budget_bytes(0.0) == 1000 * PAGE


def test_mover_budget_spent_last_rows_of_plan_deferred(
    kernel: FakeKernel, process: ProcessId
) -> None:
    rows = rows_of(600, 1, 0)[::-1]
    fill(kernel, rows)
    mover = make_mover(kernel, rate_bytes_per_s=512 * PAGE, burst_s=1.0)
    outcome = mover.apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.MOVED] * 512 + [MoveStatus.DEFERRED] * 88


def test_mover_defers_rest_when_time_spent(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(1000, 1, 0)
    fill(kernel, rows)
    kernel.page_cost_s = 1e-3
    outcome = make_mover(kernel, apply_limit_s=0.3, min_batch_pages=256).apply(
        make_plan([process], rows)
    )
    assert statuses(outcome) == [MoveStatus.MOVED] * 512 + [MoveStatus.DEFERRED] * 488


def test_mover_plan_bytes_limited_by_throughput(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(2000, 1, 0)
    fill(kernel, rows)
    kernel.page_cost_s = 1e-3
    mover = make_mover(kernel, apply_limit_s=1.0, rate_bytes_per_s=1 << 30)
    assert mover.plan_bytes(0.0) == mover.budget_bytes(0.0)
    moved = mover.apply(make_plan([process], rows), now_s=0.0).moved_bytes
    assert 0 < moved < 2000 * 4096
    assert mover.plan_bytes(100.0) == pytest.approx(1000 * 4096, rel=0.3)
    assert mover.budget_bytes(100.0) > 2 * mover.plan_bytes(100.0)


def test_mover_stopped_defers_all(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(10, 1, 0)
    fill(kernel, rows)
    mover = make_mover(kernel)
    mover.stop()
    assert statuses(mover.apply(make_plan([process], rows))) == [MoveStatus.DEFERRED] * 10
    assert kernel.calls == []
