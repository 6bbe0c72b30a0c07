"""The mover's logic, tested with a model of the kernel (conftest.py)."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.migrate import Mover, MoverSettings, MoveStatus
from hmd.migrate.budget import UNLIMITED_BYTES

PAGE = 4096
HUGE = 512
BASE = 0x7F0000000000


@pytest.fixture
def kernel(bench: SimpleNamespace) -> Any:
    made = bench.kernel({0: 10_000, 1: 10_000, 2: 10_000})
    made.process(10)
    return made


@pytest.fixture
def process(kernel: Any) -> Any:
    return kernel.stat(10).process


def statuses(outcome: Any) -> Any:
    return [MoveStatus(code) for code in outcome.status.tolist()]


def rows_of(pages: Any, source: Any, target: Any, first: Any = BASE) -> Any:
    return [(0, first + i * PAGE, 1, source, target) for i in range(pages)]


def fill(kernel: Any, rows: Any, pid: int = 10) -> Any:
    return [kernel.place(pid, a, source, pages) for _, a, pages, source, _ in rows]


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


def test_mover_pinned_page_busy_neighbours_moved(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(50, 1, 0)
    fill(kernel, rows)[7].pinned = True
    outcome = bench.mover(kernel, tries=3).apply(bench.plan([process], rows))
    expected = [MoveStatus.MOVED] * 50
    expected[7] = MoveStatus.BUSY
    assert statuses(outcome) == expected
    assert outcome.node[7] == 1
    assert [len(addresses) for _, addresses, _ in kernel.calls] == [50, 1, 1]


def test_mover_page_unpinned_meanwhile_moved_by_retry(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(50, 1, 0)
    folio = fill(kernel, rows)[7]
    folio.pinned = True
    kernel.before_call = lambda call: setattr(folio, "pinned", call < 1)
    mover = bench.mover(kernel)
    outcome = mover.apply(bench.plan([process], rows))
    assert set(statuses(outcome)) == {MoveStatus.MOVED}
    assert mover.stats.retried_rows == 1


def test_mover_many_failures_tail_reached(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    """Every third page ends a run that contains a pinned page: each call stops there."""
    rows = rows_of(90, 1, 0)
    folios = fill(kernel, rows)
    for i, folio in enumerate(folios):
        folio.pinned = i % 3 == 0
        folio.shared = i % 3 == 2
    outcome = bench.mover(kernel, tries=2).apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.BUSY, MoveStatus.MOVED, MoveStatus.SHARED] * 30


def test_mover_isolated_page_retried_then_busy(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(10, 1, 0)
    fill(kernel, rows)[3].isolated = True
    outcome = bench.mover(kernel, tries=2).apply(bench.plan([process], rows))
    assert statuses(outcome).count(MoveStatus.MOVED) == 9
    assert statuses(outcome)[3] is MoveStatus.BUSY
    assert len(kernel.calls) == 2


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


def test_mover_large_folio_all_pages_moved(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    """The kernel returns EBUSY for all but the first address of a folio, but moves all."""
    kernel.place(10, BASE, 1, pages=16)
    outcome = bench.mover(kernel).apply(bench.plan([process], rows_of(16, 1, 0)))
    assert statuses(outcome) == [MoveStatus.MOVED] * 16


def test_mover_huge_page_moved_by_one_address(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    kernel.place(10, BASE, 1, pages=HUGE)
    outcome = bench.mover(kernel).apply(bench.plan([process], [(0, BASE, HUGE, 1, 0)]))
    assert statuses(outcome) == [MoveStatus.MOVED]
    assert outcome.moved == {(1, 0): HUGE}
    assert [addresses for _, addresses, _ in kernel.calls] == [[BASE]]


def test_mover_split_huge_page_moved_page_by_page(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    fill(kernel, rows_of(HUGE, 1, 0))
    del kernel.processes[10].memory[BASE + 5 * PAGE]
    mover = bench.mover(kernel)
    outcome = mover.apply(bench.plan([process], [(0, BASE, HUGE, 1, 0)]))
    assert statuses(outcome) == [MoveStatus.MOVED]
    assert outcome.moved_pages.tolist() == [HUGE - 1]
    assert set(kernel.nodes_of(10).values()) == {0}
    assert mover.stats.split_huge_pages == 1


def test_mover_split_huge_page_partly_moved_completed(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    folios = fill(kernel, rows_of(HUGE, 1, 0))
    for folio in folios[:300]:
        folio.node = 0
    folios[400].pinned = True
    outcome = bench.mover(kernel).apply(bench.plan([process], [(0, BASE, HUGE, 1, 0)]))
    assert statuses(outcome) == [MoveStatus.BUSY]
    assert list(kernel.nodes_of(10).values()).count(0) == HUGE - 1


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


def test_mover_full_node_gets_no_more_calls(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    kernel.free[0] = 300
    other = kernel.process(11)
    rows = rows_of(600, 1, 0) + rows_of(5, 1, 2, BASE + (1 << 30))
    fill(kernel, rows)
    rows += [(1, BASE + i * PAGE, 1, 1, 0) for i in range(10)]
    fill(kernel, rows[-10:], pid=11)
    mover = bench.mover(kernel, least_batch_pages=256)
    outcome = mover.apply(bench.plan([process, other], rows))
    assert outcome.moved == {(1, 0): 300, (1, 2): 5}
    assert outcome.failures == {MoveStatus.NO_MEMORY: 310}
    assert [pid for pid, _, node in kernel.calls if node == 0] == [10, 10]
    assert kernel.free[0] == 0


@pytest.mark.parametrize("at", [0, 300, 599])
def test_mover_page_of_1_gib_without_free_one_others_move(
    bench: SimpleNamespace, kernel: Any, process: Any, at: int
) -> None:
    rows = rows_of(600, 1, 0)
    fill(kernel, rows)
    kernel.processes[process.pid].memory[BASE + at * PAGE].gigantic = True
    mover = bench.mover(kernel, least_batch_pages=256)
    outcome = mover.apply(bench.plan([process], rows))
    assert outcome.moved == {(1, 0): 599}
    assert outcome.failures == {MoveStatus.NO_HUGE_PAGE: 1}
    # The page waits for its retry; the node is not taken for full.
    again = mover.apply(bench.plan([process], rows[at : at + 1]))
    assert statuses(again) == [MoveStatus.BLACKLISTED]


def test_mover_full_node_demotions_make_room_for_promotions(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    kernel.free[0] = 0
    rows = rows_of(400, 0, 1, BASE + (1 << 30)) + rows_of(400, 1, 0)
    fill(kernel, rows)
    outcome = bench.mover(kernel).apply(bench.plan([process], rows))
    assert set(statuses(outcome)) == {MoveStatus.MOVED}
    assert kernel.free[0] == 0


@pytest.mark.parametrize(
    ("change", "target", "reason"),
    [
        ({}, 5, MoveStatus.OFFLINE),
        ({"allowed": {1, 2}}, 0, MoveStatus.CPUSET),
        ({"permitted": False}, 0, MoveStatus.PERMISSION),
        ({"kernel_thread": True}, 0, MoveStatus.INVALID),
    ],
)
def test_mover_refused_call_reason_given_to_all_rows(
    bench: SimpleNamespace, kernel: Any, process: Any, change: Any, target: int, reason: Any
) -> None:
    rows = rows_of(600, 1, target)
    fill(kernel, rows)
    for name, value in change.items():
        setattr(kernel.processes[10], name, value)
    outcome = bench.mover(kernel, least_batch_pages=256).apply(bench.plan([process], rows))
    assert set(statuses(outcome)) == {reason}
    assert len(kernel.calls) <= 1


def test_mover_cpuset_refuses_one_node_only(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    kernel.processes[10].allowed = {1, 2}
    rows = rows_of(10, 1, 0) + rows_of(10, 1, 2, BASE + (1 << 30))
    fill(kernel, rows)
    outcome = bench.mover(kernel).apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.CPUSET] * 10 + [MoveStatus.MOVED] * 10


def test_mover_process_exits_between_calls_rest_gone(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(600, 1, 0)
    fill(kernel, rows)
    kernel.before_call = lambda call: call == 1 and kernel.processes.pop(10)
    outcome = bench.mover(kernel, least_batch_pages=256).apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.MOVED] * 256 + [MoveStatus.GONE] * 344


def test_mover_reused_pid_gone_without_call(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(10, 1, 0)
    fill(kernel, rows)
    kernel.processes[10].start_ticks += 1
    outcome = bench.mover(kernel).apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.GONE] * 10
    assert kernel.calls == []


def test_mover_exiting_process_einval_reported_gone(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(1, 1, 0)
    fill(kernel, rows)
    mover = bench.mover(kernel)
    kernel.processes[10].kernel_thread = True  # what the calls see: no memory
    living = dataclasses.replace(kernel.stat(10), flags=0, state=b"Z")
    kernel.stat = lambda pid: living
    mover = bench.mover(kernel)
    assert statuses(mover.apply(bench.plan([process], rows))) == [MoveStatus.GONE]


def test_mover_defers_rest_when_budget_spent(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(2000, 1, 0)
    fill(kernel, rows)
    mover = bench.mover(kernel, rate_bytes_per_s=1000 * PAGE, burst_s=1.0)
    plan = bench.plan([process], rows)
    assert mover.budget_bytes() == 1000 * PAGE
    outcome = mover.apply(plan, now_s=0.0)
    assert statuses(outcome) == [MoveStatus.MOVED] * 1000 + [MoveStatus.DEFERRED] * 1000
    assert outcome.deferred_pages == 1000
    assert mover.budget_bytes(0.0) == 0
    assert mover.apply(plan, now_s=0.5).moved == {(1, 0): 500}


def test_mover_huge_page_spends_full_size_of_budget(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = [(0, BASE + i * HUGE * PAGE, HUGE, 1, 0) for i in range(3)]
    fill(kernel, rows)
    mover = bench.mover(kernel, rate_bytes_per_s=2 * HUGE * PAGE)
    outcome = mover.apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.MOVED, MoveStatus.MOVED, MoveStatus.DEFERRED]


def test_mover_without_rate_budget_unlimited(bench: SimpleNamespace, kernel: Any) -> None:
    assert bench.mover(kernel, rate_bytes_per_s=None).budget_bytes() == UNLIMITED_BYTES


def test_mover_failed_pages_spend_no_budget(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(5, 1, 0)
    for folio in fill(kernel, rows):
        folio.pinned = True
    mover = bench.mover(kernel, rate_bytes_per_s=1000 * PAGE)
    mover.apply(bench.plan([process], rows), now_s=0.0)
    assert mover.budget_bytes(0.0) == 1000 * PAGE


def test_mover_repeated_failures_wait_doubles(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(2, 1, 0)
    fill(kernel, rows)[1].pinned = True
    mover = bench.mover(kernel)
    plan = bench.plan([process], rows)
    first = mover.settings.backoff.first_wait_s
    assert statuses(mover.apply(plan, now_s=0.0))[1] is MoveStatus.BUSY
    assert mover.stats.blacklisted_pages == 1
    assert statuses(mover.apply(plan, now_s=first * 0.9))[1] is MoveStatus.BLACKLISTED
    assert statuses(mover.apply(plan, now_s=first))[1] is MoveStatus.BUSY
    assert statuses(mover.apply(plan, now_s=first * 2.9))[1] is MoveStatus.BLACKLISTED
    assert statuses(mover.apply(plan, now_s=first * 3))[1] is MoveStatus.BUSY


def test_mover_defers_rest_when_time_spent(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(1000, 1, 0)
    fill(kernel, rows)
    kernel.page_cost_s = 1e-3
    outcome = bench.mover(kernel, apply_limit_s=0.3, least_batch_pages=256).apply(
        bench.plan([process], rows)
    )
    assert statuses(outcome) == [MoveStatus.MOVED] * 512 + [MoveStatus.DEFERRED] * 488


def test_mover_plan_bytes_limited_by_throughput(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(2000, 1, 0)
    fill(kernel, rows)
    kernel.page_cost_s = 1e-3
    mover = bench.mover(kernel, apply_limit_s=1.0, rate_bytes_per_s=1 << 30)
    assert mover.plan_bytes(0.0) == mover.budget_bytes(0.0)
    moved = mover.apply(bench.plan([process], rows), now_s=0.0).moved_bytes
    assert 0 < moved < 2000 * 4096
    assert mover.plan_bytes(100.0) == pytest.approx(1000 * 4096, rel=0.3)
    assert mover.budget_bytes(100.0) > 2 * mover.plan_bytes(100.0)


def test_mover_stopped_defers_all(bench: SimpleNamespace, kernel: Any, process: Any) -> None:
    rows = rows_of(10, 1, 0)
    fill(kernel, rows)
    mover = bench.mover(kernel)
    mover.stop()
    assert statuses(mover.apply(bench.plan([process], rows))) == [MoveStatus.DEFERRED] * 10
    assert kernel.calls == []


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
    assert mover.stats.applies == 0


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


def test_mover_budget_spent_last_rows_of_plan_deferred(
    bench: SimpleNamespace, kernel: Any, process: Any
) -> None:
    rows = rows_of(600, 1, 0)[::-1]
    fill(kernel, rows)
    mover = bench.mover(kernel, rate_bytes_per_s=512 * PAGE, burst_s=1.0)
    outcome = mover.apply(bench.plan([process], rows))
    assert statuses(outcome) == [MoveStatus.MOVED] * 512 + [MoveStatus.DEFERRED] * 88


def test_mover_empty_plan_empty_outcome(bench: SimpleNamespace, kernel: Any) -> None:
    outcome = bench.mover(kernel).apply(bench.plan([], []))
    assert len(outcome) == 0
    assert outcome.moved == {}
    assert outcome.pages == {}


FOLIO = st.fixed_dictionaries(
    {
        "node": st.integers(0, 2),
        "pinned": st.booleans(),
        "isolated": st.booleans(),
        "shared": st.booleans(),
        "zero": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_mover_any_plan_one_status_per_row_memory_consistent(
    bench: SimpleNamespace, data: Any
) -> None:
    free = {n: data.draw(st.integers(0, 40)) for n in range(3)}
    kernel = bench.kernel(free)
    processes = []
    for pid in (10, 11):
        start = kernel.process(pid, permitted=data.draw(st.booleans() | st.just(True)))
        processes.append(start)
        for page in data.draw(st.sets(st.integers(0, 30))):
            folio = data.draw(FOLIO)
            kernel.place(pid, BASE + page * PAGE, folio.pop("node"), **folio)
        if data.draw(st.booleans()):
            kernel.place(pid, BASE + HUGE * PAGE, data.draw(st.integers(0, 2)), pages=HUGE)
    exits_at = data.draw(st.none() | st.integers(0, 6))
    kernel.before_call = lambda call: call == exits_at and kernel.processes.pop(11)
    total = sum(kernel.free.values())
    row = st.tuples(
        st.integers(0, 1),
        st.integers(0, 30).map(lambda page: BASE + page * PAGE) | st.just(BASE + HUGE * PAGE),
        st.sampled_from([1, HUGE]),
        st.integers(0, 2),
        st.integers(0, 4),
    )
    plan = bench.plan(processes, data.draw(st.lists(row, max_size=60)))
    mover = bench.mover(
        kernel,
        least_batch_pages=data.draw(st.sampled_from([1, 4, 256])),
        rate_bytes_per_s=data.draw(st.none() | st.integers(0, 4 << 20)),
        tries=data.draw(st.integers(1, 3)),
        move_shared=data.draw(st.booleans()),
    )
    before = {pid: kernel.nodes_of(pid) for pid in (10, 11)}
    outcome = mover.apply(plan)

    assert len(outcome) == len(plan)
    assert all(MoveStatus.PENDING < code <= MoveStatus.OTHER for code in outcome.status)
    assert sum(outcome.pages.values()) == int(plan.pages.sum())
    assert sum(outcome.moved.values()) == int(outcome.moved_pages.sum())
    assert sum(kernel.free.values()) == total
    at_target = np.isin(outcome.status, (MoveStatus.MOVED, MoveStatus.ALREADY_THERE))
    for i in np.flatnonzero(at_target).tolist():
        pid, address = 10 + int(plan.process[i]), int(plan.address[i])
        if pid in kernel.processes:
            assert kernel.nodes_of(pid)[address] == plan.to_node[i] == outcome.node[i]
    moved = {(10 + int(plan.process[i]), int(plan.address[i])) for i in np.flatnonzero(at_target)}
    for pid in kernel.processes:
        for address, node in kernel.nodes_of(pid).items():
            if (pid, address) not in moved and not (plan.pages == HUGE).any():
                assert node == before[pid][address]
