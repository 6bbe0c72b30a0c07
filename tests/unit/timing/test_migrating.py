# SPDX-License-Identifier: MIT
"""Replays in parts with page moves in between, as in simulations of policies."""

from __future__ import annotations

import numpy as np
import pytest

from bench.access_model import AccessModel
from hmd.emulate.recordings.misses import MissFlag
from hmd.emulate.recordings.replay import UNMAPPED, MissReplay
from hmd.emulate.timing_params import ModelPart
from tests.unit.timing.conftest import GIB, Machine
from tests.unit.timing.test_misses import FAST_PAGE, SLOW_PAGE, stream_of

CHAIN = stream_of([10, 20, 30, 40], depends=[0, 1, 1, 1], page=[0, 1, 0, 1], pages=2)
QUIET = ModelPart.ALL & ~ModelPart.BANDWIDTH


def replay_of(model: AccessModel, *places: int) -> MissReplay:
    return model.misses(CHAIN, np.array(places, np.uint64))


def test_replay_in_parts_equals_replay_at_once(machine: Machine) -> None:
    rng = np.random.default_rng(5)
    stream = stream_of(
        np.cumsum(rng.integers(1, 60, 5000)).tolist(),
        page=rng.integers(0, 8, 5000).tolist(),
        depends=rng.integers(0, 3, 5000).tolist(),
        flags=np.where(rng.random(5000) < 0.2, int(MissFlag.STORE), 0).tolist(),
        pages=8,
    )
    places = np.array([FAST_PAGE + (i << 12) + GIB * (i % 2) for i in range(8)], np.uint64)
    whole = machine().replay_misses(stream, places)
    model = machine()
    replay, until_ps, parts = model.misses(stream, places), 0, 0
    while not replay.done:
        until_ps += 7_000_000
        busy_ps = replay.run(until_ps)
        parts += 1
    assert busy_ps == whole
    assert parts > 20


def test_migrated_page_counts_as_fast_after_its_move(machine: Machine) -> None:
    slow, fast = (replay_of(machine(parts=QUIET), place, place) for place in (SLOW_PAGE, FAST_PAGE))
    moved = replay_of(machine(parts=QUIET), SLOW_PAGE, SLOW_PAGE)
    moved.run(3_500)
    assert moved.next == 3  # issued without waiting, at 1, 2 and 3 ns
    moved.page_paddr[:] = FAST_PAGE
    assert fast.run() <= moved.run() <= slow.run()


def test_access_to_unmapped_page_waits_until_it_is_back(machine: Machine) -> None:
    model = machine(parts=QUIET)
    replay = replay_of(model, FAST_PAGE, int(UNMAPPED))
    replay.run()
    assert (replay.next, replay.stopped_at, replay.done) == (1, 1, False)
    model.sleep(0, 50_000_000)
    asleep = model.counters(0)
    assert asleep.clock_ps == 50_000_000
    assert asleep.busy_ps < 200_000
    replay.page_paddr[1] = SLOW_PAGE
    replay.run()
    assert replay.done
    assert replay.stopped_at is None
    assert model.counters(0).clock_ps > 50_000_000


def test_write_back_to_unmapped_page_does_not_wait(machine: Machine) -> None:
    stream = stream_of([10, 20], flags=[MissFlag.WRITE_BACK | MissFlag.STORE, 0])
    model = machine(parts=QUIET)
    replay = model.misses(stream, np.array([UNMAPPED], np.uint64))
    replay.run()
    assert replay.next == 1


def test_page_copy_takes_bandwidth_of_both_nodes(machine: Machine) -> None:
    model = machine()
    pages = np.arange(16, dtype=np.uint64) << np.uint64(12)
    end_ps = model.copy_pages(1, pages + np.uint64(SLOW_PAGE), pages + np.uint64(FAST_PAGE), 10_000)
    fast, slow = model.counters(1).nodes
    assert slow.kernel_lines == fast.kernel_lines == 16 * 64
    assert slow.read_bytes == fast.read_bytes == fast.write_bytes == 16 * 4096
    # 10,000 instructions are 1 us per page; a page at 16 bytes per ns 256 ns more, at least.
    assert 16 * 1_256_000 < end_ps < 16 * 3_000_000


def test_program_slows_down_during_page_copies(machine: Machine) -> None:
    stream = stream_of(list(range(0, 40_000, 2)), flags=MissFlag.COVERED)
    places = np.array([FAST_PAGE], np.uint64)
    alone = machine().replay_misses(stream, places)
    model = machine()
    replay, copied = model.misses(stream, places), 0
    pages = np.arange(4, dtype=np.uint64) << np.uint64(12)
    while not replay.done:
        end_ps = model.copy_pages(1, pages + np.uint64(GIB), pages + np.uint64(FAST_PAGE), 100)
        copied += 4
        busy_ps = replay.run(end_ps)
    assert copied > 20
    assert busy_ps > 1.2 * alone


def test_replay_unknown_cpu_refused(machine: Machine) -> None:
    model = machine()
    with pytest.raises(ValueError, match="no CPU 7"):
        model.sleep(7, 1)
