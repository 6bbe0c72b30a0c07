# SPDX-License-Identifier: MIT
"""Targets that are full, offline or not permitted, and processes that exit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

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
    statuses,
)


def test_mover_full_node_gets_no_more_calls(kernel: FakeKernel, process: ProcessId) -> None:
    kernel.free[0] = 300
    other = kernel.process(11)
    rows = rows_of(600, 1, 0) + rows_of(5, 1, 2, BASE + (1 << 30))
    fill(kernel, rows)
    rows += [(1, BASE + i * PAGE, 1, 1, 0) for i in range(10)]
    fill(kernel, rows[-10:], pid=11)
    mover = make_mover(kernel, min_batch_pages=256)
    outcome = mover.apply(make_plan([process, other], rows))
    assert outcome.moved == {(1, 0): 300, (1, 2): 5}
    assert outcome.failures == {MoveStatus.NO_MEMORY: 310}
    assert [pid for pid, _, node in kernel.calls if node == 0] == [10, 10]
    assert kernel.free[0] == 0


def test_mover_full_node_demotions_make_room_for_promotions(
    kernel: FakeKernel, process: ProcessId
) -> None:
    kernel.free[0] = 0
    rows = rows_of(400, 0, 1, BASE + (1 << 30)) + rows_of(400, 1, 0)
    fill(kernel, rows)
    outcome = make_mover(kernel).apply(make_plan([process], rows))
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
    kernel: FakeKernel, process: ProcessId, change: Any, target: int, reason: Any
) -> None:
    rows = rows_of(600, 1, target)
    fill(kernel, rows)
    for name, value in change.items():
        setattr(kernel.processes[10], name, value)
    outcome = make_mover(kernel, min_batch_pages=256).apply(make_plan([process], rows))
    assert set(statuses(outcome)) == {reason}
    assert len(kernel.calls) <= 1


def test_mover_cpuset_refuses_one_node_only(kernel: FakeKernel, process: ProcessId) -> None:
    kernel.processes[10].allowed = {1, 2}
    rows = rows_of(10, 1, 0) + rows_of(10, 1, 2, BASE + (1 << 30))
    fill(kernel, rows)
    outcome = make_mover(kernel).apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.CPUSET] * 10 + [MoveStatus.MOVED] * 10


def test_mover_process_exits_between_calls_rest_gone(
    kernel: FakeKernel, process: ProcessId
) -> None:
    rows = rows_of(600, 1, 0)
    fill(kernel, rows)
    kernel.before_call = lambda call: call == 1 and kernel.processes.pop(10)
    outcome = make_mover(kernel, min_batch_pages=256).apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.MOVED] * 256 + [MoveStatus.GONE] * 344


def test_mover_reused_pid_gone_without_call(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(10, 1, 0)
    fill(kernel, rows)
    kernel.processes[10].start_ticks += 1
    outcome = make_mover(kernel).apply(make_plan([process], rows))
    assert statuses(outcome) == [MoveStatus.GONE] * 10
    assert kernel.calls == []


def test_mover_exiting_process_einval_reported_gone(kernel: FakeKernel, process: ProcessId) -> None:
    rows = rows_of(1, 1, 0)
    fill(kernel, rows)
    mover = make_mover(kernel)
    kernel.processes[10].kernel_thread = True  # what the calls see: no memory
    stat = kernel.stat(10)
    assert stat is not None
    ending = dataclasses.replace(stat, flags=0, state=b"Z")
    kernel.stat_answers = lambda _: ending
    mover = make_mover(kernel)
    assert statuses(mover.apply(make_plan([process], rows))) == [MoveStatus.GONE]
