# SPDX-License-Identifier: MIT
"""Predicted and realised savings of moves, and pages that move back."""

from dataclasses import replace

import numpy as np
import pytest

from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.metrics.savings import (
    RETURN_TICKS,
    ROWS_PER_TICK,
    SAMPLES_PER_TICK,
    WINDOW_TICKS,
    SavingsTracker,
)
from hmd.metrics.tick_record import TickRecord
from hmd.migrate.status import MoveOutcome, MoveStatus
from hmd.policy.plan import Plan
from hmd.sample.access_batch import AccessBatch
from tests.unit.metrics.conftest import BATCH, REDIS, batch

FAST_NS, SLOW_NS = 80, 280
GAP_S = (SLOW_NS - FAST_NS) * 1e-9


TOPOLOGY = Topology(
    (
        Node(0, (0,), 1 << 30, (10, 20), tier=0, read_latency_ns=FAST_NS),
        Node(1, (), 1 << 30, (20, 10), tier=1, read_latency_ns=SLOW_NS),
    )
)


@pytest.fixture
def tracker() -> SavingsTracker:
    return SavingsTracker(TOPOLOGY)


def samples(*pages: int, process: int = 0, period: int = 10) -> AccessBatch:
    address = np.array(pages, np.uint64) * np.uint64(4096) + np.uint64(8)
    return replace(batch([process] * len(pages), period), address=address)


def tick(
    *moves: tuple[int, int, int],
    batch: AccessBatch | None = None,
    process: ProcessId = REDIS,
    status: MoveStatus = MoveStatus.MOVED,
    heat: float = 5.0,
) -> TickRecord:
    """A tick that moves pages: (first page, 4 KiB pages, to node), from the other node."""
    page, pages, node = np.array(moves, np.int64).reshape(-1, 3).T
    count = len(moves)
    plan = Plan(
        (process,),
        np.zeros(count, np.int32),
        page.astype(np.uint64) * np.uint64(4096),
        pages.astype(np.uint32),
        (1 - node).astype(np.int16),
        node.astype(np.int16),
        np.full(count, heat, np.float32),
        np.zeros(count, np.int32),
    )
    moved = int(pages.sum()) if status is MoveStatus.MOVED else 0
    outcome = MoveOutcome(
        np.full(count, status, np.int16),
        plan.to_node,
        plan.pages,
        {(1, 0): moved},
        {status: int(pages.sum())},
        1,
        0.0,
    )
    took = batch or AccessBatch.empty()
    return TickRecord(
        0.0,
        (process,),
        ("t",),
        took,
        np.zeros(len(took), np.int16),
        plan,
        outcome if count else None,
    )


def test_savings_promotion_from_its_samples(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 0), batch=samples(100)))
    assert tracker.savings.predicted_saved_s == tracker.savings.realised_saved_s == 0
    tracker.add(tick(batch=samples(100, 100, 101, 99)))
    tracker.add(tick(batch=samples(101)))
    savings = tracker.savings
    assert savings.predicted_saved_s == pytest.approx(2 * 5 * GAP_S)
    assert savings.realised_saved_s == pytest.approx(2 * 10 * GAP_S)
    assert savings.predicted_lost_s == savings.realised_lost_s == savings.returned_pages == 0


def test_savings_prediction_scales_with_tick_length(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 0)))
    tracker.add(replace(tick(batch=samples(101)), tick_s=0.01))
    assert tracker.savings.predicted_saved_s == pytest.approx(0.01 * 5 * GAP_S)


def test_savings_demotion_counted_as_loss(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 1), heat=0.5))
    tracker.add(tick(batch=samples(100)))
    savings = tracker.savings
    assert savings.predicted_lost_s == pytest.approx(0.5 * GAP_S)
    assert savings.realised_lost_s == pytest.approx(10 * GAP_S)
    assert savings.predicted_saved_s == savings.realised_saved_s == 0


