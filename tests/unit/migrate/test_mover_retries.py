# SPDX-License-Identifier: MIT
"""Pages that a call could not move: further tries in the plan, and waits between plans."""

from __future__ import annotations

from hmd.linux.procfs import ProcessId
from hmd.migrate import MoveStatus
from tests.fakes.move_pages_kernel import FakeKernel, fill, make_mover, make_plan, rows_of, statuses


def test_mover_pinned_page_busy_neighbours_moved(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(50, 1, 0)
    fill(kernel, rows)[7].pinned = True
    outcome = make_mover(kernel, tries=3).apply(make_plan([process], rows))
    expected = [MoveStatus.MOVED] * 50
    expected[7] = MoveStatus.BUSY
    assert statuses(outcome) == expected
    assert outcome.node[7] == 1
    assert [len(addresses) for _, addresses, _ in kernel.calls] == [50, 1, 1]


def test_mover_page_unpinned_meanwhile_moved_by_retry(
    kernel: FakeKernel, process: ProcessId
) -> None:
    rows = rows_of(50, 1, 0)
    folio = fill(kernel, rows)[7]
    folio.pinned = True
    kernel.before_call = lambda call: setattr(folio, "pinned", call < 1)
    mover = make_mover(kernel)
    outcome = mover.apply(make_plan([process], rows))
    assert set(statuses(outcome)) == {MoveStatus.MOVED}
    assert [len(addresses) for _, addresses, _ in kernel.calls][-1] == 1


def test_mover_many_failures_tail_reached(kernel: FakeKernel, process: ProcessId) -> None:
    """Every third page ends a run that contains a pinned page: each call stops there."""
    rows = rows_of(90, 1, 0)
    folios = fill(kernel, rows)
    for i, folio in enumerate(folios):
        folio.pinned = i % 3 == 0
        folio.shared = i % 3 == 2
    outcome = make_mover(kernel, tries=2).apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.BUSY, MoveStatus.MOVED, MoveStatus.SHARED] * 30


def test_mover_isolated_page_retried_then_busy(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(10, 1, 0)
    fill(kernel, rows)[3].isolated = True
    outcome = make_mover(kernel, tries=2).apply(make_plan([process], rows))
    assert statuses(outcome).count(MoveStatus.MOVED) == 9
    assert statuses(outcome)[3] is MoveStatus.BUSY
    assert len(kernel.calls) == 2


def test_mover_repeated_failures_wait_doubles(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(2, 1, 0)
    fill(kernel, rows)[1].pinned = True
    mover = make_mover(kernel)
    plan = make_plan([process], rows)
    first = mover.settings.backoff.first_wait_s
    assert statuses(mover.apply(plan, now_s=0.0))[1] is MoveStatus.BUSY
    assert statuses(mover.apply(plan, now_s=first * 0.9))[1] is MoveStatus.IN_BACKOFF
    assert statuses(mover.apply(plan, now_s=first))[1] is MoveStatus.BUSY
    assert statuses(mover.apply(plan, now_s=first * 2.9))[1] is MoveStatus.IN_BACKOFF
    assert statuses(mover.apply(plan, now_s=first * 3))[1] is MoveStatus.BUSY
