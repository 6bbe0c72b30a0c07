# SPDX-License-Identifier: MIT
"""Threads: what each runs in a window, and how their times make up a window's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hmd.estimate import build_model, layout, side_by_side
from hmd.estimate.windows import Parts, RunThreads, Windows, match_threads, share_of_turns
from hmd.trace.trace import ThreadProgress, Trace

TraceOf = Callable[..., Trace]
MS = 1_000_000


def progress(rows: list[tuple[float, int, float]]) -> ThreadProgress:
    """Rows of time in ms, thread and busy time in ms."""
    time_ms, thread, busy_ms = np.array(rows).T
    count = len(rows)
    return ThreadProgress(
        (time_ms * MS).astype(np.uint64),
        np.zeros(count, np.uint16),
        thread.astype(np.uint32),
        np.zeros(count, np.uint16),
        (busy_ms * MS).astype(np.uint64),
    )


def test_parts_busy_time_interpolated_between_readings(trace_of: TraceOf) -> None:
    # The second thread starts at 20 ms: it had run for 10 ms at 30 ms.
    rows = progress([(20, 5, 20), (40, 5, 30), (30, 9, 10), (40, 9, 20)])
    trace = replace(trace_of([(1, 0)], 40), threads=rows)
    windows = Windows(0, np.array([0.0, 20.0, 40.0]) * MS)
    parts = Parts(windows, RunThreads(np.array([5, 9], np.uint64)))
    assert len(parts) == 4
    assert parts.busy_ns(trace).tolist() == [20 * MS, 0, 10 * MS, 20 * MS]


def test_parts_one_thread_runs_all_the_time(trace_of: TraceOf) -> None:
    parts = Parts(Windows(0, np.array([0.0, 5.0])), RunThreads(np.empty(0, np.uint64)))
    assert parts.busy_ns(trace_of([(1, 0)], 40)).tolist() == [5.0]


def test_match_threads_by_order_of_numbers(trace_of: TraceOf) -> None:
    first = replace(trace_of([], 40), threads=progress([(40, 5, 40), (40, 7, 40), (40, 8, 0.1)]))
    second = replace(trace_of([], 20), threads=progress([(20, 15, 20), (20, 12, 20)]))
    slow, fast = match_threads(first, second)
    # A thread that hardly ran is none of its own.
    assert slow.numbers.tolist() == [5, 7]
    assert fast.numbers.tolist() == [12, 15]
    three = progress([(20, 15, 20), (20, 12, 20), (20, 13, 20)])
    assert [len(each) for each in match_threads(first, replace(second, threads=three))] == [1, 1]


@pytest.mark.parametrize(
    ("busy", "turns", "idle"),
    [
        ([10.0, 10.0], 0.0, 0.0),  # at once
        ([6.0, 4.0], 1.0, 0.0),  # one after the other
        ([8.0, 4.0], 0.5, 0.0),
        ([4.0, 2.0], 1.0, 4.0),
        ([7.0, 0.0], 0.0, 3.0),
    ],
)
def test_share_of_turns_of_a_window_of_ten(busy: list[float], turns: float, idle: float) -> None:
    in_turn, idle_ns = share_of_turns(np.array([10.0]), np.array(busy))
    assert (in_turn.tolist(), idle_ns.tolist()) == ([turns], [idle])


def two_threads(run: Trace, *, turns: bool) -> Trace:
    """The run by two threads, each with pages of its own, at once or in short turns."""
    page = run.samples.address // np.uint64(4096)
    samples = replace(run.samples, thread=(1 + page % np.uint64(2)).astype(np.uint32))
    share = 0.5 if turns else 1.0
    rows = [(ms, n, share * ms) for ms in (0.01, run.runtime_ns / MS) for n in (1, 2)]
    return replace(run, samples=samples, threads=progress(rows))


@pytest.mark.parametrize("turns", [False, True])
def test_model_takes_the_slower_of_threads_at_once_and_adds_those_in_turn(
    slow_run: Trace, fast_run: Trace, turns: bool
) -> None:
    slow, fast = (two_threads(run, turns=turns) for run in (slow_run, fast_run))
    runs = side_by_side(slow, fast, windows=5)
    assert runs.threads == 2
    model = build_model(runs)
    assert not any("threads" in doubt.reason for doubt in model.doubts)
    assert model.estimate(layout.all_slow(runs.pages)).runtime_ns == pytest.approx(400e6)
    assert model.estimate(layout.all_fast(runs.pages)).runtime_ns == pytest.approx(200e6)
    # The pages of one thread fast: the other thread takes as long as before.
    one = runs.pages.address // np.uint64(4096) % np.uint64(2) == 0
    expected = 300e6 if turns else 400e6
    assert model.estimate(one).runtime_ns == pytest.approx(expected, rel=0.02)


def test_model_without_times_of_threads_doubts_its_estimate(
    slow_run: Trace, fast_run: Trace
) -> None:
    slow, fast = (
        replace(two_threads(run, turns=False), threads=None) for run in (slow_run, fast_run)
    )
    runs = side_by_side(slow, fast)
    assert runs.threads == 1
    assert any("2 threads have samples" in doubt.reason for doubt in build_model(runs).doubts)
