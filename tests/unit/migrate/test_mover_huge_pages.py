# SPDX-License-Identifier: MIT
"""Moves of large folios, huge pages, huge pages that were split, and pages of 1 GiB."""

from __future__ import annotations

import pytest

from hmd.linux.procfs import ProcessId
from hmd.migrate import MoveStatus
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


def test_mover_large_folio_all_pages_moved(kernel: FakeKernel, process: ProcessId) -> None:
    """The kernel returns EBUSY for all but the first address of a folio, but moves all."""
    kernel.place(10, BASE, 1, pages=16)
    outcome = make_mover(kernel).apply(make_plan([process], rows_of(16, 1, 0)))
    assert statuses(outcome) == [MoveStatus.MOVED] * 16


def test_mover_huge_page_moved_by_one_address(kernel: FakeKernel, process: ProcessId) -> None:
    kernel.place(10, BASE, 1, pages=HUGE)
    outcome = make_mover(kernel).apply(make_plan([process], [(0, BASE, HUGE, 1, 0)]))
    assert statuses(outcome) == [MoveStatus.MOVED]
    assert outcome.moved == {(1, 0): HUGE}
    assert [addresses for _, addresses, _ in kernel.calls] == [[BASE]]


def test_mover_split_huge_page_moved_page_by_page(kernel: FakeKernel, process: ProcessId) -> None:
    fill(kernel, rows_of(HUGE, 1, 0))
    del kernel.processes[10].memory[BASE + 5 * PAGE]
    mover = make_mover(kernel)
    outcome = mover.apply(make_plan([process], [(0, BASE, HUGE, 1, 0)]))
    assert statuses(outcome) == [MoveStatus.MOVED]
    assert outcome.moved_pages.tolist() == [HUGE - 1]
    assert set(kernel.nodes_of(10).values()) == {0}
    assert len(kernel.calls) > 1


def test_mover_split_huge_page_partly_moved_completed(
    kernel: FakeKernel, process: ProcessId
) -> None:
    folios = fill(kernel, rows_of(HUGE, 1, 0))
    for folio in folios[:300]:
        folio.node = 0
    folios[400].pinned = True
    outcome = make_mover(kernel).apply(make_plan([process], [(0, BASE, HUGE, 1, 0)]))
    assert statuses(outcome) == [MoveStatus.BUSY]
    assert list(kernel.nodes_of(10).values()).count(0) == HUGE - 1


@pytest.mark.parametrize("at", [0, 300, 599])
def test_mover_page_of_1_gib_without_free_one_others_move(
    kernel: FakeKernel, process: ProcessId, at: int
) -> None:
    rows = rows_of(600, 1, 0)
    fill(kernel, rows)
    kernel.processes[process.pid].memory[BASE + at * PAGE].gigantic = True
    mover = make_mover(kernel, min_batch_pages=256)
    outcome = mover.apply(make_plan([process], rows))
    assert outcome.moved == {(1, 0): 599}
    assert outcome.failures == {MoveStatus.NO_HUGE_PAGE: 1}
    # The page waits for its retry; the node is not taken for full.
    again = mover.apply(make_plan([process], rows[at : at + 1]))
    assert statuses(again) == [MoveStatus.IN_BACKOFF]