def test_savings_huge_page_all_4k_pages_counted(tracker: SavingsTracker) -> None:
    tracker.add(tick((512, 512, 0), heat=0.25))
    tracker.add(tick(batch=samples(511, 512, 1023, 1024)))
    assert tracker.savings.predicted_saved_s == pytest.approx(512 * 0.25 * GAP_S)
    assert tracker.savings.realised_saved_s == pytest.approx(2 * 10 * GAP_S)


def test_savings_same_address_in_two_processes_two_pages(tracker: SavingsTracker) -> None:
    both = tick((100, 1, 0))
    tracker.add(replace(both, processes=(BATCH, REDIS), targets=("b", "t")))
    seen = replace(tick(), processes=(BATCH, REDIS), targets=("b", "t"))
    tracker.add(replace(seen, batch=samples(100, process=0)))
    assert tracker.savings.realised_saved_s == 0
    tracker.add(replace(seen, batch=samples(100, process=1)))
    assert tracker.savings.realised_saved_s == pytest.approx(10 * GAP_S)


def test_savings_pages_moved_back_counted(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 0), (200, 1, 0)))
    tracker.add(tick((100, 1, 1)))
    assert tracker.savings.returned_pages == 1
    tracker.add(tick((100, 1, 0)))
    assert tracker.savings.returned_pages == 2


def test_savings_page_moved_again_last_move_followed(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 0)))
    tracker.add(tick((100, 1, 1)))
    tracker.add(tick(batch=samples(100)))
    assert tracker.savings.realised_saved_s == 0
    assert tracker.savings.realised_lost_s == pytest.approx(10 * GAP_S)


def test_savings_huge_page_returned_in_parts_counted_once(tracker: SavingsTracker) -> None:
    tracker.add(tick((512, 512, 0)))
    tracker.add(tick((600, 1, 1), (700, 1, 1)))
    assert tracker.savings.returned_pages == 512


def test_savings_parts_returned_as_huge_page_each_counted(tracker: SavingsTracker) -> None:
    tracker.add(tick((600, 1, 0), (700, 1, 0), (2000, 1, 0)))
    tracker.add(tick((512, 512, 1)))
    assert tracker.savings.returned_pages == 2


def test_savings_moves_followed_for_window_ticks(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 0)))
    for _ in range(WINDOW_TICKS):
        tracker.add(tick(batch=samples(100)))
    full = tracker.savings.realised_saved_s
    assert full == pytest.approx(WINDOW_TICKS * 10 * GAP_S)
    assert tracker.savings.predicted_saved_s == pytest.approx(WINDOW_TICKS * 5 * GAP_S)
    tracker.add(tick(batch=samples(100)))
    assert tracker.savings.realised_saved_s == full


def test_savings_return_after_limit_not_counted(tracker: SavingsTracker) -> None:
    for wait, returned in ((RETURN_TICKS - 1, 1), (RETURN_TICKS, 1)):
        tracker.add(tick((100, 1, 0)))
        for _ in range(wait):
            tracker.add(tick())
        tracker.add(tick((100, 1, 1)))
        assert tracker.savings.returned_pages == returned
        for _ in range(RETURN_TICKS):
            tracker.add(tick())


def test_savings_ended_process_dropped(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 0)))
    tracker.add(tick(process=BATCH))
    tracker.add(tick())
    assert tracker.savings.predicted_saved_s == 0


def test_savings_failed_or_dry_run_moves_not_followed(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 0), status=MoveStatus.BUSY))
    planned = tick((200, 1, 0))
    assert planned.outcome is not None
    tracker.add(replace(planned, outcome=replace(planned.outcome, dry_run=True)))
    tracker.add(tick(batch=samples(100, 200)))
    assert tracker.savings.predicted_saved_s == tracker.savings.realised_saved_s == 0


def test_savings_many_moves_sampled_and_scaled(tracker: SavingsTracker) -> None:
    count = 8 * ROWS_PER_TICK
    tracker.add(tick(*((page, 1, 0) for page in range(count))))
    tracker.add(tick(batch=samples(*range(count))))
    savings = tracker.savings
    assert savings.predicted_saved_s == pytest.approx(count * 5 * GAP_S)
    assert savings.realised_saved_s == pytest.approx(count * 10 * GAP_S)
    tracker.add(tick(*((page, 1, 1) for page in range(count))))
    assert tracker.savings.returned_pages == pytest.approx(count)


