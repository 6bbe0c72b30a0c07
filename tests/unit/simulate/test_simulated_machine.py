# SPDX-License-Identifier: MIT
"""The simulated machine: first touch, capacity, and moves while the program runs."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissStream
from hmd.emulate.recordings.replay import replayed
from hmd.linux.page_calls import MoveFlags
from hmd.simulate.machine import FAST, PROGRAM, SLOW, SimulatedMachine
from tests.unit.simulate.conftest import BASE, PAGES

FAST_PAGES = 256


def address(pages: list[int]) -> np.ndarray:
    return np.uint64(BASE) + np.array(pages, np.uint64) * np.uint64(4096)


def move(machine: SimulatedMachine, pages: list[int], node: int) -> tuple[int, list[int]]:
    result, status = machine.move_pages(
        PROGRAM.pid, address(pages), np.full(len(pages), node, np.int32), MoveFlags.MOVE
    )
    return result, status.tolist()


def touched(stream: MissStream, preset: Preset) -> SimulatedMachine:
    """A machine whose program has touched all of its pages."""
    machine = SimulatedMachine(stream, preset, FAST_PAGES)
    while machine.row < PAGES + 100:
        machine.run_until(machine.now_s + 1e-4)
    return machine


def test_machine_first_touch_fills_fast_node_first(settled: MissStream, preset: Preset) -> None:
    with touched(settled, preset) as machine:
        nodes = machine.nodes(PROGRAM.pid, address(list(range(PAGES))))
        assert (nodes == np.where(np.arange(PAGES) < FAST_PAGES, FAST, SLOW)).all()
        assert machine.free_pages(FAST) == 0
        assert machine.nodes(1, address([0])).tolist() == [-errno.ESRCH]
        assert machine.nodes(PROGRAM.pid, address([PAGES])).tolist() == [-errno.ENOENT]


def test_machine_untouched_page_not_present(settled: MissStream, preset: Preset) -> None:
    with SimulatedMachine(settled, preset, FAST_PAGES) as machine:
        assert machine.nodes(PROGRAM.pid, address([0])).tolist() == [-errno.ENOENT]
        mappings = machine.mappings(PROGRAM.pid)
        assert mappings is not None
        assert len(mappings) == 0
        machine.run_until(20e-6)
        mappings = machine.mappings(PROGRAM.pid)
        assert mappings is not None
        assert (int(mappings.start[0]), len(mappings)) == (BASE, 1)
        assert int(mappings.end[0]) == BASE + machine.row * 4096
        assert machine.mappings(1) is None


def test_machine_without_moves_equals_replay(settled: MissStream, preset: Preset) -> None:
    layout = np.arange(PAGES) < FAST_PAGES
    with SimulatedMachine(settled, preset, FAST_PAGES) as machine:
        while not machine.done:
            machine.run_until(machine.now_s + 1e-3)
        assert round(machine.program_s * 1e12) == replayed(settled, preset, layout)
        fast, slow = machine.misses
        assert fast + slow == len(settled)


def test_machine_moved_pages_on_target_node_and_room_freed(
    settled: MissStream, preset: Preset
) -> None:
    with touched(settled, preset) as machine:
        assert move(machine, [0, 1, 2], SLOW) == (0, [SLOW] * 3)
        assert machine.free_pages(FAST) == 3
        assert move(machine, [700, 701], FAST) == (0, [FAST] * 2)
        machine.rest()
        assert machine.nodes(PROGRAM.pid, address([0, 700])).tolist() == [SLOW, FAST]
        # One page more fits.
        assert move(machine, [800, 801], FAST) == (-errno.ENOMEM, [FAST, SLOW])
        assert machine.free_pages(FAST) == 0


def test_machine_move_blocks_program_only_on_moved_pages(
    settled: MissStream, preset: Preset
) -> None:
    hot = list(range(PAGES - 192, PAGES))
    with touched(settled, preset) as machine, touched(settled, preset) as other:
        move(machine, list(range(200)), SLOW)
        move(other, list(range(200)), SLOW)
        rows, before = machine.row, machine.program_s
        move(machine, hot, FAST)  # which the program needs all the time
        blocked = machine.row - rows
        rows = other.row
        move(other, list(range(300, 300 + len(hot))), FAST)
        assert blocked < other.row - rows
        assert machine.program_s > before


def test_machine_hot_set_moved_to_fast_node_runtime_falls(
    settled: MissStream, preset: Preset
) -> None:
    ends = []
    for pages in ([], list(range(PAGES - 192, PAGES))):
        with touched(settled, preset) as machine:
            if pages:
                move(machine, list(range(192)), SLOW)
                move(machine, pages, FAST)
                machine.rest()
            while not machine.done:
                machine.run_until(machine.now_s + 1e-3)
            ends.append(machine.program_s)
    assert ends[1] < 0.7 * ends[0]


@pytest.mark.parametrize("node", [FAST, SLOW])
def test_machine_ended_program_move_returns_esrch(
    settled: MissStream, preset: Preset, node: int
) -> None:
    with SimulatedMachine(settled, preset, FAST_PAGES) as machine:
        machine.run_until(1e6)
        assert machine.done
        assert machine.stat(PROGRAM.pid) is None
        result, _ = move(machine, [0 if node == SLOW else PAGES - 1], node)
        assert result == -errno.ESRCH
