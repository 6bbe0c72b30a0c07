# SPDX-License-Identifier: MIT
"""The CPU time of planning, without that of the compiler."""

from __future__ import annotations

import time

import numba
import pytest
from numba.core import event

from hmd.tensors.planner import planning_time


class Clock:
    """A CPU clock that a test advances."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "process_time", made)
    return made


def test_planning_time_without_compilation_is_cpu_time(clock: Clock) -> None:
    with planning_time() as spent:
        clock.now += 2.0
    assert spent.seconds == 2.0


def test_planning_time_leaves_out_nested_compilations_once(clock: Clock) -> None:
    with planning_time() as spent:
        clock.now += 1.0
        with event.trigger_event("numba:compile"):
            clock.now += 4.0
            with event.trigger_event("numba:compile"):
                clock.now += 8.0
            clock.now += 16.0
        clock.now += 32.0
    assert spent.seconds == 33.0


def test_planning_time_sees_compilations_of_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []

    def cpu_time() -> float:
        read.append(float(len(read)))
        return read[-1]

    compiled = numba.njit(lambda value: value + len("x"))
    monkeypatch.setattr(time, "process_time", cpu_time)
    with planning_time() as spent:
        assert compiled(3) == 4
    assert read == [0.0, 1.0, 2.0, 3.0]  # begin, compiling begins and ends, end
    assert spent.seconds == 2.0


def test_planning_time_of_failed_plan_stops_listening(clock: Clock) -> None:
    with pytest.raises(ArithmeticError), planning_time() as spent:
        clock.now += 1.0
        raise ArithmeticError
    with event.trigger_event("numba:compile"):
        clock.now += 4.0
    assert spent.seconds == 1.0
