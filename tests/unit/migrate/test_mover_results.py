# SPDX-License-Identifier: MIT
"""The status of each page of a plan, and the counts of an outcome."""

from __future__ import annotations

from hmd.linux.procfs import ProcessId
from hmd.migrate import Mover, MoverSettings, MoveStatus
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


def test_mover_plan_applied_moves_counted(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(1000, 1, 0)
    fill(kernel, rows)
    mover = make_mover(kernel)
    outcome = mover.apply(make_plan([process], rows))
    assert set(statuses(outcome)) == {MoveStatus.MOVED}
    assert set(kernel.nodes_of(10).values()) == {0}
    assert outcome.node.tolist() == [0] * 1000
    assert outcome.moved == {(1, 0): 1000}
    assert outcome.moved_bytes == 1000 * PAGE
    assert outcome.failures == {}
    assert outcome.calls == len(kernel.calls)


def test_mover_pages_in_place_or_absent_no_call(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(4, 1, 0)
    kernel.place(10, rows[0][1], 0)
    kernel.place(10, rows[1][1], 0)
    outcome = make_mover(kernel).apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.ALREADY_THERE] * 2 + [MoveStatus.NOT_PRESENT] * 2
    assert outcome.node.tolist() == [0, 0, -1, -1]
    assert kernel.calls == []


def test_mover_zero_page_unmovable_no_call(kernel: FakeKernel, process: ProcessId) -> None:
    kernel.place(10, BASE, 1, zero=True)
    outcome = make_mover(kernel).apply(make_plan([process], rows_of(1, 1, 0)))
    assert statuses(outcome) == [MoveStatus.UNMOVABLE]
    assert kernel.calls == []


def test_mover_page_on_unplanned_node_moved_from_it(kernel: FakeKernel, process: ProcessId) -> None:
    kernel.place(10, BASE, 2)
    outcome = make_mover(kernel).apply(make_plan([process], rows_of(1, 1, 0)))
    assert outcome.moved == {(2, 0): 1}


def test_mover_shared_page_needs_move_shared(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(2, 1, 0)
    fill(kernel, rows)[1].shared = True
    plan = make_plan([process], rows)
    assert statuses(make_mover(kernel).apply(plan)) == [MoveStatus.MOVED, MoveStatus.SHARED]
    assert statuses(make_mover(kernel, move_shared=True).apply(plan)) == [
        MoveStatus.ALREADY_THERE,
        MoveStatus.MOVED,
    ]


def test_mover_duplicate_rows_moved_once(kernel: FakeKernel, process: ProcessId) -> None:
    kernel.place(10, BASE, 1, pages=HUGE)
    kernel.place(10, BASE + HUGE * PAGE, 1)
    rows = [
        (0, BASE + 3 * PAGE, 1, 1, 0),
        (0, BASE, HUGE, 1, 0),
        (0, BASE, HUGE, 1, 2),
        (0, BASE + HUGE * PAGE, 1, 1, 2),
        (0, BASE + HUGE * PAGE, 1, 1, 0),
    ]
    outcome = make_mover(kernel).apply(make_plan([process], rows))
    assert statuses(outcome) == [
        MoveStatus.DUPLICATE,
        MoveStatus.MOVED,
        MoveStatus.DUPLICATE,
        MoveStatus.MOVED,
        MoveStatus.DUPLICATE,
    ]
    assert outcome.moved == {(1, 0): HUGE, (1, 2): 1}
    assert outcome.node.tolist() == [0, 0, 0, 2, 2]


def test_mover_dry_run_counts_without_moving(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(5, 1, 0)
    fill(kernel, rows[:4])
    before = kernel.nodes_of(10)
    mover = make_mover(kernel, dry_run=True)
    outcome = mover.apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.WOULD_MOVE] * 4 + [MoveStatus.NOT_PRESENT]
    assert outcome.moved == {(1, 0): 4}
    assert outcome.dry_run
    assert kernel.calls == []
    assert kernel.nodes_of(10) == before


def test_mover_pages_rejected_by_filter_skipped(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(4, 1, 0)
    fill(kernel, rows)
    mover = Mover(
        MoverSettings(),
        kernel.clock,
        kernel,
        stat=kernel.stat,
        page_filter=lambda _, addresses: addresses < BASE + 2 * PAGE,
    )
    outcome = mover.apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.MOVED] * 2 + [MoveStatus.SKIPPED] * 2


def test_mover_empty_plan_empty_outcome(kernel: FakeKernel) -> None:
    outcome = make_mover(kernel).apply(make_plan([], []))
    assert len(outcome) == 0
    assert outcome.moved == {}
    assert outcome.pages == {}
