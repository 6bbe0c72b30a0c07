"""Processes whose cpusets refuse moves: policies leave them alone for a while."""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_memory import PROCESS
from bench.synthetic.synthetic_run import SyntheticRun
from hmd.decide.plan import Plan
from hmd.machine.pages.move_pages import UNTOUCHED
from hmd.machine.process_id import ProcessId
from hmd.migrate import MoveStatus
from hmd.pipeline.confined_processes import FIRST_WAIT_S, LONGEST_WAIT_S, ConfinedProcesses
from hmd.pipeline.stage_guard import StageTimer
from hmd.pipeline.tick import run_tick


def refuse(
    pid: int, addresses: npt.NDArray[np.uint64], nodes: npt.NDArray[np.int16], flags: int
) -> tuple[int, npt.NDArray[np.int32]]:
    """Answer as the kernel does where the cpuset lacks the node."""
    del pid, nodes, flags
    return -errno.EACCES, np.full(len(addresses), UNTOUCHED, np.int32)


def test_confined_process_is_not_planned_for_until_its_wait_ends(
    synthetic: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, guard = synthetic._stages, StageTimer()
    monkeypatch.setattr(synthetic._memory, "move_pages", refuse)
    planned = {}
    for now_s in (1.0, 2.0, FIRST_WAIT_S, FIRST_WAIT_S + 2, 3 * FIRST_WAIT_S, 3 * FIRST_WAIT_S + 3):
        guard.begin()
        tick = run_tick(stages, guard, now_s)
        planned[now_s] = len(tick.plan) > 0
        if tick.outcome is not None:
            assert set(tick.outcome.status.tolist()) == {MoveStatus.CPUSET}
    assert list(planned.values()) == [True, False, False, True, False, True]


def test_confined_process_moves_again_once_its_cpuset_permits(
    synthetic: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, guard = synthetic._stages, StageTimer()
    with monkeypatch.context() as confined:
        confined.setattr(synthetic._memory, "move_pages", refuse)
        guard.begin()
        run_tick(stages, guard, 1.0)
    guard.begin()
    tick = run_tick(stages, guard, 2.0 + FIRST_WAIT_S)
    assert tick.outcome is not None
    assert tick.outcome.moved_pages.sum() > 0


def test_confined_waits_double_up_to_the_longest_and_end_with_the_process(
    synthetic: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, guard = synthetic._stages, StageTimer()
    monkeypatch.setattr(synthetic._memory, "move_pages", refuse)
    guard.begin()
    tick = run_tick(stages, guard, 1.0)
    assert tick.outcome is not None
    confined, now_s, waits = ConfinedProcesses(), 0.0, []
    for _ in range(12):
        confined.observe(tick.plan, tick.outcome, now_s)
        begun_s = now_s
        while confined.mask([PROCESS], now_s).any():
            now_s += FIRST_WAIT_S
        waits.append(now_s - begun_s)
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert max(waits) == LONGEST_WAIT_S
    confined.observe(tick.plan, tick.outcome, now_s)
    assert confined.mask([ProcessId(1, 1), PROCESS], now_s).tolist() == [False, True]
    assert confined.mask([], now_s).tolist() == []
    assert confined.mask([PROCESS], now_s).tolist() == [False]
    assert not ConfinedProcesses().mask(Plan.empty((PROCESS,)).processes, 0.0).any()
