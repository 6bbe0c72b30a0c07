# SPDX-License-Identifier: MIT
"""Slots of processes, and values that follow their processes."""

from __future__ import annotations

import numpy as np

from hmd.linux.process_table import ProcessTable, carry_over
from hmd.linux.procfs import ProcessId

ONE, TWO, THREE = (ProcessId(pid, 1) for pid in (1, 2, 3))


def test_processes_come_go_and_change_places() -> None:
    table = ProcessTable((ONE, TWO))
    assert table.replace((ONE, TWO)) is None
    former = table.replace((THREE, TWO))
    assert former is not None
    assert former.tolist() == [-1, 1]
    assert [table.slot_of(each) for each in (ONE, TWO, THREE)] == [-1, 1, 0]
    values = np.arange(6.0).reshape(2, 3)
    assert carry_over(values, former).tolist() == [[0, 0, 0], [3, 4, 5]]


def test_slots_of_several_processes() -> None:
    table = ProcessTable((ONE, TWO))
    assert table.slots_of((TWO, THREE)).tolist() == [1, -1]
    assert table.slots_of((ONE, TWO)).tolist() == [0, 1]
    assert (len(table), ONE in table, THREE in table) == (2, True, False)


def test_another_process_with_the_pid_is_new() -> None:
    former = ProcessTable((ONE,)).replace((ProcessId(1, 2),))
    assert former is not None
    assert former.tolist() == [-1]


def test_empty_table_carries_nothing_over() -> None:
    former = ProcessTable((ONE,)).replace(())
    assert former is not None
    assert carry_over(np.ones((1, 5)), former).shape == (0, 5)
