# SPDX-License-Identifier: MIT
from __future__ import annotations

from hmd.migrate import MoveStatus
from hmd.migrate.status import MoveTotals
from tests.fakes.move_pages_kernel import BASE, PAGE, FakeKernel, make_mover, make_plan


def test_totals_sum_outcomes_without_deferred() -> None:
    kernel = FakeKernel({0: 100, 1: 100})
    process = kernel.process(10)
    rows = [(0, BASE + i * PAGE, 1, 1, 0) for i in range(1000)]
    for i, (_, address, *_) in enumerate(rows[:999]):
        kernel.place(10, address, 1, pinned=i == 3)
    kernel.free[0] = 1000
    mover = make_mover(kernel, rate_bytes_per_s=600 * PAGE)
    totals = MoveTotals()
    plan = make_plan([process], rows)
    totals.add(mover.apply(plan, now_s=0.0))
    assert totals.moved_pages == 599
    totals.add(mover.apply(plan, now_s=1.0))
    assert totals.moved == {(1, 0): 998}
    assert totals.moved_bytes == 998 * PAGE
    assert MoveStatus.DEFERRED not in totals.pages
    assert totals.failures[MoveStatus.BUSY] == 1
    assert totals.calls == len(kernel.calls)
