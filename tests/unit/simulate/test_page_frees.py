# SPDX-License-Identifier: MIT
"""Pages that a program gives back and allocates again, and the headroom that awaits them."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.errors import HmdError
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissStream, PageFrees
from hmd.emulate.recordings.replay import replayed
from hmd.linux.page_calls import MoveFlags
from hmd.policy import registry
from hmd.simulate.machine import (
    FAST,
    PROGRAM,
    SLOW,
    MigrationCost,
    SimulatedMachine,
    SimulatedMemory,
    first_touch,
    first_touched,
)
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import Simulated, SimulationSettings, simulate
from tests.unit.simulate.conftest import BASE, stream_of

SETTINGS = SimulationSettings(tick_s=0.004, delay_s=0.0005, sampling=PmuSettings(period=23))
DATA, WARM, BUFFER, BUFFERS = 1536, 768, 128, 6
FAST_PAGES = 640
USED, BETWEEN = 100_000, 60_000
"""Misses while a buffer is in use, and until the next one is allocated."""


def given_back(page: list[int], frees: list[tuple[int, int]], pages: int) -> MissStream:
    """A stream that touches no page at the start, with frees of (row, page)."""
    touched = stream_of(np.array(page, np.int64), pages)
    rows = slice(pages, pages + len(page))
    cut = {name: getattr(touched, name)[rows] for name in (
        "instructions", "paid_hits", "near_hits", "page", "line", "flags", "depends")}  # fmt: skip
    row, freed = zip(*frees, strict=True)
    return replace(
        touched, **cut, frees=PageFrees(np.array(row, np.int64), np.array(freed, np.uint32))
    )


def buffers() -> MissStream:
    """More warm data than the fast node holds, and hot buffers, one after the other."""
    random = np.random.default_rng(1)

    def data(misses: int) -> npt.NDArray[np.int64]:
        warm = DATA - WARM + random.integers(0, WARM, misses)
        return np.where(random.random(misses) < 0.8, warm, random.integers(0, DATA, misses))

    page, frees = [np.arange(DATA), data(2 * USED)], []
    for number in range(BUFFERS):
        first = DATA + number * BUFFER
        hot = first + random.integers(0, BUFFER, USED)
        page.append(np.where(random.random(USED) < 0.9, hot, data(USED)))
        end = sum(map(len, page))
        frees += [(end, first + i) for i in range(BUFFER)]
        page.append(data(BETWEEN))
    return given_back(np.concatenate(page).tolist(), frees, DATA + BUFFERS * BUFFER)


def buffer_in_place_of_data() -> MissStream:
    """Data that fill the fast node and are given back, and a hot buffer in their place."""
    random = np.random.default_rng(2)
    hot = FAST_PAGES + random.integers(0, BUFFER, USED)
    page = np.concatenate([np.arange(FAST_PAGES), hot])
    frees = [(FAST_PAGES, number) for number in range(FAST_PAGES)]
    return given_back(page.tolist(), frees, FAST_PAGES + BUFFER)


def run(stream: MissStream, preset: Preset, name: str, **settings: object) -> Simulated:
    kept = {"headroom_min": 8 * 4096, **settings}
    policy = registry.create(name, kept)
    return simulate(stream, preset, FAST_PAGES, policy, SETTINGS)


def test_page_given_back_is_not_resident_until_its_next_access() -> None:
    memory = SimulatedMemory(given_back([0, 1, 2, 3, 2, 0], [(3, 0), (3, 2)], 4), 2)
    address = np.uint64(BASE) + np.arange(4, dtype=np.uint64) * np.uint64(4096)
    memory.allocate_ahead(0, 0)
    assert memory.nodes(address, 3).tolist() == [FAST, FAST, SLOW, -2]
    memory.free_until(3)
    memory.allocate_ahead(3, 0)
    assert memory.nodes(address, 3).tolist() == [-2, FAST, -2, -2]
    assert memory.free_pages(FAST, 3) == 1
    # The next page to be accessed takes the room; what is given back comes again.
    assert memory.nodes(address, 6).tolist() == [SLOW, FAST, SLOW, FAST]


def test_page_accessed_since_it_was_given_back_stays() -> None:
    memory = SimulatedMemory(given_back([0, 1, 0, 1], [(2, 0)], 2), 2)
    memory.allocate_ahead(0, 0)
    memory.free_until(3)
    assert memory.free_pages(FAST, 3) == 0


def test_frees_are_read_as_written(tmp_path: Path) -> None:
    stream = given_back([0, 1, 2, 0], [(2, 0), (3, 1)], 3)
    stream.write(tmp_path / "made.misses")
    read = MissStream.read(tmp_path / "made.misses").frees
    assert read is not None
    assert (read.row.tolist(), read.page.tolist()) == ([2, 3], [0, 1])


@pytest.mark.parametrize("frees", [[(3, 1), (2, 0)], [(5, 0)], [(-1, 0)], [(2, 3)]])
def test_frees_out_of_range_are_refused(tmp_path: Path, frees: list[tuple[int, int]]) -> None:
    given_back([0, 1, 2, 0], frees, 3).write(tmp_path / "made.misses")
    with pytest.raises(HmdError, match="frees"):
        MissStream.read(tmp_path / "made.misses")


@pytest.mark.parametrize(("name", "most"), [("histogram", 0.99), ("benefit", 1.0)])
def test_room_kept_for_the_next_buffer_pays(name: str, most: float, preset: Preset) -> None:
    stream = buffers()
    kept, filled, fixed = (
        run(stream, preset, name, headroom=share).runtime_s for share in (None, 0.0, 0.02)
    )
    assert kept < most * filled
    assert kept < most * fixed


@pytest.mark.parametrize("tick_s", [0.001, 0.05])
def test_without_moves_a_program_runs_as_under_first_touch(tick_s: float, preset: Preset) -> None:
    # What is given back makes room for a hot buffer at once, within a tick or not.
    stream = buffer_in_place_of_data()
    settings = SimulationSettings(tick_s, sampling=PmuSettings(loss=1.0, free=True))
    still = simulate(stream, preset, FAST_PAGES, registry.create("none"), settings)
    first_touch_s = first_touch(stream, preset, FAST_PAGES) * 1e-12
    assert still.runtime_s == pytest.approx(first_touch_s, rel=1e-6)
    placed_s = replayed(stream, preset, first_touched(stream, FAST_PAGES)) * 1e-12
    assert first_touch_s < 0.9 * placed_s


def test_pages_given_back_while_they_move_are_placed_anew(preset: Preset) -> None:
    moved, freed = np.arange(50, 250), np.arange(100, 200)
    page = np.concatenate([np.arange(600), np.full(20_000, 599), freed])
    stream = given_back(page.tolist(), [(800, number) for number in freed.tolist()], 600)
    cost = MigrationCost(cold_lines=0)
    with SimulatedMachine(stream, preset, 300, cost) as machine:
        while machine.row < 700:
            machine.run_until(machine.now_s + 1e-5)
        assert machine.free_pages(FAST) == 0
        address = np.uint64(BASE) + moved.astype(np.uint64) * np.uint64(4096)
        to_slow = np.full(len(moved), SLOW, np.int32)
        assert machine.move_pages(PROGRAM.pid, address, to_slow, MoveFlags.MOVE)[0] == 0
        assert 800 < machine.row < 20_600
        assert machine.free_pages(FAST) == 200
        gone = (moved >= 100) & (moved < 200)
        assert set(machine.nodes(PROGRAM.pid, address[gone]).tolist()) == {-errno.ENOENT}
        assert set(machine.nodes(PROGRAM.pid, address[~gone]).tolist()) == {SLOW}
        before, _ = machine.misses
        machine.run_until(1.0)
        assert machine.done
        assert machine.misses[0] - before == len(freed)
