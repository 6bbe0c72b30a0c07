"""The status of each page of a plan, and the counts of an outcome."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hmd.migrate import Mover, MoverSettings, MoveStatus
from tests.unit.migrate.conftest import BASE, HUGE, PAGE, fill, rows_of, statuses


def test_mover_plan_applied_moves_counted(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(1000, 1, 0)
    fill(kernel, rows)
    mover = bench.mover(kernel)
    outcome = mover.apply(bench.plan([process], rows))
    assert set(statuses(outcome)) == {MoveStatus.MOVED}
    assert set(kernel.nodes_of(10).values()) == {0}
    assert outcome.node.tolist() == [0] * 1000
    assert outcome.moved == {(1, 0): 1000}
    assert outcome.moved_bytes == 1000 * PAGE
    assert outcome.failures == {}
    assert mover.stats.moved_pages == {(1, 0): 1000}
    assert mover.stats.pages[MoveStatus.MOVED] == 1000
    assert mover.stats.calls == outcome.calls == len(kernel.calls)


def test_mover_pages_in_place_or_absent_no_call(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(4, 1, 0)
    kernel.place(10, rows[0][1], 0)
    kernel.place(10, rows[1][1], 0)
    outcome = bench.mover(kernel).apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.ALREADY_THERE] * 2 + [MoveStatus.NOT_PRESENT] * 2
    assert outcome.node.tolist() == [0, 0, -1, -1]
    assert kernel.calls == []


def test_mover_zero_page_unmovable_no_call(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    kernel.place(10, BASE, 1, zero=True)
    outcome = bench.mover(kernel).apply(bench.plan([process], rows_of(1, 1, 0)))
    assert statuses(outcome) == [MoveStatus.UNMOVABLE]
    assert kernel.calls == []


def test_mover_page_on_unplanned_node_moved_from_it(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    kernel.place(10, BASE, 2)
    outcome = bench.mover(kernel).apply(bench.plan([process], rows_of(1, 1, 0)))
    assert outcome.moved == {(2, 0): 1}


def test_mover_shared_page_needs_move_shared(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(2, 1, 0)
    fill(kernel, rows)[1].shared = True
    plan = bench.plan([process], rows)
    assert statuses(bench.mover(kernel).apply(plan)) == [MoveStatus.MOVED, MoveStatus.SHARED]
    assert statuses(bench.mover(kernel, move_shared=True).apply(plan)) == [
        MoveStatus.ALREADY_THERE,
        MoveStatus.MOVED,
    ]


def test_mover_duplicate_rows_moved_once(bench: SimpleNamespace, kernel: Any, process: Any) -> None:
    kernel.place(10, BASE, 1, pages=HUGE)
    kernel.place(10, BASE + HUGE * PAGE, 1)
    rows = [
        (0, BASE + 3 * PAGE, 1, 1, 0),
        (0, BASE, HUGE, 1, 0),
        (0, BASE, HUGE, 1, 2),
        (0, BASE + HUGE * PAGE, 1, 1, 2),
        (0, BASE + HUGE * PAGE, 1, 1, 0),
    ]
    outcome = bench.mover(kernel).apply(bench.plan([process], rows))
    assert statuses(outcome) == [
        MoveStatus.DUPLICATE,
        MoveStatus.MOVED,
        MoveStatus.DUPLICATE,
        MoveStatus.MOVED,
        MoveStatus.DUPLICATE,
    ]
    assert outcome.moved == {(1, 0): HUGE, (1, 2): 1}
    assert outcome.node.tolist() == [0, 0, 0, 2, 2]


def test_mover_dry_run_counts_without_moving(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(5, 1, 0)
    fill(kernel, rows[:4])
    before = kernel.nodes_of(10)
    mover = bench.mover(kernel, dry_run=True)
    outcome = mover.apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.WOULD_MOVE] * 4 + [MoveStatus.NOT_PRESENT]
    assert outcome.moved == {(1, 0): 4}
    assert outcome.dry_run
    assert kernel.calls == []
    assert kernel.nodes_of(10) == before
    assert mover.stats.rows == 0


def test_mover_pages_rejected_by_filter_skipped(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(4, 1, 0)
    fill(kernel, rows)
    mover = Mover(
        MoverSettings(),
        kernel.clock,
        kernel,
        stat=kernel.stat,
        page_filter=lambda _, addresses: addresses < BASE + 2 * PAGE,
    )
    outcome = mover.apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.MOVED] * 2 + [MoveStatus.SKIPPED] * 2


def test_mover_empty_plan_empty_outcome(bench: SimpleNamespace, kernel: Any) -> None:
    outcome = bench.mover(kernel).apply(bench.plan([], []))
    assert len(outcome) == 0
    assert outcome.moved == {}
    assert outcome.pages == {}