def test_savings_many_samples_thinned_and_scaled(tracker: SavingsTracker) -> None:
    tracker.add(tick((100, 1, 0)))
    often = SAMPLES_PER_TICK * 7 // 2
    tracker.add(tick(batch=samples(*([100] * often + [300] * often))))
    assert tracker.savings.realised_saved_s == pytest.approx(often * 10 * GAP_S, rel=0.002)


def test_savings_neighbours_that_move_together_are_one_move(tracker: SavingsTracker) -> None:
    pages = 4 * ROWS_PER_TICK
    tracker.add(tick(*((page, 1, 0) for page in range(512, 512 + pages))))
    # Of single moves, most would not be followed, and one sample would show nothing or too much.
    tracker.add(tick(batch=samples(700, 5000)))
    assert tracker.savings.realised_saved_s == pytest.approx(10 * GAP_S)
    assert tracker.savings.predicted_saved_s == pytest.approx(pages * 5 * GAP_S)


def would(*moves: tuple[int, int, int], batch: AccessBatch | None = None) -> TickRecord:
    """A tick of a dry run that names these pages."""
    record = tick(*moves, batch=batch, status=MoveStatus.WOULD_MOVE)
    if record.outcome is None:
        return record
    pages = {(1, 0): int(record.plan.pages.sum())}
    return replace(record, outcome=replace(record.outcome, moved=pages, dry_run=True))


def test_dry_run_counts_each_page_once_and_saves_by_its_samples() -> None:
    """The same plan tick after tick, as nothing moves; then a larger one, and one back."""
    tracker = SavingsTracker(TOPOLOGY, dry_run=True)
    first = tracker.add(would((100, 8, 0), (200, 1, 0)))
    assert (first.new_up_pages.tolist(), first.new_down_pages.tolist()) == ([9], [0])
    for _ in range(3):
        again = tracker.add(would((100, 8, 0), (200, 1, 0), batch=samples(100, 107, 300)))
        assert again.new_up_pages.tolist() == [0]
        assert again.realised_saved_s == pytest.approx([2 * 10 * GAP_S])
    more = tracker.add(would((92, 8, 0), (200, 1, 0), (300, 4, 1)))
    assert (more.new_up_pages.tolist(), more.new_down_pages.tolist()) == ([8], [4])
    last = tracker.add(would(batch=samples(302, 96)))
    assert last.realised_lost_s == pytest.approx([10 * GAP_S])
    assert last.realised_saved_s == pytest.approx([10 * GAP_S])
    assert tracker.savings.realised_saved_s == pytest.approx(7 * 10 * GAP_S)
    # What was moved is not of a dry run.
    assert tracker.add(tick((500, 1, 0))).new_up_pages.tolist() == [0]


def test_dry_run_counts_pages_of_ended_process_anew() -> None:
    tracker = SavingsTracker(TOPOLOGY, dry_run=True)
    assert tracker.add(would((100, 8, 0))).new_up_pages.sum() == 8
    tracker.add(tick(process=BATCH))
    assert tracker.add(would((100, 8, 0))).new_up_pages.sum() == 8


def test_savings_by_process_add_up(tracker: SavingsTracker) -> None:
    both = replace(tick((100, 4, 0)), processes=(REDIS, BATCH), targets=("t", "u"))
    assert both.outcome is not None
    plan = replace(both.plan, processes=(BATCH,))
    tracker.add(both)
    tracker.add(replace(both, plan=plan))
    drawn = samples(100, 101, 103, process=0)
    added = tracker.add(replace(both, batch=drawn, plan=Plan.empty(), outcome=None))
    assert added.realised_saved_s == pytest.approx([30 * GAP_S, 0])
    assert (added.predicted_saved_s > 0).all()
