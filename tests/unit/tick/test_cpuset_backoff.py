# SPDX-License-Identifier: MIT
"""Processes whose cpusets refuse moves: policies leave them alone for a while."""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import PROCESS, SyntheticRun
from hmd.linux.page_calls import UNTOUCHED
from hmd.linux.procfs import ProcessId
from hmd.migrate import MoveStatus
from hmd.policy.plan import Plan
from hmd.tick.estimates import FIRST_WAIT_S, MAX_WAIT_S, CpusetBackoff


def refuse(
    pid: int, addresses: npt.NDArray[np.uint64], nodes: npt.NDArray[np.int16], flags: int
) -> tuple[int, npt.NDArray[np.int32]]:
    """Answer as the kernel does where the cpuset lacks the node."""
    del pid, nodes, flags
    return -errno.EACCES, np.full(len(addresses), UNTOUCHED, np.int32)


def test_confined_process_is_not_planned_for_until_its_wait_ends(
    synthetic: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic._memory, "move_pages", refuse)
    planned = {}
    for now_s in (1.0, 2.0, FIRST_WAIT_S, FIRST_WAIT_S + 2, 3 * FIRST_WAIT_S, 3 * FIRST_WAIT_S + 3):
        tick = synthetic.ticks.tick(now_s)
        planned[now_s] = len(tick.plan) > 0
        if tick.outcome is not None:
            assert set(tick.outcome.status.tolist()) == {MoveStatus.CPUSET}
    assert list(planned.values()) == [True, False, False, True, False, True]


def test_confined_process_moves_again_once_its_cpuset_permits(
    synthetic: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as confined:
        confined.setattr(synthetic._memory, "move_pages", refuse)
        synthetic.ticks.tick(1.0)
    tick = synthetic.ticks.tick(2.0 + FIRST_WAIT_S)
    assert tick.outcome is not None
    assert tick.outcome.moved_pages.sum() > 0


def test_confined_waits_double_up_to_the_longest_and_end_with_the_process(
    synthetic: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic._memory, "move_pages", refuse)
    tick = synthetic.ticks.tick(1.0)
    assert tick.outcome is not None
    backoff, now_s, waits = CpusetBackoff(), 0.0, []
    for _ in range(12):
        backoff.record_refusals(tick.plan, tick.outcome, now_s)
        begun_s = now_s
        while backoff.waiting_mask([PROCESS], now_s).any():
            now_s += FIRST_WAIT_S
        waits.append(now_s - begun_s)
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert max(waits) == MAX_WAIT_S
    backoff.record_refusals(tick.plan, tick.outcome, now_s)
    assert backoff.waiting_mask([ProcessId(1, 1), PROCESS], now_s).tolist() == [False, True]
    assert backoff.waiting_mask([], now_s).tolist() == []
    assert backoff.waiting_mask([PROCESS], now_s).tolist() == [False]
    assert not CpusetBackoff().waiting_mask(Plan.empty((PROCESS,)).processes, 0.0).any()
