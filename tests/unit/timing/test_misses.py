# SPDX-License-Identifier: MIT
"""Replay of recorded misses: costs computed by hand, and dependence on placement alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.access_model import AccessModel
from hmd.base.errors import HmdError
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes, MissStream
from hmd.emulate.recordings.recorder import read_recording
from hmd.emulate.timing_params import ModelPart, TimingParams
from tests.unit.timing.conftest import GIB, Machine

QUIET = ModelPart.ALL & ~ModelPart.BANDWIDTH
FAST_PAGE, SLOW_PAGE = 16 << 12, GIB + (16 << 12)


def stream_of(
    instructions: Sequence[int],
    *,
    page: Sequence[int] | None = None,
    flags: Sequence[int] | int = 0,
    depends: Sequence[int] | int = 0,
    hits: Sequence[int] | int = 0,
    near: Sequence[int] | int = 0,
    pages: int = 1,
) -> MissStream:
    count = len(instructions)

    def column(values: Sequence[int] | int, dtype: type[np.generic]) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(values), count).astype(dtype))

    return MissStream(
        np.asarray(instructions, np.uint64),
        column(hits, np.uint32),
        column(near, np.uint32),
        column(page if page is not None else 0, np.uint32),
        (np.arange(count) * 9 % 64).astype(np.uint8),
        column(flags, np.uint8),
        column(depends, np.uint16),
        np.arange(pages, dtype=np.uint64) * 4096,
        pages,
    )


def busy_ns(
    machine: Machine, stream: MissStream, places: Sequence[int], parts: ModelPart = QUIET
) -> float:
    return machine(parts=parts).replay_misses(stream, np.asarray(places, np.uint64)) / 1000


def test_dependent_misses_wait_for_each_other(machine: Machine) -> None:
    # Each address comes with the load before: three latencies, whatever the window holds; and the
    # halt at instruction 30 waits for the last.
    stream = stream_of([10, 20, 30, 30], depends=[0, 1, 1, 0], flags=[0, 0, 0, MissFlag.HALT])
    assert busy_ns(machine, stream, [FAST_PAGE]) == pytest.approx(1 + 300, abs=0.5)
    assert busy_ns(machine, stream, [SLOW_PAGE]) == pytest.approx(1 + 900, abs=0.5)


def test_independent_misses_overlap(machine: Machine) -> None:
    stream = stream_of([10, 20, 30, 30], flags=[0, 0, 0, MissFlag.HALT])
    # All are under way at once: the last was issued at 3 ns.
    assert busy_ns(machine, stream, [FAST_PAGE]) == pytest.approx(3 + 100, abs=0.5)


def test_slowest_miss_of_a_group_sets_its_stall(machine: Machine) -> None:
    stream = stream_of([10, 20, 30, 30], page=[0, 1, 0, 0], flags=[0, 0, 0, MissFlag.HALT], pages=2)
    assert busy_ns(machine, stream, [FAST_PAGE, SLOW_PAGE]) == pytest.approx(2 + 300, abs=0.5)


def test_cache_hits_near_a_miss_hide_part_of_its_latency(machine: Machine) -> None:
    # Ten hits of 5 ns. The window is full 200 instructions after the miss: what is paid by then
    # hides, what comes later does not. Near steps have 32 instructions, 4 bits each.
    hidden = stream_of([0, 1000], hits=[0, 10], near=[0, 10], flags=[0, MissFlag.COVERED])
    later = stream_of([0, 1000], hits=[0, 10], near=[0, 0], flags=[0, MissFlag.COVERED])
    assert busy_ns(machine, hidden, [SLOW_PAGE]) == pytest.approx(100 + 300 - 20, abs=1)
    assert busy_ns(machine, later, [SLOW_PAGE]) == pytest.approx(100 + 300 - 20 + 50, abs=1)


def test_prefetched_streams_pay_bandwidth_only(machine: Machine) -> None:
    # 4,000 lines that were prefetched, from a node of 64 bytes a ns: 1 ns each, and no latency.
    stream = stream_of(list(range(4000)), flags=MissFlag.COVERED)
    assert busy_ns(machine, stream, [FAST_PAGE], ModelPart.ALL) == pytest.approx(4000, rel=0.05)


def test_outcomes_record_time_and_latency(machine: Machine) -> None:
    stream = stream_of([10, 20, 30], page=[0, 1, 0], flags=[0, 0, MissFlag.STORE], pages=2)
    into = MissOutcomes.empty(3)
    machine(parts=QUIET).replay_misses(stream, np.asarray([FAST_PAGE, SLOW_PAGE], np.uint64), into)
    assert into.latency_ps.tolist() == [100_000, 300_000, 120_000]
    assert into.clock_ps.tolist() == [1000, 2000, 3000]


def test_placement_of_wrong_length_is_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="page_paddr"):
        busy_ns(machine, stream_of([1, 2]), [FAST_PAGE, FAST_PAGE])


def test_miss_stream_read_back_is_unchanged(tmp_path: Path) -> None:
    stream = stream_of([1, 2, 3], depends=[0, 1, 2], hits=3)
    stream.write(tmp_path / "s.npz")
    read = MissStream.read(tmp_path / "s.npz")
    for ours, theirs in zip(stream.columns(), read.columns(), strict=True):
        assert np.array_equal(ours, theirs)
    assert read.user_pages == 1
    (tmp_path / "s.npz").write_bytes(b"no archive")
    with pytest.raises(HmdError, match="holds no recorded misses"):
        MissStream.read(tmp_path / "s.npz")


RECORD = np.dtype("<u8,<u8,<u4,<u4,<u4,<u2,u1,u1")


def test_recording_read_pages_and_frames_listed(tmp_path: Path) -> None:
    # (instructions, vaddr, line of the frame, hits, near, depends, flags): frame 5 is cleared by
    # the kernel before the program sees it at page 0x7000; frame 9 is the kernel's own.
    kernel = 0xFFFF888000005000
    rows = [
        (100, kernel, 5 * 64, 0, 0, 0, MissFlag.KERNEL | MissFlag.STORE, 0),
        (110, 0x7000, 5 * 64, 0, 0, 0, 0, 0),
        (120, 0xFFFF888000009000, 9 * 64 + 1, 0, 0, 0, MissFlag.KERNEL, 0),
        (130, 0, 5 * 64 + 2, 0, 0, 0, MissFlag.STORE | MissFlag.WRITE_BACK, 0),
    ]
    path = tmp_path / "recording"
    path.write_bytes(np.array(rows, RECORD).tobytes())
    recording = read_recording(path, 4)
    stream = recording.stream
    assert stream.page.tolist() == [0, 0, 1, 0]
    assert stream.page_address.tolist() == [0x7000, 9 << 12]
    assert stream.user_pages == 1
    assert recording.page_paddr.tolist() == [5 << 12, 9 << 12]
    assert stream.instructions.tolist() == [0, 10, 20, 30]
    assert stream.sampled().tolist() == [False, True, False, False]
    with pytest.raises(HmdError, match="give more room"):
        read_recording(path, 5)


def test_replays_of_one_stream_differ_only_by_placement(params: TimingParams) -> None:
    rng = np.random.default_rng(3)
    instructions = np.cumsum(rng.integers(1, 60, 5000))
    stream = stream_of(instructions.tolist(), page=rng.integers(0, 8, 5000).tolist(), pages=8)
    places = np.array([FAST_PAGE + (i << 12) for i in range(8)], np.uint64)
    slower = places + np.uint64(GIB)

    def replay(where: np.ndarray) -> int:
        with AccessModel(replace(params)) as model:
            return model.replay_misses(stream, where)

    assert replay(places) == replay(places) < replay(slower)
    mixed = np.where(np.arange(8) % 2 == 0, places, slower)
    assert replay(places) < replay(mixed) < replay(slower)
