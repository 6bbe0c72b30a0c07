"""Values by process follow their processes."""

from __future__ import annotations

import numpy as np

from hmd.decide.process_slots import ProcessSlots, carried
from hmd.machine.process_id import ProcessId

ONE, TWO, THREE = (ProcessId(pid, 1) for pid in (1, 2, 3))


def test_slots_processes_come_go_and_change_places() -> None:
    slots = ProcessSlots()
    first = slots.follow((ONE, TWO))
    assert first is not None
    assert first.tolist() == [-1, -1]
    assert slots.follow((ONE, TWO)) is None
    before = slots.follow((THREE, TWO))
    assert before is not None
    assert before.tolist() == [-1, 1]
    assert [slots.find(each) for each in (ONE, TWO, THREE)] == [-1, 1, 0]
    values = np.arange(6.0).reshape(2, 3)
    assert carried(values, before).tolist() == [[0, 0, 0], [3, 4, 5]]


def test_slots_pid_of_another_process_is_new() -> None:
    slots = ProcessSlots()
    slots.follow((ONE,))
    before = slots.follow((ProcessId(1, 2),))
    assert before is not None
    assert before.tolist() == [-1]


def test_slots_without_processes_carry_nothing() -> None:
    slots = ProcessSlots()
    slots.follow((ONE,))
    before = slots.follow(())
    assert before is not None
    assert carried(np.ones((1, 5)), before).shape == (0, 5)
