# SPDX-License-Identifier: MIT
"""Of many processes the sweep goes first to those that hold much of the memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.mappings import Mappings, parse_maps
from hmd.linux.procfs import ProcessId
from hmd.residency.address_spaces import FEW, LargeProcesses
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import ResidencySweep, RoundRobin, SweepSettings
from hmd.sample.access_batch import AccessBatch

START = 1 << 40
SMALL, LARGE, LARGE_CHUNKS = 2_000, 20, 8


def processes(count: int) -> tuple[ProcessId, ...]:
    return tuple(ProcessId(pid, 1) for pid in range(100, 100 + count))


def ticking(readings: int) -> Callable[[], bool]:
    """Return an ``over`` that is true after so many readings."""
    left = [readings]

    def over() -> bool:
        left[0] -= 1
        return left[0] <= 0

    return over


def test_survey_finds_large_processes_within_a_round() -> None:
    every = processes(4 * FEW)
    sizes = dict.fromkeys(every, 1 << 20) | {every[-1]: 1 << 30, every[-2]: 2 << 30}
    spaces = LargeProcesses(sizes.__getitem__)
    spaces.set_processes(every)
    for _ in range(4):
        large = spaces.find_large(ticking(FEW))
    assert large == (every[-2], every[-1])


def test_survey_of_few_processes_reads_nothing() -> None:
    def read(process: ProcessId) -> int:
        raise AssertionError(process)

    spaces = LargeProcesses(read)
    spaces.set_processes(processes(FEW))
    assert spaces.find_large(lambda: False) == ()


def test_survey_expected_sizes_count_until_they_are_read() -> None:
    every = processes(4 * FEW)
    spaces = LargeProcesses(lambda process: 4096)
    spaces.set_resident_bytes({every[-1]: 1 << 30})
    spaces.set_processes(every)
    assert spaces.find_large(ticking(1)) == (every[-1],)
    assert spaces.find_large(lambda: False) == ()  # all are alike


def test_survey_sizes_stay_with_their_processes() -> None:
    every = processes(4 * FEW)
    sizes = dict.fromkeys(every, 4096) | {every[-1]: 1 << 30}
    spaces = LargeProcesses(sizes.__getitem__)
    spaces.set_processes(every)
    spaces.find_large(lambda: False)
    spaces.set_processes(every[200:])
    assert spaces.find_large(ticking(1)) == (every[-1],)


def test_turn_goes_on_where_it_stopped_after_processes_left() -> None:
    first = processes(6)
    turn = RoundRobin()
    turn.set_processes(first)
    for process in turn.take_turns():
        if process == first[3]:
            break  # it keeps the turn
    turn.set_processes(first[2:])
    assert list(turn.take_turns()) == [first[3], first[4], first[5], first[2]]


def test_turn_of_a_process_that_left_is_the_next_ones() -> None:
    first = processes(4)
    turn = RoundRobin()
    turn.set_processes(first)
    turn.advance()
    turn.set_processes((first[0], first[2], first[3]))
    assert next(turn.take_turns()) == first[2]


class Spaces:
    """Small processes of one chunk, then large ones; ``clock_s`` says what reading took."""

    def __init__(self) -> None:
        self.clock_s = 0.0

    def mappings(self, pid: int) -> Mappings | None:
        self.clock_s += 1e-3
        chunks = LARGE_CHUNKS if pid >= 100 + SMALL else 1
        end = START + chunks * CHUNK_BYTES
        return parse_maps(f"{START:x}-{end:x} rw-p 0 0:0 0\n".encode())

    def huge_pages(self, pid: int, mappings: Mappings) -> npt.NDArray[np.uint64]:
        return np.empty(0, np.uint64)

    def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        self.clock_s += 2e-7 * len(addresses)
        return np.ones(len(addresses), np.int16)


class SizedMemory(ModelledMemory):
    """The sizes of processes take less time than their mappings."""

    def __init__(self, spaces: Spaces) -> None:
        super().__init__(spaces)
        self._sized = spaces

    def resident_bytes(self, process: ProcessId) -> int:
        self._sized.clock_s += 2e-5
        return (LARGE_CHUNKS if process.pid >= 100 + SMALL else 1) * CHUNK_BYTES


def test_sweep_of_many_processes_finds_the_large_ones_first() -> None:
    table, spaces = HeatTable(), Spaces()
    every = processes(SMALL + LARGE)
    table.track_processes(every)
    settings = SweepSettings(step_s=0.01)
    sweep = ResidencySweep(settings, SizedMemory(spaces), clock=lambda: spaces.clock_s)
    steps = 0
    while (table.resident_pages(2)[0][SMALL:].sum(axis=1) < LARGE_CHUNKS * CHUNK_PAGES).any():
        table.update(AccessBatch.empty())
        sweep.step(table)
        steps += 1
        assert steps < 120
    small = (table.resident_pages(2)[0][:SMALL].sum(axis=1) > 0).sum()
    # The others have their turn meanwhile, and it takes a second of readings to have all of them.
    assert 10 < small < SMALL / 4
