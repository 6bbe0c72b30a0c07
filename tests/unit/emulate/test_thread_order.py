# SPDX-License-Identifier: MIT
"""The order of threads in a recording: which wake-ups matter, and how far each CPU had come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.emulate.recordings.misses import MissFlag
from hmd.emulate.recordings.recorder import RECORD, awake_ps, read_recording, thread_order

HALT, WAKE, MARK = MissFlag.HALT, MissFlag.WAKE, MissFlag.MARK
KERNEL = MissFlag.KERNEL


def record(
    cpu: int, instructions: int, flags: int = 0, clock_ps: int = 0, woken: int = 0, hits: int = 0
) -> tuple[int, ...]:
    vaddr = clock_ps if flags & (HALT | WAKE | MARK) else 0x7000
    return (instructions, vaddr, 5 * 64, hits, 0, woken, flags, cpu)


def raw_of(*rows: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.array(list(rows), RECORD)


# CPU 1 runs, CPU 2 halts; CPU 1 wakes it at instruction 1,200, is a little farther by then in the
# file, and goes on to its own halt.
BARRIER = raw_of(
    record(1, 1000, WAKE, 10),
    record(2, 500, WAKE, 10, 0),
    record(2, 700),
    record(2, 800, HALT, 40),
    record(1, 1100),
    record(1, 1210, hits=11),
    record(1, 1200, MARK, 60, woken=2),
    record(2, 800, WAKE, 60),
    record(2, 30_000),
    record(1, 1300),
    record(1, 1400, HALT, 90),
    record(2, 30_100, HALT, 100),
)


def test_one_cpu_keeps_its_rows_and_has_no_meetings() -> None:
    rows, threads = thread_order(BARRIER[BARRIER["cpu"] == 1])
    assert threads is None
    assert rows.tolist() == list(range(6))


def test_wake_up_is_a_meeting_at_the_marks_of_those_that_ran() -> None:
    rows, threads = thread_order(BARRIER)
    assert threads is not None
    assert threads.cpu_rows.tolist() == [0, 6, 12]
    assert BARRIER["instructions"][rows[:6]].tolist() == [1000, 1100, 1200, 1210, 1300, 1400]
    # CPU 1 has come to its mark, the third row; CPU 2 to its halt, and goes on with its wake-up.
    assert threads.meets_at[-1].tolist() == [3, 3]


def test_interrupt_of_a_halted_cpu_is_no_meeting() -> None:
    raw = raw_of(
        record(1, 0, WAKE, 0),
        record(2, 0, WAKE, 0),
        record(2, 10),
        record(2, 20, HALT, 5),
        record(1, 100, MARK, 20, woken=2),
        record(2, 20, WAKE, 20),
        record(2, 500, KERNEL),
        record(2, 900, HALT, 25),
        record(1, 50_000),
        record(1, 60_000, HALT, 70),
    )
    _, threads = thread_order(raw)
    assert threads is not None
    rows = [row for row in threads.meets_at.tolist() if row[1] >= 3]
    assert rows == []


def test_awake_time_is_that_of_any_cpu() -> None:
    # CPU 1 from 10 to 90, CPU 2 from 10 to 40 and from 60 to 100; then one alone, after a pause.
    assert awake_ps(BARRIER) == 90
    later = raw_of(record(1, 1400, WAKE, 1000), record(1, 1500, HALT, 1005))
    assert awake_ps(np.concatenate([BARRIER, later])) == 95


def test_recording_of_threads_gives_marks_a_share_of_the_hits(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_bytes(BARRIER.tobytes())
    recording = read_recording(path, len(BARRIER))
    stream = recording.stream
    assert stream.cpus == 2
    assert stream.instructions[stream.rows_of(1)].tolist()[0] == 0
    own = stream.rows_of(0)
    assert stream.paid_hits[own].sum() == 11
    # Eleven hits in the 110 instructions up to the miss at 1,210: ten of them before the mark.
    assert stream.paid_hits[own][2:4].tolist() == [10, 1]
    assert stream.user_pages == 1
    assert recording.awake_s == 90e-12
    assert not stream.sampled()[own][2]
