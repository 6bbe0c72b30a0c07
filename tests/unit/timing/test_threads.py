# SPDX-License-Identifier: MIT
"""Replay of the misses of several CPUs: shared bandwidth, and CPUs that wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import HmdError
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes, MissStream, ThreadOrder
from hmd.emulate.timing_params import ModelPart
from tests.unit.timing.conftest import GIB, Machine

QUIET = ModelPart.ALL & ~ModelPart.BANDWIDTH
FAST_PAGE, SLOW_PAGE = 16 << 12, GIB + (16 << 12)

# Row: instructions, page, flags.
Row = tuple[int, int, int]
LOAD, HALT, WAKE, MARK = 0, int(MissFlag.HALT), int(MissFlag.WAKE), int(MissFlag.MARK)


def threads_of(cpus: Sequence[Sequence[Row]], meets_at: Sequence[Sequence[int]] = ()) -> MissStream:
    rows = np.array([row for cpu in cpus for row in cpu], np.uint64)
    count = len(rows)
    pages = len(cpus)
    return MissStream(
        instructions=rows[:, 0].copy(),
        paid_hits=np.zeros(count, np.uint32),
        near_hits=np.zeros(count, np.uint32),
        page=rows[:, 1].astype(np.uint32),
        line=(np.arange(count) * 9 % 64).astype(np.uint8),
        flags=rows[:, 2].astype(np.uint8),
        depends=np.zeros(count, np.uint16),
        page_address=np.arange(pages, dtype=np.uint64) * 4096,
        user_pages=pages,
        threads=ThreadOrder(
            np.cumsum([0, *(len(cpu) for cpu in cpus)]),
            np.array(meets_at, np.uint64).reshape(-1, len(cpus)),
        ),
    )


def ended_ns(
    machine: Machine, stream: MissStream, places: Sequence[int], parts: ModelPart = QUIET
) -> float:
    model = machine(parts=parts, vcpus=4)
    return model.replay_misses(stream, np.array(places, np.uint64)) / 1000


def test_independent_cpus_end_with_the_slowest(machine: Machine) -> None:
    one = [(10, 0, LOAD), (10, 0, HALT)]
    other = [(10, 1, LOAD), (10, 1, HALT)]
    stream = threads_of([one, other])
    assert ended_ns(machine, stream, [FAST_PAGE, FAST_PAGE]) == pytest.approx(1 + 100)
    assert ended_ns(machine, stream, [FAST_PAGE, SLOW_PAGE]) == pytest.approx(1 + 300)
    assert ended_ns(machine, stream, [SLOW_PAGE, FAST_PAGE]) == pytest.approx(1 + 300)


def test_cpus_that_stream_share_the_bandwidth_of_a_node(machine: Machine) -> None:
    # 64 bytes per ns: 40,000 lines each take 40 us alone on a node, and 80 us on one node.
    stream = threads_of([[(i, cpu, MissFlag.COVERED) for i in range(40_000)] for cpu in range(2)])
    alone = threads_of([[(i, 0, MissFlag.COVERED) for i in range(40_000)]])
    places = [FAST_PAGE, FAST_PAGE + 4096]
    assert ended_ns(machine, alone, places[:1], ModelPart.ALL) == pytest.approx(40_000, rel=0.02)
    assert ended_ns(machine, stream, places, ModelPart.ALL) == pytest.approx(80_000, rel=0.05)


def test_cpu_that_waits_for_another_leaves_it_the_bandwidth(machine: Machine) -> None:
    # Both stream 20,000 lines in 40 us; the other's next 40,000 take 40 us more, as it is alone.
    short = [*((i, 0, MissFlag.COVERED) for i in range(20_000)), (20_000, 0, HALT)]
    other = [*((i, 1, MissFlag.COVERED) for i in range(60_000)), (60_000, 1, HALT)]
    stream = threads_of([short, other], [[20_000, 60_000]])
    places = [FAST_PAGE, FAST_PAGE + 4096]
    assert ended_ns(machine, stream, places, ModelPart.ALL) == pytest.approx(80_000, rel=0.05)


def test_barrier_waits_for_the_cpu_that_a_placement_makes_last(machine: Machine) -> None:
    # In the recording CPU 1 came last: CPU 0 had halted, and CPU 1 woke it at its mark. Both load
    # once more. Each phase takes as long as its slower load, wherever the pages lie.
    waits = [
        (0, 0, WAKE),
        (10, 0, LOAD),
        (10, 0, HALT),
        (10, 0, WAKE),
        (20, 0, LOAD),
        (20, 0, HALT),
    ]
    comes = [
        (0, 1, WAKE),
        (10, 1, LOAD),
        (10, 1, LOAD),
        (220, 1, MARK),
        (230, 1, LOAD),
        (230, 1, HALT),
    ]
    stream = threads_of([waits, comes], [[0, 0], [1, 0], [3, 4]])

    def ends(first: int, second: int) -> float:
        return ended_ns(machine, stream, [first, second])

    # CPU 1 passes its mark when its window of 200 instructions let it: 1 + latency + 1 ns.
    assert ends(FAST_PAGE, FAST_PAGE) == pytest.approx(102 + 1 + 100, abs=2)
    assert ends(FAST_PAGE, SLOW_PAGE) == pytest.approx(302 + 1 + 300, abs=2)
    # CPU 0 arrives last now: CPU 1 waits for it, though it did not in the recording.
    assert ends(SLOW_PAGE, FAST_PAGE) == pytest.approx(301 + 1 + 300, abs=2)


def test_thread_that_starts_late_begins_at_its_creators_time(machine: Machine) -> None:
    creator = [(0, 0, WAKE), (10_000, 0, MARK), (10_010, 0, HALT)]
    created = [(0, 1, WAKE), (10, 1, LOAD), (10, 1, HALT)]
    stream = threads_of([creator, created], [[0, 0], [2, 0]])
    assert ended_ns(machine, stream, [FAST_PAGE, FAST_PAGE]) == pytest.approx(1000 + 1 + 100)


def test_outcomes_of_threads_are_on_one_time_axis(machine: Machine) -> None:
    creator = [(0, 0, WAKE), (10_000, 0, MARK), (10_010, 0, HALT)]
    created = [(0, 1, WAKE), (10, 1, LOAD), (10, 1, HALT)]
    stream = threads_of([creator, created], [[0, 0], [2, 0]])
    into = MissOutcomes.empty(len(stream))
    machine(parts=QUIET).replay_misses(stream, np.array([FAST_PAGE, SLOW_PAGE], np.uint64), into)
    assert into.clock_ps.tolist() == [0, 1_000_000, 1_001_000, 1_000_000, 1_001_000, 1_001_000]
    assert into.latency_ps[4] == 300_000


def test_replay_in_parts_refuses_several_cpus(machine: Machine) -> None:
    stream = threads_of([[(1, 0, LOAD)], [(1, 1, LOAD)]])
    with pytest.raises(HmdError, match="2 CPUs"):
        machine().misses(stream, np.array([FAST_PAGE, SLOW_PAGE], np.uint64))


def test_replay_on_a_machine_of_fewer_cpus_is_refused(machine: Machine) -> None:
    stream = threads_of([[(1, cpu, LOAD)] for cpu in range(3)])
    with pytest.raises(ValueError, match="no CPU 2"):
        machine(vcpus=2).replay_misses(stream, np.full(3, FAST_PAGE, np.uint64))


def test_stream_of_threads_read_back_is_unchanged(tmp_path: Path) -> None:
    stream = threads_of([[(1, 0, LOAD)], [(1, 1, LOAD), (2, 1, HALT)]], [[1, 0], [1, 1]])
    stream.write(tmp_path / "s.npz")
    read = MissStream.read(tmp_path / "s.npz")
    assert read.threads is not None
    assert stream.threads is not None
    assert read.cpus == 2
    assert read.rows_of(1) == slice(1, 3)
    assert read.threads.meets_at.tolist() == stream.threads.meets_at.tolist()


@pytest.mark.parametrize(
    "meets_at", [[[1, 1], [0, 1]], [[2, 0]]], ids=["backwards", "beyond the rows"]
)
def test_file_with_impossible_meetings_is_refused(
    tmp_path: Path, meets_at: list[list[int]]
) -> None:
    stream = threads_of([[(1, 0, LOAD)], [(1, 1, LOAD), (2, 1, HALT)]], meets_at)
    stream.write(tmp_path / "s.npz")
    with pytest.raises(HmdError, match="meetings out of order"):
        MissStream.read(tmp_path / "s.npz")
